"""Id tables: ids map to rows and back."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.model import ids as ids_module
from svc.model.ids import IdFinder, IdTable

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(st.lists(texts, unique=True, max_size=40), st.lists(texts | st.just("\ud800"), max_size=9))
def test_rows_and_ids_map_onto_each_other(ids: list[str], others: list[str]) -> None:
    """Any distinct texts map to rows and back, alone and in lists. The row of other texts is -1."""
    table = IdTable.from_ids(ids)
    assert (len(table), table.all()) == (len(ids), ids)
    assert [table.at(row) for row in range(len(ids))] == ids
    for asked in (others, [*others, *ids, *others]):
        expected = [ids.index(text) if text in ids else -1 for text in asked]
        found = table.indices(asked)
        assert (found.dtype, found.tolist()) == (np.int32, expected)
        assert [table.index(text) for text in asked] == expected


def test_ids_are_never_normalised() -> None:
    """Composed and decomposed spellings, case and blanks make different ids, because ids are bytes."""
    spellings = ["\u00e9", "e\u0301", "E", "e", " e", "e ", "1", "1.0", "01"]
    table = IdTable.from_ids(spellings)
    assert [table.index(text) for text in spellings] == list(range(len(spellings)))


def test_a_lone_surrogate_cannot_be_stored() -> None:
    with pytest.raises(ValueError, match="surrogates"):
        IdTable.from_ids(["\ud800"])


def test_repeated_ids_are_refused() -> None:
    """One id cannot have two rows."""
    with pytest.raises(ValueError, match="occurs in two rows"):
        IdTable.from_ids(["a", "b", "a"])


@pytest.mark.parametrize(("ids", "row"), [(["a", "b"], -1), (["a", "b"], 2), ([], 0)])
def test_rows_outside_the_table_are_errors(ids: list[str], row: int) -> None:
    """A negative row does not count from the end."""
    with pytest.raises(IndexError):
        IdTable.from_ids(ids).at(row)


def test_ids_with_equal_digests_are_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    """If digests collide, the bytes decide: each id keeps its own row, and other ids stay unknown."""
    monkeypatch.setattr(ids_module, "digest", lambda data: len(data) % 3)
    ids = [f"id{n}" for n in range(60)]
    random.Random(5).shuffle(ids)
    table = IdTable.from_ids(ids)
    assert table.indices(ids).tolist() == list(range(60))
    assert [table.index(text) for text in ids] == list(range(60))
    assert table.index("id99") == -1
    with pytest.raises(ValueError, match="two rows"):
        IdTable.from_ids([*ids, "id7"])


def test_digests_do_not_depend_on_the_process() -> None:
    """The digest of an id is a constant, so that every process finds the ids of a table."""
    assert IdTable.from_ids(["movie-1"]).hashes.tolist() == [10162577116074038705]


def test_the_state_is_compact() -> None:
    """An id costs its own bytes and sixteen more."""
    table = IdTable.from_ids([f"{n:07d}" for n in range(10_000)])
    total = table.blob.nbytes + table.offsets.nbytes + table.hashes.nbytes + table.rows.nbytes
    assert total <= 10_000 * (7 + 16) + 8


@pytest.fixture(params=["dict", "digests"])
def kind_of_table(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test twice: with a dict of all ids, and without it, as for tables too large for a dict."""
    if request.param == "digests":
        monkeypatch.setattr("svc.model.ids.AT_HAND", -1)


short_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.text("ab", max_size=3)


@pytest.mark.usefixtures("kind_of_table")
@given(st.lists(short_texts, unique=True, max_size=60), st.lists(short_texts | st.just("\ud800"), max_size=60))
def test_a_finder_agrees_with_single_lookups(known: list[str], strangers: list[str]) -> None:
    """Known and unknown ids, the empty text, lone surrogates, repeated and non-ASCII ids agree."""
    table = IdTable.from_ids(known)
    asked = [*known, *strangers, *known[:3]]
    found = IdFinder(table).indices(asked)
    assert found.dtype == np.int32
    assert found.tolist() == [table.index(text) for text in asked]


@pytest.mark.usefixtures("kind_of_table")
def test_a_finder_distinguishes_equal_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    """If digests collide, the bytes decide, also between ids of one length."""
    monkeypatch.setattr("svc.model.ids._MULTIPLIERS", np.ones(1024, dtype=np.uint64))
    ids = [f"{number:03d}" for number in range(500)]
    finder = IdFinder(IdTable.from_ids(ids))
    assert finder.indices(ids).tolist() == list(range(500))
    assert finder.indices([f"{number}" for number in range(900, 950)]).tolist() == [-1] * 50


@pytest.mark.usefixtures("kind_of_table")
def test_a_large_table_is_prepared_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids on both sides of the border between two parts are found."""
    monkeypatch.setattr("svc.model.ids._AT_ONCE", 7)
    ids = [f"i{number}" * (number % 3 + 1) for number in range(100)]
    assert IdFinder(IdTable.from_ids(ids)).indices(ids).tolist() == list(range(100))


@pytest.mark.usefixtures("kind_of_table")
def test_a_finder_of_an_empty_table_finds_no_id() -> None:
    """An empty table finds no id, and one with only the empty id finds no other."""
    assert IdFinder(IdTable.from_ids([])).indices(["a"] * 20).tolist() == [-1] * 20
    assert IdFinder(IdTable.from_ids([""])).indices(["", *["a"] * 20]).tolist() == [0] + [-1] * 20

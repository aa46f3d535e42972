"""Many ids at once give the same rows as each id alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.model import id_finder
from svc.model.id_finder import IdFinder
from svc.model.ids import IdTable


@pytest.fixture(autouse=True, params=["dict", "digests"])
def kind_of_table(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every test with a dict of all ids, and as for tables that are too large for a dict."""
    if request.param == "digests":
        monkeypatch.setattr(id_finder, "AT_HAND", -1)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.text("ab", max_size=3)


@given(st.lists(texts, unique=True, max_size=60), st.lists(texts, max_size=60))
def test_many_ids_are_found_as_each_one_alone(known: list[str], strangers: list[str]) -> None:
    """Known and unknown ids, the empty text, repeated and non-ASCII ids agree."""
    table = IdTable.from_ids(known)
    asked = [*known, *strangers, *known[:3]]
    found = IdFinder(table).indices(asked)
    assert found.dtype == np.int32
    assert found.tolist() == [table.index(text) for text in asked]


def test_a_lone_surrogate_is_unknown() -> None:
    """A lone surrogate, which JSON can spell, is no id."""
    ids = [f"id {number}" for number in range(100)]
    assert IdFinder(IdTable.from_ids(ids)).indices(["\ud800", *ids]).tolist() == [-1, *range(100)]


def test_ids_with_equal_digests_are_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    """If digests collide, the bytes decide, also between ids of one length."""
    monkeypatch.setattr(id_finder, "_MULTIPLIERS", np.ones(1024, dtype=np.uint64))
    ids = [f"{number:03d}" for number in range(500)]
    finder = IdFinder(IdTable.from_ids(ids))
    assert finder.indices(ids).tolist() == list(range(500))
    assert finder.indices([f"{number}" for number in range(900, 950)]).tolist() == [-1] * 50


def test_a_large_table_is_prepared_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids on both sides of the border between two parts are found."""
    monkeypatch.setattr(id_finder, "_AT_ONCE", 7)
    ids = [f"i{number}" * (number % 3 + 1) for number in range(100)]
    assert IdFinder(IdTable.from_ids(ids)).indices(ids).tolist() == list(range(100))


def test_an_empty_table_finds_no_id() -> None:
    """An empty table finds no id, and one with only the empty id finds no other."""
    assert IdFinder(IdTable.from_ids([])).indices(["a"] * 20).tolist() == [-1] * 20
    assert IdFinder(IdTable.from_ids([""])).indices(["", *["a"] * 20]).tolist() == [0] + [-1] * 20

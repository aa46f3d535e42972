"""Batches of rows become one table."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.errors import DataSourceError
from svc.settings import Settings
from svc.sources import table
from svc.sources.base import SourceContext
from svc.sources.table import TableBuilder, as_text, require_columns


def builder(columns: tuple[str, ...] | None = None) -> TableBuilder:
    context = SourceContext(Path(), Settings(), columns, frozenset({"id"}), "interactions", {}, None)
    return TableBuilder(context, "rows")


@given(st.lists(st.lists(st.sampled_from(["a", "b", "é", None])), min_size=1, max_size=6), st.booleans())
def test_ids_are_codes_in_order_of_first_appearance(batches: list[list[str | None]], encoded: bool) -> None:
    """The ids may be text or Arrow dictionaries, in one batch or many."""
    made = builder()
    for rows in batches:
        column = pa.array(rows, pa.string())
        made.add(pa.record_batch({"id": column.dictionary_encode() if encoded else column}))
    rows = [row for batch in batches for row in batch]
    frame = made.finish()
    assert [None if code < 0 else frame["id"].cat.categories[code] for code in frame["id"].cat.codes] == rows
    assert frame["id"].cat.categories.to_list() == list(dict.fromkeys(row for row in rows if row is not None))


def test_buffered_rows_are_encoded_at_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoding after each row gives the same ids."""
    monkeypatch.setattr(table, "_WAITING_BYTES", 1)
    made = builder()
    for row in ("x", "y", "x"):
        made.add(pa.record_batch({"id": pa.array([row])}))
    assert made.finish()["id"].to_list() == ["x", "y", "x"]


def test_integers_with_gaps_stay_integers() -> None:
    """1999 does not become 1999.0. A column of integers and text is refused."""
    made = builder()
    made.add(pa.record_batch({"id": pa.array(["a"]), "year": pa.array([1999], pa.int32())}))
    made.add(pa.record_batch({"id": pa.array(["b"]), "year": pa.array([None], pa.int64())}))
    assert str(made.finish()["year"].dtype) == "Int64"
    made = builder()
    made.add(pa.record_batch({"id": pa.array(["a"]), "year": pa.array([1999])}))
    made.add(pa.record_batch({"id": pa.array(["b"]), "year": pa.array(["soon"])}))
    with pytest.raises(DataSourceError, match="the column year mixes int64, string"):
        made.finish()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (pa.array([1.0]), "floating point numbers"),
        (pa.array([b"x"]), "of type binary"),
        (pa.array([[1]]), "of type list"),
    ],
)
def test_floats_bytes_and_lists_are_no_ids(values: pa.Array, words: str) -> None:
    """Such values have no unique text. Missing values of any type are accepted."""
    with pytest.raises(DataSourceError, match=words):
        as_text(values, "id", "rows")
    assert as_text(pa.nulls(2, pa.float64()), "id", "rows").to_pylist() == [None, None]
    assert as_text(pa.array([7, 8]), "id", "rows").to_pylist() == ["7", "8"]


def test_a_missing_column_is_named_with_the_available_ones() -> None:
    """The error quotes a name that begins with a blank, and cuts a long list. A wanted column may not occur twice."""
    require_columns(["id"], ["id", "x", "x"], "rows")
    with pytest.raises(DataSourceError, match="rows has two columns called x"):
        require_columns(["id", "x"], ["id", "x", "x"], "rows")
    with pytest.raises(DataSourceError, match=r"rows has no column id; did you mean ' id'\? it has ' id', item"):
        require_columns(["id", "item"], [" id", "item"], "rows")
    with pytest.raises(DataSourceError, match=r"no columns a, b; it has .*, \.\.\.$"):
        require_columns(["a", "b"], [f"c{n}" for n in range(40)], "rows")
    require_columns(["item"], ["item"], "rows")

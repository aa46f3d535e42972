"""Row filters in Parquet files, applied to each batch and to the statistics of row groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from svc.errors import RowFilterMismatch
from svc.recipe.filter_tree import parse_row_filter
from svc.sources.prefilter import condition as condition_of
from svc.training.data.where import fetch_kept, kept_rows

SCHEMA = pa.schema(
    {
        "user_id": pa.string(),
        "item_id": pa.string(),
        "stars": pa.int8(),
        "price": pa.float32(),
        "big": pa.int64(),
        "label": pa.large_string(),
    }
)
NUMBERS = st.sampled_from([-1.0, 0.0, 0.1, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 2.0**53, 2.0**53 + 2, 1e300])
TEXTS = st.lists(st.sampled_from(["a", "A", "a ", "ä", "b", " ", "", "7", "1"]), min_size=1, max_size=3, unique=True)
KINDS = {"stars": NUMBERS, "price": NUMBERS, "big": NUMBERS, "label": TEXTS, "item_id": TEXTS}


def _condition(name: str) -> st.SearchStrategy[dict[str, Any]]:
    compared: dict[str, st.SearchStrategy[Any]] = {"exists": st.booleans()}
    if KINDS[name] is NUMBERS:
        compared |= dict.fromkeys(("gt", "gte", "lt", "lte", "eq"), NUMBERS)
    else:
        compared["any"] = TEXTS
    some = st.lists(st.sampled_from([*compared]), min_size=1, max_size=2, unique=True)
    return some.flatmap(lambda names: st.fixed_dictionaries({n: compared[n] for n in names})).map(lambda it: {name: it})


FILTERS = st.recursive(
    st.sampled_from([*KINDS]).flatmap(_condition),
    lambda nodes: st.one_of(
        st.builds(lambda node: {"not": node}, nodes),
        st.builds(
            lambda word, parts: {word: parts}, st.sampled_from(["all", "any"]), st.lists(nodes, min_size=1, max_size=3)
        ),
    ),
    max_leaves=5,
)


def table(seed: int, n_rows: int) -> dict[str, list[Any]]:
    """Return columns with nulls, NaN, infinities, blanks, similar letters, and numbers above 2^53."""
    rng = np.random.default_rng(seed)

    def some(values: list[Any]) -> list[Any]:
        return [values[code] for code in rng.integers(len(values), size=n_rows)]

    return {
        "user_id": [f"u{code}" for code in rng.integers(9, size=n_rows)],
        "item_id": some(["a", "A", "b", "7", None]),
        "stars": some([0, 1, 2, 3, 4, None]),
        "price": some([0.1, 0.5, 1.0, 1.5, 4.0, float("nan"), float("inf"), None, -1.0]),
        "big": some([0, 1, 2**53, 2**53 + 1, 2**53 + 2, None, -(2**53) - 1]),
        "label": some(["a", "A", "a ", "ä", "b", " ", "", "7", None, "\u2003"]),
    }


def values(frame: pd.DataFrame) -> list[list[Any]]:
    """Return the columns with None for all missing values, because types of columns depend on missing values."""
    plain = frame.astype(object)
    return [[name, *column] for name, column in plain.where(plain.notna(), None).items()]


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    filters=st.tuples(FILTERS, st.none() | FILTERS),
    seed=st.integers(0, 999),
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=3),
)
def test_rows_are_the_same_filtered_by_batch_and_as_a_whole(
    make: Any, tmp_path: Path, filters: tuple[dict[str, Any], dict[str, Any] | None], seed: int, sizes: list[int]
) -> None:
    """A filter during the reading keeps the same rows, order, positions and counts as one on the whole table."""
    folder = tmp_path / "rows"
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    for number, n_rows in enumerate(sizes):
        rows = pa.table(table(seed + number, n_rows), schema=SCHEMA).sort_by("stars")
        pq.write_table(rows, folder / f"{number}.parquet", row_group_size=7)
    source = make("parquet", path="rows")
    parsed = [None if tree is None else parse_row_filter(tree) for tree in filters]
    plain, pushed = kept_rows(source.fetch(), *parsed), fetch_kept(source, *parsed)
    assert pushed.n_dropped == plain.n_dropped
    np.testing.assert_array_equal(pushed.hides, plain.hides)  # type: ignore[arg-type]
    assert pushed.positions is not None
    np.testing.assert_array_equal(pushed.positions, plain.positions)
    assert values(pushed.frame) == values(plain.frame)


def test_row_groups_and_partitions_without_matches_are_not_read(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Statistics exclude a row group, and a folder's name excludes its files."""
    groups: list[int] = []
    iter_batches = pq.ParquetFile.iter_batches

    def recorded(file: pq.ParquetFile, *, row_groups: list[int], **options: Any) -> Any:
        groups.extend(row_groups)
        return iter_batches(file, row_groups=row_groups, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", recorded)
    for country in ("DK", "SE"):
        folder = tmp_path / "rows" / f"country={country}"
        folder.mkdir(parents=True)
        rows = pa.table({"user_id": ["u"] * 100, "item_id": ["i"] * 100, "ts": range(100)})
        pq.write_table(rows, folder / "a.parquet", row_group_size=10)
    n_read: list[int] = []
    source = make("parquet", path="rows", progress=n_read.append)
    pushed = fetch_kept(source, parse_row_filter({"all": [{"ts": {"gte": 95}}, {"country": {"any": ["SE"]}}]}))
    assert pushed.positions is not None
    assert (len(pushed.frame), pushed.n_dropped, sum(n_read)) == (5, 195, 5)
    assert pushed.positions.tolist() == [*range(195, 200)]
    assert groups == [9]
    for condition, read in (
        ({"gt": 89}, [9]),
        ({"gte": 89}, [8, 9]),
        ({"lt": 10}, [0]),
        ({"lte": 10}, [0, 1]),
        ({"eq": 10}, [1]),
        ({"eq": 19}, [1]),
    ):
        groups.clear()
        fetch_kept(source, parse_row_filter({"all": [{"ts": condition}, {"country": {"any": ["SE"]}}]}))
        assert groups == read, condition


@pytest.mark.parametrize(
    ("column", "condition"),
    [
        (pa.array(["4", "bad"]), {"gte": 4}),
        (pa.array([True, False]), {"gte": 4}),
        (pa.array([1.5, 2.5]), {"any": ["a"]}),
        (pa.array([[1], [2]]), {"gte": 4}),
        (pa.array([1, 2], pa.timestamp("s")), {"gte": 4}),
    ],
)
def test_no_row_group_of_a_file_with_incomparable_values_is_skipped(
    make: Any, tmp_path: Path, column: pa.Array, condition: dict[str, Any]
) -> None:
    """A value that a condition cannot compare is refused, even if another condition would drop its row."""
    rows = pa.table({"user_id": ["u", "v"], "item_id": ["i", "j"], "c": column, "d": [1, 2]})
    pq.write_table(rows, tmp_path / "rows.parquet")
    where = {"all": [{"d": {"eq": 9}}, {"c": condition}]}
    with pytest.raises(RowFilterMismatch, match=r"data row [12], "):
        fetch_kept(make("parquet", path="rows.parquet"), parse_row_filter(where))


def test_a_refused_value_is_named_by_its_row_in_the_source(make: Any, tmp_path: Path) -> None:
    """The row number counts rows of earlier files and row groups."""
    (tmp_path / "rows").mkdir()
    for number, last in enumerate(("4", "bad")):
        rows = pa.table({"user_id": ["u"] * 10, "item_id": ["i"] * 10, "c": [*["4"] * 9, last]})
        pq.write_table(rows, tmp_path / "rows" / f"{number}.parquet", row_group_size=3)
    with pytest.raises(RowFilterMismatch, match="'c' holds 'bad' in data row 20, ") as caught:
        fetch_kept(make("parquet", path="rows"), parse_row_filter({"c": {"gte": 4}}))
    assert caught.value.fields == {"column": "c", "row": 20}


@pytest.mark.parametrize(
    ("where", "holds"),
    [
        ({"a": {"gte": 1}}, False),
        ({"a": {"gte": 1, "exists": True}}, False),
        ({"a": {"exists": True}}, True),
        ({"not": {"a": {"gte": 1}}}, True),
        ({"all": [{"a": {"gte": 1}}, {"not": {"a": {"lt": 3}}}]}, False),
        ({"any": [{"a": {"gte": 1}}, {"not": {"a": {"lt": 3}}}]}, True),
        ({"any": [{"a": {"lt": 1}}, {"all": [{"a": {"gt": 2}}, {"b": {"exists": True}}]}]}, False),
    ],
)
def test_only_comparisons_exclude_rows_before_they_are_read(where: dict[str, Any], holds: bool) -> None:
    """Statistics can show that a comparison fails for all rows, as for each comparison in this test.

    They cannot show this for `exists` and `not`.
    """
    fails = condition_of(parse_row_filter(where).tree, lambda _, operator, __: [] if operator == "exists" else [False])
    assert (fails is not False) == holds

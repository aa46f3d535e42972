"""What sources of table formats share: bounds of a server, progress, and missing columns of a filter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from svc.errors import ConfigError, DataSourceError, SourceTooLarge
from svc.recipe.filter_tree import parse_row_filter
from svc.settings import Settings
from svc.sources.base import SourceContext, TableBounds
from svc.sources.lake import BOUNDED_BATCH_ROWS, LakeSource, LakeTable
from svc.training.data.where import fetch_kept

ROWS = pa.table({"id": [f"i{k}" for k in range(5000)], "n": range(5000)})
CONTEXT = SourceContext(Path(), Settings(), None, frozenset({"id"}), "metadata", {}, None)


class Table(LakeTable):
    where, schema = "the lake", ROWS.schema

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def n_rows(self) -> int:
        return int(ROWS.num_rows)

    def batches(self, columns: list[str], condition: Any, n_rows: int | None) -> Iterator[pa.RecordBatch]:
        self.asked.append((condition, n_rows))
        yield from ROWS.select(columns).to_batches(n_rows)

    def compare(self, name: str, operator_name: str, operand: Any) -> Any:
        return {(name, operator_name, operand)}


class Source(LakeSource):
    type_name: ClassVar[str] = "lake"

    def _open(self) -> LakeTable:
        if isinstance(self._config, Exception):
            raise self._config
        return self._config  # type: ignore[no-any-return]


def test_a_server_reads_small_batches_within_its_bounds() -> None:
    """The number of rows is checked before any is read, and bytes after each batch."""
    table = Table()
    source = Source(table, replace(CONTEXT, bounds=TableBounds(5000, 1 << 20)))
    assert source.fetch_arrow().num_rows == 5000
    assert table.asked == [(None, BOUNDED_BATCH_ROWS)]
    for bounds in (TableBounds(4999, 1 << 20), TableBounds(5000, 1000)):
        with pytest.raises(SourceTooLarge):
            Source(Table(), replace(CONTEXT, bounds=bounds)).fetch()


def test_progress_counts_kept_rows_and_positions_are_those_read() -> None:
    """A value that cannot be compared is named with its row, so no condition leaves it out."""
    table, heard = Table(), list[int]()
    kept = fetch_kept(Source(table, replace(CONTEXT, progress=heard.append)), parse_row_filter({"n": {"gt": 4997}}))
    assert (kept.frame["id"].to_list(), sum(heard), kept.n_dropped) == (["i4998", "i4999"], 2, 4998)
    assert kept.positions is not None
    assert kept.positions.tolist() == [4998, 4999]
    assert table.asked == [({("n", "gte", 4997)}, None)]
    fetch_kept(Source(table, CONTEXT), parse_row_filter({"n": {"any": ["5"]}}))
    assert table.asked[-1] == (None, None)


@pytest.mark.parametrize(
    ("error", "raised", "words"),
    [
        (ModuleNotFoundError("no", name="lib"), ConfigError, r"lake needs an extra: .*\(lib is missing\)"),
        (RuntimeError("a\n b"), DataSourceError, "^lake: RuntimeError: a b$"),
        (DataSourceError("gone"), DataSourceError, "^gone$"),
    ],
)
def test_errors_of_libraries_are_one_line(error: Exception, raised: type[Exception], words: str) -> None:
    """svc's own errors stay as they are."""
    with pytest.raises(raised, match=words):
        Source(error, CONTEXT).fetch()

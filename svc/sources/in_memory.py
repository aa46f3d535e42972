"""A source for tables in memory: `svc.train(data)` trains on a table without writing it to a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from svc.errors import DataSourceError
from svc.recipe.source_options import Block, Sha256
from svc.sources.files import HashingFile, record_digest
from svc.sources.table import Finish, Table, TableBuilder, TableSource, choose_columns

if TYPE_CHECKING:
    import pandas

WHERE = "the DataFrame"
_offered: ContextVar[dict[str, pa.Table] | None] = ContextVar("offered", default=None)


class InMemoryOptions(Block):
    """Options that name a table in memory by its digest. Recipes in files cannot use this source."""

    sha256: Sha256


@contextmanager
def offer_table(table: pa.Table) -> Iterator[str]:
    """Let this thread's trainings read `table` within the context, and yield its digest.

    The trainings name the table by this digest.
    """
    digest = _digest(table)
    # A copy, because a table in the same dict would outlive `reset`.
    token = _offered.set({**(_offered.get() or {}), digest: table})
    try:
        yield digest
    finally:
        _offered.reset(token)


class InMemorySource(TableSource[InMemoryOptions]):
    """A table that the calling program passed to `svc.train`."""

    type_name: ClassVar[str] = "dataframe"
    Config: ClassVar[type[InMemoryOptions]] = InMemoryOptions

    def _whole(self, finish: Finish[Table]) -> Table:
        table = self._table()
        record_digest(WHERE, self._config.sha256)
        return finish(self._build(table))

    def probe(self) -> list[str]:
        """Return one line with the number of rows."""
        return [f"{WHERE}: {self._table().num_rows} rows"]

    def sample(self, n_rows: int) -> pandas.DataFrame:
        """Return the first rows."""
        return self._build(self._table().slice(0, n_rows)).finish()

    def _table(self) -> pa.Table:
        table = (_offered.get() or {}).get(self._config.sha256)
        if table is None:
            raise DataSourceError("source.type dataframe is for svc.train(data) in Python; name a file or a query here")
        return table

    def _build(self, table: pa.Table) -> TableBuilder:
        builder = TableBuilder(self._context, WHERE)
        builder.add(table.select(choose_columns(self._context, table.column_names, WHERE)))
        return builder


def _digest(table: pa.Table) -> str:
    """Return the sha256 of the table written as an Arrow stream. It depends on the order of the columns."""
    sink = HashingFile()
    # Without metadata and in one chunk, so that equal tables of pandas and Arrow have one digest.
    with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), table.schema.remove_metadata()) as writer:
        writer.write_table(table.replace_schema_metadata().combine_chunks())
    return sink.sha256

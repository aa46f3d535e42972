"""The common part of sources that read a version of a table in a table format, such as Delta or Iceberg.

The format's library applies the filter of `fetch_where` as far as it can. It skips files by their statistics.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from svc.sources import arrow
from svc.sources.prefilter import BOUNDS, condition, is_comparable
from svc.sources.table import Finish, Table, TableBuilder, TableSource, choose_columns, library_errors

if TYPE_CHECKING:
    import pandas
    from numpy.typing import NDArray

    from svc.recipe.filter_tree import RowFilter
    from svc.sources.table import Keep

BOUNDED_BATCH_ROWS = 1024


class LakeTable(ABC):
    """An open version of a table. `where` names it in messages."""

    where: str
    schema: pa.Schema

    @abstractmethod
    def n_rows(self) -> int: ...

    @abstractmethod
    def batches(self, columns: list[str], condition: Any, n_rows: int | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows that may satisfy `condition`, or all rows for None, in batches of at most `n_rows` rows."""

    @abstractmethod
    def compare(self, name: str, operator_name: str, operand: Any) -> Any:
        """Return the condition that a column is `gte` or `lte` a number or `any` of texts, or None if it cannot."""


class LakeSource(TableSource[Any]):
    type_name: ClassVar[str]

    @abstractmethod
    def _open(self) -> LakeTable: ...

    def _whole(self, finish: Finish[Table]) -> Table:
        with self._table() as table:
            builder, columns = self._begin(table)
            for batch in table.batches(columns, None, self._batch_rows):
                builder.add(batch)
            return finish(builder)

    def fetch_where(self, where: RowFilter, keep: Keep) -> tuple[pandas.DataFrame, NDArray[np.int64], int]:
        """Return the n rows that `keep` selects, their positions, (n,), and the number of all rows.

        Positions count only the rows that the format's library did not leave out, because it tells no others.
        """
        with self._table() as table:
            builder, columns = self._begin(table)
            n_read, positions = 0, [np.empty(0, np.int64)]
            for batch in table.batches(columns, self._condition(table, where), self._batch_rows):
                positions.append(builder.add_where(batch, where, keep, n_read))
                n_read += batch.num_rows
            return builder.finish(), np.concatenate(positions), table.n_rows()

    def _condition(self, table: LakeTable, where: RowFilter) -> Any:
        """Return the condition that every wanted row satisfies, or None if all rows must be read.

        All are read if the filter cannot compare the values of a column, so that it reports them.
        """
        texts = self._context.text_columns
        # The partitions of a table format are columns of its schema, so there are no others.
        if not all(is_comparable(name, where, table.schema, {}, texts) for name in where.compared):
            return None

        def compare(name: str, operator_name: str, operand: Any) -> list[Any]:
            # Bounds are never strict, because libraries round them to the type of the column.
            bounds = [table.compare(name, bound, operand) for bound in BOUNDS.get(operator_name, ())]
            return [bound for bound in bounds if bound is not None]

        return condition(where.tree, compare)

    def probe(self) -> list[str]:
        """Read the table's metadata only."""
        with self._table() as table:
            columns = choose_columns(self._context, table.schema.names, table.where)
            return [
                f"{table.where}: readable, {table.n_rows()} rows",
                f"{table.where}: has the columns {', '.join(columns)}",
            ]

    def sample(self, n_rows: int) -> pandas.DataFrame:
        """Return the first rows of `fetch`."""
        with self._table() as table:
            builder, columns = self._begin(table, all_rows=False)
            builder.add_first(table.batches(columns, None, BOUNDED_BATCH_ROWS), n_rows)
            return builder.finish()

    @property
    def _batch_rows(self) -> int | None:
        return None if self._context.bounds is None else BOUNDED_BATCH_ROWS

    def _begin(self, table: LakeTable, *, all_rows: bool = True) -> tuple[TableBuilder, list[str]]:
        """Return a builder with the wanted columns and no rows, and these columns. Check the bounds of a server."""
        if self._context.bounds is not None and all_rows:
            self._context.bounds.check(table.n_rows(), 0, table.where)
        columns = choose_columns(self._context, table.schema.names, table.where)
        builder = TableBuilder(self._context, table.where)
        # So that a table without rows has columns, too.
        builder.add(arrow.empty(pa.schema([table.schema.field(name) for name in columns])))
        return builder, columns

    @contextmanager
    def _table(self) -> Iterator[LakeTable]:
        with library_errors(self.type_name):
            yield self._open()

"""A first, inexact application of a row filter to Parquet files, by row group and by row.

Row groups are skipped by their statistics. Rows are compared in double precision, as in the exact filter afterwards.
Files with possibly incomparable values are not filtered here, so that the exact filter still reports these values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from svc.recipe.filter_tree import NUMBER, Filter, RowFilter

if TYPE_CHECKING:
    import numpy as np
    import pandas
    import pyarrow.parquet as pq
    from numpy.typing import NDArray

    from svc.sources.parts import Hive

_COMPARE: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "gt": pc.greater,
    "gte": pc.greater_equal,
    "lt": pc.less,
    "lte": pc.less_equal,
    "eq": pc.equal,
}
_REACHES: Final[Mapping[str, Callable[[float, float, float], bool]]] = {
    "gt": lambda _low, high, bound: high > bound,
    "gte": lambda _low, high, bound: high >= bound,
    "lt": lambda low, _high, bound: low < bound,
    "lte": lambda low, _high, bound: low <= bound,
    "eq": lambda low, high, bound: low <= bound <= high,
}
"""For each comparison, a function (low, high, bound): whether a value between `low` and `high` may satisfy it."""
Term = TypeVar("Term")


@dataclass(frozen=True, slots=True, eq=False)
class Prefiltered:
    """The n rows of a source that may satisfy a filter, in the source's order, and the number of all its rows.

    `positions`, (n,), has the position of each of these rows in the source.
    """

    frame: pandas.DataFrame
    n_rows: int
    positions: NDArray[np.int64]


def weaken(
    node: Filter,
    translate: Callable[[str, str, Any], Term | None],
    joins: Mapping[str, Callable[[list[Term]], Term]],
) -> Term | None:
    """Translate a filter to a weaker one, which matches at least the same rows. Returns None if it matches all rows.

    `translate(column, operator, operand)` returns a term for one condition, or None if there is none. `joins` combine
    terms by `all` and `any`. A `not` is dropped, because the `not` of a weaker filter matches fewer rows.
    """
    kind, *rest = node
    if kind == "not":
        return None
    if kind == "field":
        kind, parts = "all", [translate(rest[0], *condition) for condition in rest[1]]
    else:
        parts = [weaken(part, translate, joins) for part in rest[0]]
    terms = [part for part in parts if part is not None]
    if not terms or (kind == "any" and len(terms) < len(parts)):
        return None
    return joins[kind](terms)


class ParquetSieve:
    """The application of one row filter to the row groups and batches of Parquet files."""

    def __init__(self, where: RowFilter, text_columns: frozenset[str]) -> None:
        self._where = where
        self._text_columns = text_columns

    def fits(self, schema: pa.Schema, hive: Hive) -> bool:
        """Return whether the types of all compared columns guarantee that every value can be compared."""
        return all(self._fits(name, schema, hive) for name in self._where.compared)

    def _fits(self, name: str, schema: pa.Schema, hive: Hive) -> bool:
        is_number = self._where.kinds[name] == NUMBER
        if name in hive:
            return not is_number
        if schema.get_field_index(name) < 0:  # no column of this name, or several
            return False
        kind = schema.field(name).type
        if is_number:
            return name not in self._text_columns and _is_numeric(kind)
        return _is_text(kind)

    def groups(self, file: pq.ParquetFile, hive: Hive) -> Iterator[tuple[int, int]]:
        """Yield the number and the first row of each row group that may have rows that satisfy the filter."""
        columns = _leaves(file)
        first = 0
        for number in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(number)

            def may_hold(name: str, operator_name: str, operand: Any, group: Any = group) -> bool | None:
                if operator_name == "any" and name in hive:
                    return hive[name] in operand
                statistics = group.column(columns[name]).statistics if name in columns else None
                if operator_name not in _REACHES or statistics is None or not statistics.has_min_max:
                    return None
                low, high = float(statistics.min), float(statistics.max)
                if math.isnan(low) or math.isnan(high):  # a writer that compares NaN writes useless bounds
                    return None
                return _REACHES[operator_name](low, high, operand)

            if weaken(self._where.tree, may_hold, {"all": all, "any": any}) is not False:
                yield number, first
            first += group.num_rows

    def rows(self, batch: pa.RecordBatch) -> NDArray[np.int64] | None:
        """Return the positions in `batch` of the rows that may satisfy the filter, (n,). None means all of them."""

        def flags(name: str, operator_name: str, operand: Any) -> pa.Array | None:
            column = batch.column(name) if name in batch.schema.names else None
            if column is None or operator_name == "exists":
                return None
            if operator_name == "any":
                return _is_in(column, operand)
            if not _is_float_or_whole(column.type):
                return None
            return _COMPARE[operator_name](column.cast(pa.float64(), safe=False), operand)

        joins = {"all": partial(reduce, pc.and_kleene), "any": partial(reduce, pc.or_kleene)}
        keep = weaken(self._where.tree, flags, joins)
        return None if keep is None else np.flatnonzero(keep.fill_null(False).to_numpy(zero_copy_only=False))


def _is_in(column: pa.Array, wanted: tuple[str, ...]) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        return _is_in(column.dictionary, wanted).take(column.indices)
    return pc.is_in(column, pa.array(wanted, column.type))


def _leaves(file: pq.ParquetFile) -> dict[str, int]:
    """Return the index of each number column among the leaves of the file. Nested columns have several leaves."""
    schema = file.schema
    paths = [schema.column(number).path for number in range(len(schema))]
    numbers = {field.name for field in file.schema_arrow if _is_float_or_whole(field.type)}
    return {path: number for number, path in enumerate(paths) if path in numbers}


def _is_float_or_whole(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind))


def _is_numeric(kind: pa.DataType) -> bool:
    return _is_float_or_whole(kind) or bool(pa.types.is_decimal(kind))


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))

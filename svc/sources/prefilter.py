"""The row groups of Parquet files that a row filter may keep, by their statistics and partitions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from svc.recipe.filter_tree import NUMBER, Filter, RowFilter

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from svc.sources.parts import Hive

_REACHES: Final[Mapping[str, Callable[[float, float, float], bool]]] = {
    "gt": lambda _low, high, bound: high > bound,
    "gte": lambda _low, high, bound: high >= bound,
    "lt": lambda low, _high, bound: low < bound,
    "lte": lambda low, _high, bound: low <= bound,
    "eq": lambda low, high, bound: low <= bound <= high,
}
"""For each comparison, a function (low, high, bound): whether a value between `low` and `high` may satisfy it."""


BOUNDS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("gt", "gte"), ("gte",)),
    **dict.fromkeys(("lt", "lte"), ("lte",)),
    "eq": ("gte", "lte"),
    "any": ("any",),
}
"""The comparisons, without strict ones, that follow from each operator of a filter."""


def row_groups(
    file: pq.ParquetFile, where: RowFilter, hive: Hive, text_columns: frozenset[str]
) -> Iterator[tuple[list[int], int]]:
    """Yield the number, in a list, and the first row of each row group that may have rows that satisfy the filter.

    Yield all groups of a file that may have values which the filter cannot compare, so that the filter reports them.
    """
    leaves, first = _leaves(file), 0
    comparable = all(is_comparable(name, where, file.schema_arrow, hive, text_columns) for name in where.compared)
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)

        # A default argument, because a closure would see the group of a later turn.
        def reaches(name: str, operator_name: str, operand: Any, group: Any = group) -> list[bool]:
            if operator_name == "any" and name in hive:
                return [hive[name] in operand]
            statistics = group.column(leaves[name]).statistics if name in leaves else None
            if operator_name not in _REACHES or statistics is None or not statistics.has_min_max:
                return []
            # As floats, because the exact filter compares floats, so both round alike above 2^53.
            low, high = float(statistics.min), float(statistics.max)
            # A writer that compares NaN writes useless bounds.
            return [math.isnan(low) or math.isnan(high) or _REACHES[operator_name](low, high, operand)]

        # None means that nothing is known of the group.
        if not comparable or condition(where.tree, reaches) is not False:
            yield [number], first
        first += group.num_rows


def condition(node: Filter, compare: Callable[[str, str, Any], Sequence[Any]]) -> Any:
    """Return a condition that every row satisfies that satisfies the filter, or None if there is none.

    `compare(column, operator, operand)` returns the conditions that follow from one comparison. They are expressions of
    a library, or truth values, and joined by & and |. Nothing follows from a `not`, because `compare` may return
    conditions that more rows satisfy.
    """
    kind, *operands = node
    if kind == "not":
        return None
    if kind == "field":
        parts = [part for comparison in operands[1] for part in compare(operands[0], *comparison)]
    else:
        parts = [condition(part, compare) for part in operands[0]]
    if kind == "any":
        return None if any(part is None for part in parts) else reduce(or_, parts)
    return reduce(and_, [part for part in parts if part is not None] or [None])


def is_comparable(name: str, where: RowFilter, schema: pa.Schema, hive: Hive, text_columns: frozenset[str]) -> bool:
    """Return whether the type of a column guarantees that the filter can compare all of its values."""
    is_number = where.kinds[name] == NUMBER
    if name in hive:
        return not is_number
    kind = schema.field(name).type
    if is_number:
        return name not in text_columns and (_is_float_or_whole(kind) or bool(pa.types.is_decimal(kind)))
    return _is_text(kind)


def _leaves(file: pq.ParquetFile) -> dict[str, int]:
    """Return the index of each number column among the leaves of the file. Nested columns have several leaves."""
    schema = file.schema
    paths = [schema.column(number).path for number in range(len(schema))]
    numbers = {field.name for field in file.schema_arrow if _is_float_or_whole(field.type)}
    return {path: number for number, path in enumerate(paths) if path in numbers}


def _is_float_or_whole(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind))


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))

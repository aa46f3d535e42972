"""A filter as a SQL condition around a query, for PostgreSQL, MySQL and MariaDB.

The condition may keep more than the filter: collations that ignore case do, and PostgreSQL, which sorts NaN above every
number. It never drops rows that the filter keeps: numbers are compared in the double precision that they are read in.
Columns of single precision, which are read by their shortest digits, are left alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from svc.recipe.row_filter import NUMBER, RowFilter
from svc.sources.prefilter.weakened import weakened

if TYPE_CHECKING:
    from sqlalchemy import Connection, CursorResult

Kind = Literal["whole", "double", "decimal", "single", "text"]
_POSTGRES: Final[Mapping[int, Kind]] = {
    **dict.fromkeys((20, 21, 23), "whole"),
    **dict.fromkeys((25, 1042, 1043), "text"),
    700: "single",
    701: "double",
    1700: "decimal",
}
"""Kinds by the OIDs of types."""
_MYSQL: Final[Mapping[int, Kind]] = {
    **dict.fromkeys((1, 2, 3, 8, 9), "whole"),
    **dict.fromkeys((15, 252, 253, 254), "text"),
    4: "single",
    5: "double",
    246: "decimal",
}
"""Kinds by the numbers of the protocol's field types."""
_BINARY: Final = 63
"""The character set of bytes, which have the field types of text."""
_COMPARE: Final = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<=", "eq": "="}
_NEXT_WHOLE: Final = {"gt": math.floor, "gte": math.ceil, "lt": math.ceil, "lte": math.floor}
_EXACT_WHOLE: Final = 2.0**53
_OTHERWISE_INSIDE: Final = re.compile(r"\border\s+by\b|\blimit\b|\bfetch\b|--|/\*|#", re.IGNORECASE)
"""What gives rows an order, which is lost inside another query, or what may hide it or the end of the query."""
_UNSTEADY_POSTGRES: Final = re.compile(
    r"(?:\brandom|\bclock_timestamp|\btimeofday|\bnextval|uuid\w{0,16})\s*\(|\btablesample\b", re.IGNORECASE
)
_UNSTEADY_MYSQL: Final = re.compile(
    r"(?:\brand|\bnow|\bsysdate|\bcurdate|\bcurtime|\bunix_timestamp|\bnextval|uuid\w{0,16})\s*\("
    r"|\bcurrent_|\blocaltime|\butc_|\bnext\s+value\b|@",
    re.IGNORECASE,
)
"""What gives other rows each time that the query runs, even in one snapshot."""
INNER: Final = "svc_rows"


@dataclass(slots=True)
class SqlCondition:
    """The text of a condition, with its bound values by their names."""

    text: str = ""
    values: dict[str, Any] = field(default_factory=dict)


def may_stand_inside(query: str, dialect_name: str) -> bool:
    """Return True if `query` gives the same rows, in an order as good, whenever it stands inside another query."""
    unsteady = _UNSTEADY_POSTGRES if dialect_name == "postgresql" else _UNSTEADY_MYSQL
    return not (_OTHERWISE_INSIDE.search(query) or unsteady.search(query))


def around(query: str, columns: str, suffix: str = "") -> str:
    """Return a query over the rows of `query`."""
    return f"SELECT {columns} FROM (\n{query.rstrip().removesuffix(';')}\n) AS {INNER} {suffix}"


def condition_for(
    where: RowFilter, result: CursorResult[Any], connection: Connection, text_columns: frozenset[str]
) -> SqlCondition | None:
    """Return a condition by which the database itself may leave out rows.

    `result` has the columns of the query. None if it can leave out nothing, or if a value might have to be refused.
    """
    names = list(result.keys())
    kinds = dict(zip(names, _kinds(result, connection), strict=True))
    if len(kinds) < len(names) or not where.kinds.keys() <= kinds.keys():
        return None
    for name in where.compared:
        is_number = where.kinds[name] == NUMBER
        fits = ("whole",) if name in text_columns else ("whole", "double", "decimal", "single")
        if kinds[name] not in (fits if is_number else ("whole", "text")):
            return None
    condition = SqlCondition()
    quote = connection.dialect.identifier_preparer.quote_identifier
    as_double = "CAST({} AS double precision)" if connection.dialect.name == "postgresql" else "({} + 0e0)"

    def translate(name: str, operator: str, operand: Any) -> str | None:
        if ":" in name or kinds[name] is None or operator == "exists":
            return None
        column = f"{INNER}.{quote(name)}"
        if operator == "any":
            return _is_in(condition, column, kinds[name], operand)
        if kinds[name] == "decimal":
            column = as_double.format(column)
        return _compared(condition, column, kinds[name], operator, operand)

    joins = {"all": lambda terms: f"({' AND '.join(terms)})", "any": lambda terms: f"({' OR '.join(terms)})"}
    condition.text = weakened(where.tree, translate, joins) or ""
    return condition if condition.text else None


def _bound(condition: SqlCondition, value: Any) -> str:
    name = f"svc_where_{len(condition.values)}"
    condition.values[name] = value
    return f":{name}"


def _compared(condition: SqlCondition, column: str, kind: Kind | None, operator: str, operand: float) -> str | None:
    if kind == "whole" and abs(operand) < _EXACT_WHOLE:  # whole bounds, so that an index serves
        parts = ("gte", "lte") if operator == "eq" else (operator,)
        bounds = [(part, _NEXT_WHOLE[part](operand)) for part in parts]
        return " AND ".join(f"{column} {_COMPARE[part]} {_bound(condition, bound)}" for part, bound in bounds)
    if kind in ("double", "decimal"):
        return f"{column} {_COMPARE[operator]} {_bound(condition, operand)}"
    return None


def _is_in(condition: SqlCondition, column: str, kind: Kind | None, wanted: tuple[str, ...]) -> str | None:
    values: list[Any] = list(wanted)
    if kind == "whole":
        values = [int(text) for text in wanted if re.fullmatch(r"-?[0-9]{1,18}", text)]
    elif kind != "text" or any("\0" in text for text in wanted):
        return None
    return f"{column} IN ({', '.join(_bound(condition, value) for value in values)})" if values else "1 = 0"


def _kinds(result: CursorResult[Any], connection: Connection) -> list[Kind | None]:
    """Return the kind of each column's values.

    None for values that the filter compares with nothing.
    """
    cursor: Any = result.cursor
    if connection.dialect.name != "postgresql":
        pairs = zip(cursor.description, cursor._result.fields, strict=True)
        return [_mysql_kind(column[1], field.charsetnr) for column, field in pairs]
    return [_postgres_kind(column.type_code, column.precision) for column in cursor.description]


def _postgres_kind(type_code: int, precision: int | None) -> Kind | None:
    """Return the kind of a PostgreSQL type.

    A number of any size counts as a type that is left alone: it may be out of the range of double precision.
    """
    kind = _POSTGRES.get(type_code)
    return "single" if kind == "decimal" and precision is None else kind


def _mysql_kind(type_code: int, character_set: int) -> Kind | None:
    kind = _MYSQL.get(type_code)
    return None if kind == "text" and character_set == _BINARY else kind

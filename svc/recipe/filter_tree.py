"""Filters of clients and recipes, checked and in one canonical form.

A node is an object with exactly one key: `all` or `any` over a list of nodes, `not` over one node, or the name of a
field over its operators. Two trees that differ only in the order or repetition of parts and values have one canonical
form.

| canonical node | meaning |
|---|---|
| `("all", parts)`, `("any", parts)` | conjunction and disjunction; `parts` sorted, without repeats |
| `("not", part)` | the plain complement |
| `("field", name, operators)` | every one of `operators`, `((operator, operand), ...)` sorted, holds |

`cleansing.where` and `cleansing.hide` are filters of rows, over columns of the interaction table. The table declares no
kinds, so the operators of a condition decide the kind of its column: comparisons take numbers, `any` takes text, and
`exists` fits both. A column has one kind in the whole tree.
"""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from svc.names import did_you_mean

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
MAX_CONDITIONS: Final = 32
MAX_LEVELS: Final = 8
MAX_VALUES: Final = 1000
MAX_TEXT_CHARACTERS: Final = 8192
VALUES_OF_A_CONDITION: Final = 100
"""Number of values in a list that take about as long to compile as one condition."""
GROUPS: Final = ("all", "any", "not")
"""Keys of nodes that combine other nodes. No field may have such a name."""
COMPARISONS: Final = ("gt", "gte", "lt", "lte", "eq")
OPERATORS: Final[Mapping[str, tuple[str, ...]]] = {
    "categorical": ("any", "exists"),
    "multi_label": ("any", "all", "exists"),
    "numerical": (*COMPARISONS, "exists"),
}

_COMPARISON = re.compile(r"(>=?|<=?|==?)\s*(-?(?:0|[1-9][0-9]*)(?:[.][0-9]+)?)")
_EXAMPLES: Final = (2000, [2000, 2010])
"""Numbers for an example in place of a value, and of a list: messages to clients never repeat a value."""
OTHER_OPERATORS: Final = {
    ">": "gt",
    ">=": "gte",
    "<": "lt",
    "<=": "lte",
    "==": "eq",
    "=": "eq",
    "min": "gte",
    "max": "lte",
    "ge": "gte",
    "le": "lte",
    "in": "any",
    "is": "any",
    "contains": "any",
    "equals": "eq",
}
"""svc's operator for each operator of other query languages."""
_OTHER_GROUPS: Final = {"and": "all", "or": "any"}

Kind = Literal["categorical", "multi_label", "numerical"]
Filter = tuple[Any, ...]
Place = tuple[str | int, ...]
NUMBER: Final = "numerical"
TEXT: Final = "categorical"
_KINDS: Final = {**dict.fromkeys(COMPARISONS, NUMBER), "any": TEXT}
_OPERATORS: Final = (*COMPARISONS, "any", "exists")
_MAX_NAME_CHARACTERS: Final = 1024


class FilterProblem(ValueError):
    """An invalid filter.

    `place` is the path to the mistake in the tree, `message` is for the author of the filter, and `type` for programs.
    The text of the error has the place and the message.
    """

    def __init__(self, path: Place, message: str, type: str) -> None:
        super().__init__(": ".join(filter(None, (".".join(map(str, path)), message))))
        self.place = path
        self.message = message
        self.type = type


def parse_filter(tree: object, kinds: Mapping[str, str]) -> Filter:
    """Return the canonical form of `tree`. `kinds` has the kind of each permitted field. Raises FilterProblem."""
    return _Parser(kinds).node(tree, (), 1)


def count_conditions(trees: Iterable[object], most: int) -> int:
    """Return the number of conditions in unchecked trees. Counting stops soon after `most`.

    Each operator counts as one condition, and so do VALUES_OF_A_CONDITION values of a list, and a node that is no
    filter. A group of fewer than two parts counts too, because an invalid tree may consist of such groups alone.
    """
    count, pending = 0, list(trees)
    # A list in place of a recursion, because an unchecked tree may be deeper than Python's stack.
    while pending and count <= most:
        node = pending.pop()
        for key, value in node.items() if isinstance(node, Mapping) and len(node) == 1 else ():
            if key in GROUPS:
                # More parts cannot change the answer, and a client may send millions.
                parts = value[: most + 1] if isinstance(value, list | tuple) else [value]
                pending += parts
                count += len(parts) < 2
            elif isinstance(value, Mapping):
                lists = (operand for operand in value.values() if isinstance(operand, list | tuple))
                count += len(value) + sum(len(operand) // VALUES_OF_A_CONDITION for operand in lists)
            else:
                count += 1
        count += not isinstance(node, Mapping) or len(node) != 1
    return count


class _Parser:
    def __init__(self, kinds: Mapping[str, str]) -> None:
        self.kinds = kinds
        self.conditions = 0

    def node(self, tree: object, path: Place, level: int) -> Filter:
        # First, because a deeper tree must not be walked further.
        if level > MAX_LEVELS:
            raise FilterProblem(path, f"a filter has at most {MAX_LEVELS} levels", "filter_depth")
        if not isinstance(tree, Mapping) or len(tree) != 1:
            raise FilterProblem(path, _no_node(tree), "filter_node")
        (key,) = tree
        if key == "not":
            return ("not", self.node(tree[key], (*path, key), level + 1))
        if key in GROUPS:
            return self._group(key, tree[key], (*path, key), level)
        return self._condition(key, tree[key], path)

    def _group(self, key: str, parts: object, path: Place, level: int) -> Filter:
        if not isinstance(parts, list | tuple) or not parts:
            raise FilterProblem(path, f"`{key}` takes a list with at least one filter", "filter_list")
        if len(parts) > MAX_CONDITIONS:
            raise FilterProblem(path, f"a filter has at most {MAX_CONDITIONS} conditions", "filter_size")
        members = {self.node(part, (*path, index), level + 1) for index, part in enumerate(parts)}
        # As they are. Sorting by their text took 55 ms instead of 13 for 32,000 labels in nested groups.
        return (key, tuple(sorted(members)))

    def _condition(self, field: Any, operators: object, path: Place) -> Filter:
        self.conditions += 1
        if self.conditions > MAX_CONDITIONS:
            raise FilterProblem(path, f"a filter has at most {MAX_CONDITIONS} conditions", "filter_size")
        kind = self._kind(field, operators, path)
        path = (*path, field)
        if not isinstance(operators, Mapping) or not operators:
            words = f"a condition is an object with operators of a {kind} field: {', '.join(OPERATORS[kind])}"
            example = _EXAMPLES[isinstance(operators, list)] if kind == NUMBER else "Drama"
            words += f"; as in {json.dumps(meant_condition(field, example)[0])}"
            raise FilterProblem(path, words, "filter_condition")
        # By text, because a mapping of Python may have keys of several types.
        operands = [(key, _operand(key, operators[key], kind, path)) for key in sorted(operators, key=str)]
        return ("field", field, tuple(operands))

    def _kind(self, field: object, operators: object, path: Place) -> str:  # noqa: ARG002 - for filters of rows
        """Return the kind of a field. Raises FilterProblem for a field that is not permitted."""
        if not isinstance(field, str) or field not in self.kinds:
            hint = self.kinds and group_hint(field)
            raise FilterProblem((*path, _cut(field)), hint or undeclared_field(field, self.kinds), "filter_field")
        return self.kinds[field]


def undeclared_field(field: object, kinds: Mapping[str, str]) -> str:
    """Return the message for a field that is not in `kinds`, the fields that filters and limits may use."""
    if not kinds:
        return "this recipe declares no item_metadata.filter_fields"
    hint = did_you_mean(str(field), kinds)
    return f"no filter field has this name; {hint}there are {', '.join(list(kinds)[:20])}"


def group_hint(name: object) -> str:
    """Return a hint if `name` is a group of other query languages, such as `and`, or "" for other names."""
    group = _OTHER_GROUPS.get(str(name)[:64].lower())
    return f'`{name}` is written `{group}`: {{"{group}": [...]}}' if group else ""


def _no_node(tree: object) -> str:
    """Return the message for an invalid node, with an example of a valid one."""
    words = "a node is an object with exactly one key: all, any, not or a field; this is "
    if isinstance(tree, Mapping) and len(tree) > 1:
        both = '{"all": [{"genres": {"any": ["Drama"]}}, {"year": {"gte": 2000}}]}'
        return f"{words}an object with {len(tree)} keys; conditions that must all hold stand in a list, such as {both}"
    kind = "an object with 0 keys" if isinstance(tree, Mapping) else _kind_of(tree)
    return f'{words}{kind}; write a condition as {{"genres": {{"any": ["Drama"]}}}} or {{"year": {{"gte": 2000}}}}'


def _operand(operator: object, value: object, kind: str, path: Place) -> Any:
    allowed = OPERATORS[kind]
    if operator not in allowed:
        # Cut first, because a client may send a name of megabytes.
        name = OTHER_OPERATORS.get(str(operator)[:64].lower(), str(operator)[:64])
        hint = "did you mean 'any', with a list?" if name == "eq" and kind != NUMBER else did_you_mean(name, allowed)
        words = f"a {kind} field takes {', '.join(allowed)}; {hint}".rstrip("; ")
        raise FilterProblem((*path, _cut(operator)), words, "filter_operator")
    path = (*path, str(operator))
    read: Callable[[object, Place], Any] = _flag if operator == "exists" else _READERS[kind]
    return read(value, path)


def _flag(value: object, path: Place) -> bool:
    if not isinstance(value, bool):
        raise FilterProblem(path, "`exists` takes true or false", "filter_value")
    return value


def _number(value: object, path: Place) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            # Exact comparison is not needed: columns are compared as float64, too.
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number + 0.0  # -0.0 becomes 0.0, because equal filters need one canonical form
    words = "a number field is compared with a finite number"
    if isinstance(value, datetime.date) or (isinstance(value, str) and _DATE.match(value)):
        words += (
            "; this is a date: keep it as a number in the table, such as seconds since 1970, and compare with that "
            "number"
        )
    elif isinstance(value, str):
        words += "; this is a string: write a number without quotes, and compare text by `any`, with a list"
    raise FilterProblem(path, words, "filter_value")


def _labels(values: object, path: Place) -> tuple[str, ...]:
    if not isinstance(values, list | tuple) or not 0 < len(values) <= MAX_VALUES:
        words = f"give a list of 1 to {MAX_VALUES} strings; this is {_kind_of(values)}"
        raise FilterProblem(path, words, "filter_list")
    # Two passes in C for the usual case. The slow pass that follows names the first wrong value.
    if set(map(type, values)) != {str} or max(map(len, values)) > MAX_TEXT_CHARACTERS:
        _refuse_labels(values, path)
    return tuple(sorted(set(values)))


def _refuse_labels(values: Iterable[object], path: Place) -> None:
    """Raise FilterProblem for the first value that is not a label."""
    for index, value in enumerate(values):
        if not isinstance(value, str):
            words = f"values of a text field are strings; this is {_kind_of(value)}"
            raise FilterProblem((*path, index), words, "filter_value")
        if len(value) > MAX_TEXT_CHARACTERS:
            words = f"a value has at most {MAX_TEXT_CHARACTERS} characters"
            raise FilterProblem((*path, index), words, "filter_value")


_READERS: Final[Mapping[str, Callable[[object, Place], Any]]] = {
    "categorical": _labels,
    "multi_label": _labels,
    "numerical": _number,
}


def _kind_of(value: object) -> str:
    """Return the JSON type of a value, for messages that must not repeat the value."""
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", type(None): "null"}
    return names.get(type(value), "an object")


def _cut(name: object) -> str:
    return str(name)[:256]


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A checked filter in its canonical form, and the kind of each column that it names.

    If `exists` is the only operator of a column, the kind is `categorical`, but its values are never compared.
    """

    tree: Filter
    kinds: Mapping[str, str]
    compared: frozenset[str]
    """Columns with an operator other than `exists`."""
    written: Mapping[str, Any]
    """The filter as its author wrote it."""


class _RowParser(_Parser):
    """A parser of filters of rows, which takes the kind of a column from the operators of its conditions.

    `column_kinds` gets the kind of each column that the filter names, or None if `exists` is its only operator.
    """

    def __init__(self, column_kinds: dict[str, str | None]) -> None:
        super().__init__({})
        self.column_kinds = column_kinds

    def _kind(self, field: object, operators: object, path: Place) -> str:
        if not isinstance(field, str) or not 0 < len(field) <= _MAX_NAME_CHARACTERS:
            words = f"a column is named by text of 1 to {_MAX_NAME_CHARACTERS} characters"
            words += " (in quotes if it looks like a number)"
            raise FilterProblem((*path, str(field)[:64]), words, "filter_field")
        kind, before = _compared_kind(operators, (*path, field)), self.column_kinds.get(field)
        # `exists` alone fits both kinds, so it is no contradiction.
        if kind is not None and before is not None and kind != before:
            raise FilterProblem((*path, field), _two_kinds(field), "filter_condition")
        self.column_kinds[field] = before or kind
        return kind or TEXT


def parse_row_filter(written: Mapping[str, Any]) -> RowFilter:
    """Return the checked filter of rows. Raises FilterProblem."""
    column_kinds: dict[str, str | None] = {}
    tree = _RowParser(column_kinds).node(written, (), 1)
    kinds = {name: kind or TEXT for name, kind in column_kinds.items()}
    return RowFilter(tree, kinds, frozenset(name for name, kind in column_kinds.items() if kind), written)


def either(hide: RowFilter | None, where: RowFilter | None) -> RowFilter | None:
    """Return the filter of the rows that `hide` or `where` matches, or None without any filter.

    Raises FilterProblem for a column that one of the two compares with numbers and the other with text.
    """
    if hide is None or where is None:
        return hide or where
    for name in sorted(hide.compared & where.compared):
        if hide.kinds[name] != where.kinds[name]:
            raise FilterProblem((name,), _two_kinds(name), "filter_condition")
    # A column that one filter only asks for its existence has the kind of the other filter.
    kinds = {**hide.kinds, **where.kinds, **{name: hide.kinds[name] for name in hide.compared}}
    return RowFilter(
        ("any", (hide.tree, where.tree)), kinds, hide.compared | where.compared, {"any": [hide.written, where.written]}
    )


def _two_kinds(name: str) -> str:
    return f"the column {name!r} is compared with numbers and with text; keep one of them"


def _compared_kind(operators: object, path: Place) -> str | None:
    """Return the kind of a column, from the operators of one condition, or None if `exists` is the only operator.

    Raises FilterProblem for invalid operators.
    """
    if not isinstance(operators, Mapping) or not operators:
        words = f"a condition is a mapping of operators to values: {', '.join(_OPERATORS)}"
        group = group_hint(path[-1]) if isinstance(operators, list) else ""
        words += f"; {condition(str(path[-1]), operators)}"
        raise FilterProblem(path, group or words, "filter_condition")
    for operator in operators:
        if operator not in _OPERATORS:
            raise FilterProblem((*path, str(operator)[:64]), _refusal(operator), "filter_operator")
    kinds = {_KINDS[operator] for operator in operators if operator in _KINDS}
    if len(kinds) > 1:
        words = "a condition compares with numbers or with text, not with both"
        raise FilterProblem(path, words, "filter_condition")
    return next(iter(kinds), None)


def condition(column: str, value: object) -> str:
    """Return advice on the condition that an author means by a column with a value, such as `rating: ">= 4"`."""
    meant, is_example = meant_condition(column, value)
    words = "as in" if is_example else "write"
    # A mapping of Python may hold values that JSON has no form for.
    return f"{words} {json.dumps(meant, ensure_ascii=False, default=str)}"


def meant_condition(column: str, value: object) -> tuple[dict[str, object], bool]:
    """Return the condition that an author means by a column with a value, and whether it is only an example.

    Two rising numbers are bounds. For a value that means nothing, the condition is an example.
    """
    values: list[Any] = value if isinstance(value, list) and value else [value]
    compared = _COMPARISON.fullmatch(value.strip()) if isinstance(value, str) else None
    if column in _OPERATORS:
        return {"rating": {column: value}}, True
    if compared is not None:
        return {column: {OTHER_OPERATORS[compared[1]]: json.loads(compared[2])}}, False
    if all(isinstance(part, str) for part in values):
        return {column: {"any": values}}, False
    if all(isinstance(part, int | float) and not isinstance(part, bool) for part in values):
        # Falling numbers are no bounds, so they mean single values.
        if len(values) == 2 and values[0] < values[1]:
            return {column: {"gte": values[0], "lte": values[1]}}, False
        each: list[dict[str, object]] = [{column: {"eq": number}} for number in values]
        return (each[0] if len(each) == 1 else {"any": each}), False
    return {column: {"any": ["Drama"]}}, True


def _refusal(operator: object) -> str:
    if operator == "all":
        return "`all` needs columns of several labels, which a table of interactions does not have; use `any`"
    name = OTHER_OPERATORS.get(str(operator)[:64].lower(), str(operator)[:64])
    return f"operators are {', '.join(_OPERATORS)}; {did_you_mean(name, _OPERATORS)}".rstrip("; ")

"""`cleansing.where` and `cleansing.hide`: the grammar of request filters over columns of the interaction table.

The table declares no kinds, so the operators of a condition decide the kind of its column: comparisons take numbers,
`any` takes text, and `exists` fits both. A column has one kind in the whole tree.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import AfterValidator

from svc.recipe.filter_tree import (
    COMPARISONS,
    GROUPS,
    MAX_LEVELS,
    OTHER_OPERATORS,
    Filter,
    FilterProblem,
    Place,
    example,
    group_hint,
    parse_filter,
)

NUMBER: Final = "numerical"
TEXT: Final = "categorical"
_KINDS: Final = {**dict.fromkeys(COMPARISONS, NUMBER), "any": TEXT}
_OPERATORS: Final = (*COMPARISONS, "any", "exists")
_MAX_NAME_CHARACTERS: Final = 1024


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A checked filter in its canonical form, and the kind of each column that it names.

    A column with the operator `exists` only has the kind `categorical`, but its values are never compared.
    """

    tree: Filter
    kinds: Mapping[str, str]
    compared: frozenset[str]
    """Columns with an operator other than `exists`."""


def parse_row_filter(tree: object) -> RowFilter:
    """Return the checked filter of `cleansing.where` or `cleansing.hide`. Raises FilterProblem."""
    kind_of: dict[str, str | None] = {}
    for name, kind, path in _conditions(tree, (), 1):
        earlier = kind_of.get(name)
        if earlier is not None and kind is not None and kind != earlier:
            words = f"the column {name!r} is compared with numbers and with text in one filter; keep one of them"
            raise FilterProblem(path, words, "filter_condition")
        kind_of[name] = earlier or kind
    kinds = {name: kind or TEXT for name, kind in kind_of.items()}
    return RowFilter(parse_filter(tree, kinds), kinds, frozenset(name for name, kind in kind_of.items() if kind))


def either(hide: Mapping[str, Any] | None, where: Mapping[str, Any] | None) -> RowFilter | None:
    """Return the filter of the rows that `hide` or `where` matches, or None without any filter.

    Raises FilterProblem for a column that one of the two compares with numbers and the other with text.
    """
    if hide is None or where is None:
        tree = where if hide is None else hide
        return None if tree is None else parse_row_filter(tree)
    first, second = parse_row_filter(hide), parse_row_filter(where)
    for name in sorted(first.compared & second.compared):
        if first.kinds[name] != second.kinds[name]:
            words = f"the column {name!r} is compared with numbers and with text in hide and where; keep one of them"
            raise FilterProblem((), words, "filter_condition")
    kinds = {**first.kinds, **second.kinds, **{name: first.kinds[name] for name in first.compared}}
    return RowFilter(("any", (first.tree, second.tree)), kinds, first.compared | second.compared)


def _conditions(tree: object, path: Place, level: int) -> Iterator[tuple[str, str | None, Place]]:
    """Yield (column, kind, path) of every condition.

    The kind is None for a condition with `exists` only. Nodes that `parse_filter` refuses are skipped.
    """
    if level > MAX_LEVELS or not isinstance(tree, Mapping) or len(tree) != 1:
        return
    (key,) = tree
    if key == "not":
        yield from _conditions(tree[key], (*path, key), level + 1)
    elif key in GROUPS:
        parts = tree[key] if isinstance(tree[key], list | tuple) else ()
        for index, part in enumerate(parts):
            yield from _conditions(part, (*path, key, index), level + 1)
    else:
        yield _column(key, path), _kind(tree[key], (*path, str(key))), (*path, str(key))


def _column(name: object, path: Place) -> str:
    if isinstance(name, str) and 0 < len(name) <= _MAX_NAME_CHARACTERS:
        return name
    words = f"a column is named by text of 1 to {_MAX_NAME_CHARACTERS} characters (in quotes if it looks like a number)"
    raise FilterProblem((*path, str(name)[:64]), words, "filter_field")


def _kind(operators: object, path: Place) -> str | None:
    """Return the kind of a column, from the operators of one condition."""
    if not isinstance(operators, Mapping) or not operators:
        words = f"a condition is a mapping of operators to values: {', '.join(_OPERATORS)}"
        kind = NUMBER if isinstance(operators, int | float) else TEXT
        group = group_hint(path[-1]) if isinstance(operators, list) else ""
        raise FilterProblem(path, group or f"{words}; write {example(str(path[-1]), kind)}", "filter_condition")
    for operator in operators:
        if operator not in _OPERATORS:
            raise FilterProblem((*path, str(operator)[:64]), _refusal(operator), "filter_operator")
    kinds = {_KINDS[operator] for operator in operators if operator in _KINDS}
    if len(kinds) > 1:
        words = "a condition compares with numbers or with text, not with both"
        raise FilterProblem(path, words, "filter_condition")
    return next(iter(kinds), None)


def _refusal(operator: object) -> str:
    if operator == "all":
        return "`all` needs columns of several labels, which a table of interactions has not; use `any`"
    name = OTHER_OPERATORS.get(str(operator)[:64].lower(), str(operator)[:64])
    near = difflib.get_close_matches(name, _OPERATORS, n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"operators are {', '.join(_OPERATORS)}{hint}"


def _require_row_filter(tree: dict[str, Any]) -> dict[str, Any]:
    try:
        parse_row_filter(tree)
    except FilterProblem as problem:
        where = ".".join(map(str, problem.place))
        raise ValueError(f"{where}: {problem.message}" if where else problem.message) from None
    return tree


Where = Annotated[dict[str, Any], AfterValidator(_require_row_filter)]
"""The tree of a row filter. Pydantic reports its problem as an error of the field."""

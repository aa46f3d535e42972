"""A weaker filter in another language: every row that satisfies the filter satisfies the weaker one, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from svc.recipe.filter_tree import Filter

if TYPE_CHECKING:
    import numpy as np
    import pandas
    from numpy.typing import NDArray

Term = TypeVar("Term")


@dataclass(frozen=True, slots=True, eq=False)
class Prefiltered:
    """The rows of a source that may satisfy a filter, in their order, and the number of rows of the source.

    `positions` is (n,), the position of each row in the source, or None if the source does not say.
    """

    frame: pandas.DataFrame
    n_rows: int
    positions: NDArray[np.int64] | None = None


def weakened(
    node: Filter,
    translate: Callable[[str, str, Any], Term | None],
    joins: Mapping[str, Callable[[list[Term]], Term]],
) -> Term | None:
    """Return the weaker filter, or None for a filter that every row satisfies.

    `translate(column, operator, operand)` gives a term for one condition, or None if the other language has none.
    `joins` combine terms by `all` and `any`. Beneath `not` nothing is translated: a weaker part would make it stricter.
    """
    kind, *rest = node
    if kind == "not":
        return None
    if kind == "field":
        kind, parts = "all", [translate(rest[0], *condition) for condition in rest[1]]
    else:
        parts = [weakened(part, translate, joins) for part in rest[0]]
    terms = [part for part in parts if part is not None]
    if not terms or (kind == "any" and len(terms) < len(parts)):
        return None
    return joins[kind](terms)

"""The rules that rerank an answer (diversity, limits, boosts and pins), from the request or from its recipe."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from svc.asking.fields import BoostAsked, LimitAsked, Part, PinAsked, filter_at, invalid
from svc.asking.policy import active
from svc.model.ranking.filter_fields import ClientTree, FilterFields, LabelField
from svc.model.ranking.rerank import Boost, Limit, Rules
from svc.recipe.filter_tree import undeclared_field

if TYPE_CHECKING:
    from svc.asking.policy import Policy
    from svc.model.model import Model
    from svc.model.ranking.item_sets import ItemSet
    from svc.model.ranking.new_items import NewItems

Pins = Sequence[tuple[str, int]]


class Answerable(Protocol):
    """The attributes of a served model that requests use. `Served` and the recommender of `import svc` have them."""

    @property
    def model(self) -> Model: ...
    @property
    def filters(self) -> FilterFields: ...
    @property
    def policy(self) -> Policy: ...
    @property
    def new_items(self) -> NewItems | None: ...
    def allowed_items(self, own: ItemSet | None = None) -> ItemSet | None: ...


def rules_of(
    served: Answerable,
    diversity: float | None,
    limits: Sequence[LimitAsked] | None,
    boosts: Sequence[BoostAsked] | None,
    pins: Sequence[PinAsked] | None,
) -> tuple[Rules | None, Pins]:
    """Return the rules and the pins for a request, compiled for the items of the served model.

    Rules of the request that are None get the recipe's values, without the boosts and pins that do not apply now. The
    rules of the result are None if there are none. Raises ValidationFailed.
    """
    policy = served.policy
    if not policy.has_rules and (diversity, limits, boosts, pins) == (None, None, None, None):
        return None, ()
    now = time.time() if policy.timed else 0.0
    if pins is None:
        placed: Pins = active(policy.pins, now)
    else:
        placed = _distinct_pins(pins)
    diversity = policy.diversity if diversity is None else diversity
    limited = _limits_of(policy.limits, served.filters) if limits is None else _limits(limits, served)
    if boosts is None:
        boosted = [Boost(served.filters.items(tree), factor) for tree, factor in active(policy.boosts, now)]
    else:
        boosted = [
            Boost(items_at(served, ("boosts", index, "filter"), boost.filter), boost.factor)
            for index, boost in enumerate(boosts)
        ]
    if not (diversity or limited or boosted):
        return None, placed
    return Rules(diversity, limited, tuple(boosted)), placed


def _distinct_pins(pins: Sequence[PinAsked]) -> Pins:
    """Return the pins of the request. Raises ValidationFailed if two pins have the same item or the same position."""
    for name in ("item_id", "position"):
        values = [getattr(pin, name) for pin in pins]
        for index, value in enumerate(values):
            if value in values[:index]:
                raise invalid(["pins", index, name], f"two pins have the same {name}", "repeated_pin")
    return [(pin.item_id, pin.position) for pin in pins]


def _limits(limits: Sequence[LimitAsked], served: Answerable) -> tuple[Limit, ...]:
    kinds, seen = served.filters.kinds, set[str]()
    for index, limit in enumerate(limits):
        where: list[str | int] = ["limits", index, "field"]
        if limit.field not in kinds:
            raise invalid(where, undeclared_field(limit.field, kinds), "filter_field")
        if kinds[limit.field] == "numerical":
            labels = ", ".join(name for name, kind in kinds.items() if kind != "numerical")
            hint = f"; limit a field of text: {labels}" if labels else ""
            raise invalid(where, f"the values of a field of numbers cannot be limited{hint}", "limit_field")
        if limit.field in seen:
            raise invalid(where, "two limits name this field; keep one", "repeated_limit")
        seen.add(limit.field)
    return _limits_of([(limit.field, limit.max) for limit in limits], served.filters)


def _limits_of(limits: Sequence[tuple[str, int]], filters: FilterFields) -> tuple[Limit, ...]:
    limited_fields = ((filters.fields[name], most) for name, most in limits)
    return tuple(Limit(field, most) for field, most in limited_fields if isinstance(field, LabelField))


def items_at(served: Answerable, path: tuple[str | int, ...], tree: object, part: Part = "body") -> ItemSet:
    """Return the items that satisfy the filter at `path` in a request. Raises ValidationFailed."""
    canonical = partial(filter_at, served.filters.kinds, path, part)
    return served.filters.items_as_asked(ClientTree(tree), canonical)

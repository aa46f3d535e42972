"""The rules that rerank an answer (rotation, diversity, limits, boosts and pins), from the request or its recipe."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from svc.asking.fields import LimitAsked, PinAsked, invalid
from svc.asking.filtering import items_at
from svc.asking.names import Names
from svc.asking.offer import Offer
from svc.asking.requests import ItemsRequest, RecommendRequest
from svc.model.ranking.filter_fields import FilterFields, LabelField
from svc.model.ranking.item_sets import added_up
from svc.model.ranking.rerank import Boost, Limit, Rotation, Rules
from svc.recipe.filter_tree import undeclared_field
from svc.recipe.serving_schema import ServingLimit

Pins = Sequence[tuple[str, int]]


def rules_of(request: ItemsRequest, offer: Offer) -> tuple[Rules | None, Pins]:
    """Return the rules and the pins for a request, compiled for the items of the offer.

    Rules of the request that are None get the recipe's values, without the boosts and pins that do not apply now. The
    rules of the result are None if there are none. Raises ValidationFailed.
    """
    policy, filters = offer.policy, offer.filters
    asked = (request.diversity, request.limits, request.boosts, request.pins)
    if not policy.has_rules and asked == (None, None, None, None):
        return None, ()
    # Not trio's clock, because rules begin and end at dates.
    now = time.time() if policy.timed else 0.0
    pins = [pin for pin in policy.pins if pin.applies(now)] if request.pins is None else _distinct(request.pins)
    placed = [(pin.item_id, pin.position) for pin in pins]
    diversity = policy.diversity if request.diversity is None else request.diversity
    limited = _limits(policy.limits if request.limits is None else _checked(request.limits, filters), filters)
    if request.boosts is None:
        boosted = [Boost(filters.items(tree), boost.factor) for tree, boost in policy.boosts if boost.applies(now)]
    else:
        boosted = [
            Boost(items_at(filters, ("boosts", index, "filter"), boost.filter), boost.factor)
            for index, boost in enumerate(request.boosts)
        ]
    if not (diversity or limited or boosted):
        return None, placed
    return Rules(diversity, limited, tuple(boosted)), placed


def rotated(request: RecommendRequest, names: Names, rules: Rules | None) -> tuple[Rules | None, Sequence[str]]:
    """Add the requested rotation and shuffling to the rules. Return them, and the unknown ids among the shown items.

    The counts of a repeated item add up.
    """
    if not request.shown and request.seed is None:
        return rules, ()
    columns, times, unknown = names.weighted(request.shown or ())
    rotation = Rotation(*added_up(columns, times), request.rotation, request.seed, request.shuffle, names.at)
    if rotation.moves:
        rules = (rules or Rules())._replace(rotation=rotation)
    return rules, unknown


def _distinct(pins: Sequence[PinAsked]) -> Sequence[PinAsked]:
    """Return the pins of the request. Raises ValidationFailed if two pins have the same item or the same position."""
    for name in ("item_id", "position"):
        values = [getattr(pin, name) for pin in pins]
        for index, value in enumerate(values):
            # Quadratic, but a request has at most 16 pins.
            if value in values[:index]:
                raise invalid(["pins", index, name], f"two pins have the same {name}", "repeated_pin")
    return pins


def _checked(limits: Sequence[LimitAsked], filters: FilterFields) -> Sequence[LimitAsked]:
    """Return the limits of the request. Raises ValidationFailed for a field that cannot be limited, or twice."""
    kinds, seen = filters.kinds, set[str]()
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
    return limits


def _limits(limits: Iterable[LimitAsked | ServingLimit], filters: FilterFields) -> tuple[Limit, ...]:
    # Numbers have been refused before, in requests and in recipes. The condition tells this to mypy.
    limited_fields = ((filters.fields[limit.field], limit.max) for limit in limits)
    return tuple(Limit(field, most) for field, most in limited_fields if isinstance(field, LabelField))

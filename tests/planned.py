"""Plan requests to a bare model, with restrictions and rules that a test compiled itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from svc.asking.offer import Offer
from svc.asking.plan import known_user as known_user_of
from svc.asking.plan import plan
from svc.asking.policy import Policy
from svc.asking.requests import WITH_PROFILE, PopularQuery, RecommendRequest, RelatedRequest, UsersRequest
from svc.model.model import Model
from svc.model.ranking.filter_fields import FilterFields
from svc.model.ranking.item_sets import ItemSet
from svc.model.ranking.new_items import NewItems
from svc.model.ranking.query import Prepared, Query, Shown
from svc.model.ranking.rerank import Rules
from svc.recipe.serving_schema import ServingBoost, ServingLimit, ServingPin


class Variation(NamedTuple):
    """The fields of a request that vary its page."""

    shown: Sequence[Shown]
    rotation: float
    seed: str | None
    shuffle: float


class Restriction(NamedTuple):
    """The items that a request may get (None: all), and the compiled rules, pins and new items of its offer."""

    offset: int = 0
    include_items: Sequence[str] | None = None
    allowed: ItemSet | None = None
    rules: Rules | None = None
    pins: Sequence[tuple[str, int]] = ()
    explain: int = 0
    new: NewItems | None = None
    variation: Variation | None = None


UNRESTRICTED = Restriction()


class _Compiled(FilterFields):
    """Filter fields whose filters are the item sets themselves."""

    def items(self, tree: Any) -> ItemSet:
        return cast(ItemSet, tree)


def offer_of(model: Model, restriction: Restriction = UNRESTRICTED, *, fallback: bool = False) -> Offer:
    """Return an offer of the model with the rules, pins, new items and permitted items of `restriction`."""
    rules = restriction.rules or Rules()
    fields = {f"field{number}": limit.field for number, limit in enumerate(rules.limits)}
    boosts = [(cast(Any, boost.items), ServingBoost.model_construct(factor=boost.factor)) for boost in rules.boosts]
    policy = Policy(
        popular_fallback=fallback,
        diversity=rules.diversity,
        limits=tuple(
            ServingLimit.model_construct(field=name, max=limit.most)
            for name, limit in zip(fields, rules.limits, strict=True)
        ),
        boosts=tuple(boosts),
        pins=tuple(ServingPin.model_construct(item_id=item, position=place) for item, place in restriction.pins),
        users=True,
    )
    n_items = model.n_items + (0 if restriction.new is None else len(restriction.new))
    filters = _Compiled(fields, n_items)
    return Offer(
        model=model, filters=filters, policy=policy, new_items=restriction.new or None, available=restriction.allowed
    )


def without_chosen(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a request without the dislikes that are in its history too, which requests may not have."""
    chosen = {interaction.item_id for interaction in asked["history"]}
    return {**asked, "dislikes": [dislike for dislike in asked["dislikes"] if dislike.item_id not in chosen]}


def _shared(restriction: Restriction, exclude_items: Sequence[str]) -> dict[str, Any]:
    return {
        "offset": restriction.offset,
        "include_items": restriction.include_items,
        "explain": restriction.explain,
        "exclude_items": list(exclude_items),
    }


def recommend(
    model: Model,
    *,
    exclude_items: Sequence[str] = (),
    restriction: Restriction = UNRESTRICTED,
    replace: bool = False,
    fallback: bool = False,
    **asked: Any,
) -> Prepared:
    """Return the query of a request to `:recommend`. `asked` are the request's fields by name."""
    mode = "replace" if replace and asked.get("history") else "append"
    if not any(asked.get(name) is not None for name in ("user_id", "user_features", "history", "dislikes")):
        asked["history"] = ()
    varied = {} if restriction.variation is None else restriction.variation._asdict()
    fields = asked | varied | {"history_mode": mode} | _shared(restriction, exclude_items)
    request = RecommendRequest.model_construct(WITH_PROFILE, **fields)
    return plan(request, offer_of(model, restriction, fallback=fallback))


def related(
    model: Model,
    *,
    seed_items: Sequence[str] = (),
    exclude_items: Sequence[str] = (),
    restriction: Restriction = UNRESTRICTED,
    new: NewItems | None = None,
    **asked: Any,
) -> Prepared:
    """Return the query of a request to `:recommend-related`. `asked` are the request's fields by name."""
    fields = asked | {"seed_items": list(seed_items)} | _shared(restriction, exclude_items)
    return plan(RelatedRequest.model_construct(**fields), offer_of(model, restriction._replace(new=new)))


def users(model: Model, **asked: Any) -> Prepared:
    """Return the query of a request to `:recommend-users`. `asked` are the request's fields by name."""
    return plan(UsersRequest.model_construct(**asked), offer_of(model))


def popular(model: Model, *, limit: int, restriction: Restriction = UNRESTRICTED) -> Prepared:
    """Return the query of a request for the most chosen items."""
    request = PopularQuery.model_construct(limit=limit, offset=restriction.offset)
    return plan(request, offer_of(model, restriction))


def known_user(model: Model, user: int, *, limit: int, restriction: Restriction = UNRESTRICTED) -> Query:
    """Return the query for the training user in row `user`."""
    return known_user_of(offer_of(model, restriction), user, limit=limit)

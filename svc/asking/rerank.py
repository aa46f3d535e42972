"""Order a caller's own list of items for a user. Nothing is left out, and unknown items keep their places."""

from __future__ import annotations

from collections.abc import Generator
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from svc.asking.fields import Id, Kind, invalid, listed
from svc.asking.offer import Offer
from svc.asking.plan import plan
from svc.asking.requests import (
    MAX_INCLUDED,
    WITH_PROFILE,
    DescribedUser,
    Explain,
    RecommendRequest,
    lacks,
    needs_schema,
    refuse_without_effect,
)
from svc.errors import UnknownUser
from svc.model.ranking.new_items import NewItems
from svc.model.ranking.query import NO_ITEMS, NOTHING_RANKED, NewCandidates, Prepared, Query, Ranking
from svc.model.ranking.rerank import Rules
from svc.model.recommenders.base import excluded_columns


class RerankRequest(DescribedUser):
    """Order `items` for a user, by their places in the list and in the model's order. Every item comes back.

    The user is described by `user_id`, `history` or `user_features`, of which one is required.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"user_id": "u42", "items": ["b3", "b9", "b1"], "weight": 0.7}],
            **needs_schema("history_mode"),
        }
    )

    items: Annotated[
        list[Id],
        *listed(
            Kind.IDS,
            MAX_INCLUDED,
            "The list, in the caller's order, without repeats.",
            min_length=1,
            json_schema_extra={"uniqueItems": True},
        ),
    ]
    weight: Annotated[
        float, Field(ge=0, le=1, description="From 0, the order of the list, to 1, the order of the model.")
    ] = 0.5
    explain: Explain = None


class RerankAnswer(NamedTuple):
    """The list in its new order.

    Item n was at the place `order[n]` of the list, and is item `ranked[n]` of `ranking`, or −1 if the model does not
    know it. `seen` are items of the user's own history and hidden items, and `unavailable` are items that the recipe's
    filter and list do not permit. `about` is the query, or None if nothing is known of the user.
    """

    ids: list[str]
    order: NDArray[np.intp]
    ranked: NDArray[np.intp]
    ranking: Ranking
    seen: NDArray[np.bool_]
    unavailable: NDArray[np.bool_]
    about: Prepared | None


def rerank_steps(request: RerankRequest, offer: Offer) -> Generator[Prepared, Ranking, RerankAnswer]:
    """Yield the query for the user's ranking of the list, receive the ranking, and return the list in its new order.

    Yields nothing if nothing is known of the user. Raises ValidationFailed, FeaturesNotSupported and
    FeatureValueUnusable.
    """
    if request.user_id is None and request.user_features is None and request.history is None:
        raise lacks("user_id", "history", "user_features")
    refuse_without_effect(request)
    first: dict[str, int] = {}
    for index, item in enumerate(request.items):
        if first.setdefault(item, index) != index:
            raise invalid(["items", index], f"the item is at {first[item]} of the list too", "repeated_item")
    # Nothing is left out, so the recipe's filter, lists and rules do not apply.
    plain = Offer(model=offer.model, new_items=offer.new_items)
    columns, n = plain.names.columns(request.items), len(request.items)
    ranking, about, seen = NOTHING_RANKED, None, np.zeros(n, dtype=np.bool_)
    try:
        about = plan(single_of(request, include_seen=True), plain)
        # A second plan, as for an answer without seen items, tells which items of the list are seen.
        seen = np.isin(columns, excluded_columns(plan(single_of(request), plain).query, offer.model.history))
        ranking = yield about._replace(query=_of_all(about.query, offer.new_items, columns))
    except UnknownUser:
        pass
    user = -1 if request.user_id is None else offer.model.user_ids.index(request.user_id)
    hidden, hidden_new = offer.model.hidden_from(user, request.user_id)
    named = {*hidden_new, *(interaction.item_id for interaction in request.history or ())}
    seen |= np.isin(columns, hidden) | [item in named for item in request.items]
    allowed = offer.allowed_items()
    unavailable = np.zeros(n, dtype=np.bool_)
    if allowed is not None:
        unavailable[columns >= 0] = ~allowed.contains(columns[columns >= 0])
    order, ranked = _mixed_order(columns, ranking.items, request.weight)
    return RerankAnswer(request.items, order, ranked, ranking, seen[order], unavailable[order], about)


def single_of(request: RerankRequest, *, include_seen: bool = False) -> RecommendRequest:
    """Return the request for the model's order of the list."""
    # Not validated again: a validated history has tuples, which the validator of requests refuses.
    return RecommendRequest.model_construct(
        WITH_PROFILE,
        **{name: getattr(request, name) for name in DescribedUser.model_fields},
        include_seen=include_seen,
        include_items=request.items,
        exclude_items=[],
        explain=request.explain,
        limit=len(request.items),
    )


def _of_all(query: Query, new: NewItems | None, columns: NDArray[np.int32]) -> Query:
    """Return the query for all items in `columns`. Hidden items are not left out, and new ones have no bound."""
    query = query._replace(exclude=NO_ITEMS, include_seen=True)
    if new is None or not len(rows := np.unique(columns[columns >= new.n_known]) - new.n_known):
        return query
    # Rules without content, because a query with new items has rules, and this one bounds no share of them.
    return query._replace(new=NewCandidates(new, rows.astype(np.int32)), rules=Rules())


def _mixed_order(
    columns: NDArray[np.int32], ranked_columns: NDArray[np.int32], weight: float
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the places of the list in their new order, (n,), and the place of each in the model's ranking, or −1.

    Items that the ranking lacks keep the place of the list in the model's order too, and the others fill the rest.
    """
    n = len(columns)
    place_of = {column: rank for rank, column in enumerate(ranked_columns.tolist())}
    ranked = np.array([place_of.get(column, -1) for column in columns.tolist()], dtype=np.intp)
    in_model = np.arange(n, dtype=np.float64)
    slots = np.flatnonzero(ranked >= 0)
    # The items that the model ranks share their own places of the list, in the order of the ranking.
    in_model[slots[np.argsort(ranked[slots], kind="stable")]] = slots
    # Stable, so that items of equal mixed places keep the order of the list.
    order = np.argsort((1 - weight) * np.arange(n) + weight * in_model, kind="stable")
    return order, ranked[order]

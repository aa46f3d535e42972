"""Turn a request into a query: ids into columns, histories into profiles, filters and rules into item sets.

This is the only place where a request becomes a query. The server, `import svc`, `svc recommend`, exports and
trainings ask here. The steps of an answer and their order are in `svc.model.final_ranking`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from svc.asking.fields import MAX_LIMIT, Part, invalid
from svc.asking.filtering import items_at
from svc.asking.history import by_event, not_seen
from svc.asking.offer import Offer
from svc.asking.requests import (
    AnyQuestion,
    ItemsRequest,
    PopularQuery,
    RecommendRequest,
    RelatedRequest,
    UsersRequest,
    lacks,
    refuse_without_effect,
)
from svc.asking.rules import Pins, rotated, rules_of
from svc.errors import UnknownSeedItems, UnknownUser, UsersNotServed
from svc.model.columns.feature_values import Encoded
from svc.model.ranking.item_sets import ItemSet, intersect
from svc.model.ranking.query import (
    NO_ITEMS,
    NOTHING_GIVEN,
    Audience,
    Given,
    NewCandidates,
    PinFault,
    Prepared,
    Profile,
    Query,
    Seeds,
    Trained,
    joined_profile,
    profile_of,
)
from svc.model.ranking.rerank import Pin, Rules
from svc.model.recommenders.base import Scorer, excluded_columns
from svc.model.user_ranker import owners

if TYPE_CHECKING:
    from svc.model.model import Model

MIN_HISTORY_OF_LIFT = 5
"""The least number of items in the history of a user ranked by lift, unless a request gives another number.

Lift misleads for shorter histories.
"""
NO_PROFILE = Seeds(NO_ITEMS, None)
_PLAIN_FIELDS = {"user_id", "limit"}


def plan(request: AnyQuestion | PopularQuery, offer: Offer) -> Prepared:
    """Return the query of a valid request, with the facts that its answer reports. Raises an ApiError.

    Compiling a filter takes 0.1 to 2 ms for each condition, unless it is cached (`compile_filters`).
    """
    if isinstance(request, RecommendRequest):
        return _recommend(request, offer)
    if isinstance(request, RelatedRequest):
        return _related(request, offer)
    if isinstance(request, UsersRequest):
        return _users(request, offer)
    return _popular(request, offer)


def known_user(offer: Offer, user: int, *, limit: int) -> Query:
    """Return the query for the training user in row `user`, as from a request that has only a user id.

    It has no rules of the recipe.
    """
    model = offer.model
    allowed, (hidden, hidden_new) = offer.allowed_items(), model.hidden_from(user)
    query = Query(
        limit,
        user,
        include_seen=model.repeats,
        allowed=_of_model(allowed, model),
        reordered=model.ranker is not None,
        summed=_summed(model, user),
    )
    if offer.new_items is not None:
        query = _with_candidates(query, offer, allowed, None, hidden_new)
    return _without(query, hidden)


def _recommend(request: RecommendRequest, offer: Offer) -> Prepared:
    """Return the query for a user. The profile of a known `user_id` is the training history.

    Items of `history` are added to the history of a known user, or replace it. If none of them is known, the training
    history stays. For an unknown user they are the whole history. If it has new items and no known ones, their features
    describe the user. Dislikes alone are not enough for a profile.

    Raises UnknownUser if there is no profile and no fallback. Raises FeaturesNotSupported and FeatureValueUnusable.
    """
    model, names, new = offer.model, offer.names, offer.new_items
    user = -1 if request.user_id is None else model.user_ids.index(request.user_id)
    # Most requests end here, which saves a tenth of the processor time of an answer.
    if user >= 0 and request.model_fields_set <= _PLAIN_FIELDS and not offer.policy.has_rules:
        return Prepared(known_user(offer, user, limit=request.limit), ())
    falls_back = offer.policy.popular_fallback if request.fallback is None else request.fallback == "popular"
    _require_meaning(request, falls_back=falls_back)
    dislikes = request.dislikes or ()
    include_seen = model.repeats if request.include_seen is None else request.include_seen
    # A model with `training.repeats` includes seen items by default, but only the client brings back hidden items.
    hidden, hidden_new = model.hidden_from(user, request.user_id, brings_back=request.include_seen is True)
    history, seen = by_event(request.history or (), model.events)
    chosen, against = names.history(history), names.dislikes(dislikes)
    exclude_items = [*request.exclude_items, *(dislike.item_id for dislike in dislikes)]
    allowed, rules, pins = _restrictions(request, offer)
    rules, not_shown = rotated(request, names, rules)
    described = {} if user >= 0 or len(chosen.columns) else names.describe([item.item_id for item in history])
    unknown = (*(item for item in chosen.unknown if item not in described), *against.unknown, *not_shown)
    query, ignored = _draft(request, offer, allowed, rules, exclude_items, unknown=unknown)
    query = query.of_profile(profile_of(chosen, model.history))._replace(
        reordered=model.ranker is not None, seed_features=tuple(described.values()), include_seen=include_seen
    )
    gone: dict[str, PinFault] = {}
    if new is not None:
        gone = {} if include_seen else dict.fromkeys(seen, "seen")
        # Replaces "seen": a pin that is both is reported as excluded, as in `_why_not_shown`.
        gone |= dict.fromkeys([*exclude_items, *hidden_new], "excluded")
        query = _with_candidates(query, offer, allowed, request.include_items, [*gone])
    query = _without(query, hidden)
    profile: Profile
    # If a history that replaces has no known item, the user keeps the training history.
    if user >= 0 and (request.history_mode == "append" or not len(chosen.columns)):
        query, profile = _of_user(query, model, user, chosen, against)
        # Features of a known user are documented as unused. Only a model that reads none reports them as ignored.
        unused = tuple(request.user_features or ()) if model.encoder("user") is None else ()
    else:
        query, profile, unused = _of_stranger(request, query, model, against, falls_back=falls_back)
    # Without such events `not_seen` stays empty, which leaves out all seeds without a set difference.
    differs = len(seen) < len(history) or (query.of_trained_user and model.history.is_seen is not None)
    if differs and not include_seen:
        query = query._replace(not_seen=not_seen(query, model.history, user, names.of_model(seen)))
    prepared = _finish(query, offer, ignored, pins, unused=unused, profile=profile, gone=gone)
    return prepared if request.shows_profile or prepared.query.popular else prepared._replace(profile=None)


def _require_meaning(request: RecommendRequest, *, falls_back: bool) -> None:
    """Raise ValidationFailed if fields of the request are missing, or contradict each other."""
    inputs = (request.user_id, request.user_features, request.history, request.fallback, request.dislikes)
    # An empty history counts as given. Its refusal comes later, as UnknownUser, and names the fallback as a remedy.
    if inputs == (None,) * len(inputs) and not falls_back:
        raise lacks("user_id", "user_features", "history", "fallback")
    refuse_without_effect(request)
    chosen = {interaction.item_id for interaction in request.history or ()} if request.dislikes else ()
    for position, dislike in enumerate(request.dislikes or ()):
        if dislike.item_id in chosen:
            message = "this item is in history too; leave it out of history or out of dislikes"
            raise invalid(["dislikes", position], message, "also_in_history")


def _of_user(query: Query, model: Model, user: int, chosen: Given, against: Given) -> tuple[Query, Profile]:
    """Return the query for a training user, and the kind of its profile.

    `chosen` are further items of the history, and `against` the dislikes.
    """
    profile: Profile = "user+history" if len(chosen.columns) else "user"
    scorer = model.scorer
    query = _with_dislikes(query, scorer, against)
    if profile == "user" and not len(query.dislikes) and not (query.explain and scorer.explains_by_profile):
        return query._replace(user=user, summed=_summed(model, user)), profile
    query = query.of_profile(joined_profile(model.history, user, chosen))._replace(of_trained_user=True)
    # Artifacts lack the features of training users, so their prior follows from the stored vector and history. Without
    # it even a dislike of weight 1e-9 changed 2 of the first 20 items.
    if scorer.feature_dim("user") is not None:
        query = query._replace(trained=Trained(user, joined_profile(model.history, user, NOTHING_GIVEN)))
    return query, profile


def _of_stranger(
    request: RecommendRequest, query: Query, model: Model, against: Given, *, falls_back: bool
) -> tuple[Query, Profile, tuple[str, ...]]:
    """Return the query for a user without training history, the kind of its profile, and its unused features.

    Raises UnknownUser if nothing is known of the user and `falls_back` is False.
    """
    if model.cold is not None:
        query = query.at_recency(model.cold_recency)
    has_history = bool(len(query.seeds) or query.seed_features)
    if not len(query.seeds):
        query = query._replace(reordered=False)  # the ranker was fitted and judged on histories
    if request.user_features is not None or has_history:
        query = _with_dislikes(query, model.scorer_of(query), against)
    if request.user_features is not None:
        vector, unused = model.encode("user", request.user_features)
        return query._replace(user_features=vector.dense()), "features+history" if has_history else "features", unused
    if has_history:
        return query, "history", ()
    if falls_back:
        # Nobody has chosen new items, so they have no place in a list by counts of choices.
        rules = query.rules if query.new is None else (query.rules or Rules())._replace(share=None)
        query = query.of_profile(NO_PROFILE)
        rules = None if rules == Rules() else rules
        return query._replace(popular=True, rules=rules, new=None, reordered=False), "popular", ()
    raise _unknown_user(request, model)


def _summed(model: Model, user: int) -> int:
    return len(model.history.items(user)) if model.scorer.sums_history else 0


def _unknown_user(request: RecommendRequest, model: Model) -> UnknownUser:
    """Return the error for a user of whom nothing is known. It says how the request could be answered."""
    if request.history:
        words = "nothing is known of this user: no item of the history is in the training data"
        return UnknownUser(f"{words}; fallback: popular answers anyway")
    if request.dislikes and request.user_id is None:
        words = "nothing is known of this user: dislikes are not a profile; give user_id, history or fallback"
        return UnknownUser(words)
    if request.user_id is None and not request.user_features:
        return UnknownUser("nothing is known of this user: the history is empty; fallback: popular answers anyway")
    return UnknownUser(UnknownUser.without_features) if model.encoder("user") is None else UnknownUser()


def _related(request: RelatedRequest, offer: Offer) -> Prepared:
    """Return the query for items related to the seeds. It treats the seeds as the history of an unknown user.

    `item_features` are the features of one unknown item, or a mapping from item ids to features. A known item in the
    mapping is a seed, and its features are ignored. A seed among the new items has the features in their list, unless
    the mapping has others. Other unknown seeds are left out. `user_features` are a prior beside the seeds.

    Raises UnknownSeedItems if no seed is left. Raises FeaturesNotSupported and FeatureValueUnusable.
    """
    if request.seed_items is None and request.item_features is None:
        raise lacks("seed_items", "item_features")
    model, names, seed_items = offer.model, offer.names, request.seed_items or ()
    allowed, rules, pins = _restrictions(request, offer)
    by_item = _by_item(request.item_features)
    seeds = names.of_model([*seed_items, *(item for item in by_item if item is not None)])
    unused: dict[str, None] = {}
    unseen: list[Encoded] = []
    for item, features in by_item.items():
        if item is None or model.item_ids.index(item) < 0:
            vector, others = model.encode("item", features)
            unseen.append(vector)
            unused |= dict.fromkeys(others)
    unseen += names.describe([item for item in dict.fromkeys(seed_items) if item not in by_item]).values()
    prior = None
    if request.user_features is not None:
        vector, others = model.encode("user", request.user_features)
        prior = vector.dense()
        unused |= dict.fromkeys(others)
    if not len(seeds) and not unseen:
        raise UnknownSeedItems() if model.encoder("item") else UnknownSeedItems(UnknownSeedItems.without_features)
    query, ignored = _draft(request, offer, allowed, rules, request.exclude_items, with_new=False)
    query = query._replace(seeds=seeds, seed_features=tuple(unseen), user_features=prior)
    return _finish(query, offer, ignored, pins, unused=tuple(unused), with_new=False)


def _popular(request: PopularQuery, offer: Offer) -> Prepared:
    """Return the query for the most chosen items of the training data. It has no rules and no new items."""
    _require_near(request.offset + request.limit, "query")
    allowed = offer.allowed_items(_filtered(request.filter, offer, "query"))
    limit, offset = request.limit + request.offset, request.offset
    query = Query(limit, allowed=_of_model(allowed, offer.model), popular=True, offset=offset)
    return Prepared(query, ())


def _users(request: UsersRequest, offer: Offer) -> Prepared:
    """Return the query that ranks users for an item, which a known `item_id` or `item_features` describe.

    Raises UsersNotServed, UnknownSeedItems, FeaturesNotSupported and FeatureValueUnusable.
    """
    if not offer.policy.users:
        raise UsersNotServed
    if request.item_id is None and request.item_features is None:
        raise lacks("item_id", "item_features")
    _require_near(request.offset + request.limit, "body")
    model, brings_back = offer.model, request.include_seen is True
    users = model.require_users()
    column = -1 if request.item_id is None else model.item_ids.index(request.item_id)
    vector, unused, exclude = None, tuple[str, ...](), _rows(model, request.exclude_users or ())
    if column < 0:
        if request.item_features is None:
            raise UnknownSeedItems(UnknownSeedItems.unknown_item)
        encoded, unused = model.encode("item", request.item_features)
        vector = users.vector_of(encoded)
        if request.item_id is not None and model.hidden_new is not None and model.hidden_new_ids is not None:
            # Values of 1 are permanent. Without `brings_back`, the least value 0 matches every hidden item.
            hiding = owners(model.hidden_new, model.hidden_new_ids.index(request.item_id), float(brings_back))
            exclude = np.concatenate([exclude, hiding])
    shortest = MIN_HISTORY_OF_LIFT if request.order == "lift" else 1
    audience = Audience(
        column,
        vector,
        request.order,
        min_history=shortest if request.min_history is None else request.min_history,
        include=None if request.include_users is None else _rows(model, request.include_users),
        exclude=exclude,
        brings_back=brings_back,
    )
    include_seen = model.repeats if request.include_seen is None else request.include_seen
    query = Query(request.limit + request.offset, offset=request.offset, audience=audience, include_seen=include_seen)
    return Prepared(query, unused)


def _rows(model: Model, users: Sequence[str]) -> NDArray[np.int32]:
    rows = model.user_ids.indices(users)
    return rows[rows >= 0]


def _require_near(end: int, part: Part) -> None:
    """Raise ValidationFailed if a page ends behind the place MAX_LIMIT of the ranking."""
    if end > MAX_LIMIT:
        message = f"offset and limit add up to more than {MAX_LIMIT}"
        raise invalid(["offset"], message, "too_far", part=part)


def _filtered(tree: object, offer: Offer, part: Part = "body") -> ItemSet | None:
    """Return the items that satisfy the filter of a request, or None for all items. Raises ValidationFailed."""
    return None if tree is None else items_at(offer.filters, ("filter",), tree, part)


def _restrictions(request: ItemsRequest, offer: Offer) -> tuple[ItemSet | None, Rules | None, Pins]:
    """Return the items that may be recommended (None: all), the rules and the pins. Raises ValidationFailed."""
    _require_near(request.offset + request.limit, "body")
    rules, pins = rules_of(request, offer)
    return offer.allowed_items(_filtered(request.filter, offer)), rules, pins


def _draft(
    request: ItemsRequest,
    offer: Offer,
    allowed: ItemSet | None,
    rules: Rules | None,
    exclude_items: Sequence[str],
    *,
    unknown: Sequence[str] = (),
    with_new: bool = True,
) -> tuple[Query, dict[str, None]]:
    """Return a query without its user, and the ids to report: `unknown`, and then unknown ids of `include_items`."""
    names, n_items = offer.names, offer.model.n_items
    ignored = dict.fromkeys(unknown)
    allowed, include_items = _of_model(allowed, offer.model), request.include_items
    if include_items is not None:
        columns = names.columns(include_items, with_new=with_new)
        ignored |= dict.fromkeys(map(include_items.__getitem__, np.flatnonzero(columns < 0).tolist()))
        of_model = columns[(columns >= 0) & (columns < n_items)]
        # Even if no id is known: then nothing may be ranked, instead of everything.
        allowed = intersect(allowed, ItemSet.of_columns(of_model, n_items))
    query = Query(
        limit=request.limit + request.offset,
        exclude=names.of_model(exclude_items),
        allowed=allowed,
        rules=rules,
        explain=request.explain or 0,
        offset=request.offset,
    )
    return query, ignored


def _of_model(allowed: ItemSet | None, model: Model) -> ItemSet | None:
    """Return the set without new items, whose columns scorers do not know. `_with_candidates` restricts these."""
    if allowed is None or allowed.n_items <= model.n_items:
        return allowed
    return ItemSet.of_flags(allowed.flags()[: model.n_items])


def _with_candidates(
    query: Query, offer: Offer, allowed: ItemSet | None, included: Sequence[str] | None, excluded: Sequence[str]
) -> Query:
    """Add to the query the new items that may be recommended. New items with `excluded` ids are left out."""
    new = offer.new_items
    assert new is not None, "asked only where there are new items"
    rows = new.candidates(excluded, included, allowed)
    if not len(rows):
        return query
    rules = (query.rules or Rules())._replace(share=new.share)
    return query._replace(new=NewCandidates(new, rows), rules=rules)


def _without(query: Query, items: NDArray[np.int32]) -> Query:
    """Return the query without the columns `items`."""
    return query._replace(exclude=np.union1d(query.exclude, items).astype(np.int32)) if len(items) else query


def _with_dislikes(query: Query, scorer: Scorer, against: Given) -> Query:
    """Add the dislikes to the query if `scorer`, which answers the query, reads dislikes."""
    if not len(against.columns) or not scorer.reads_dislikes:
        return query
    # Never None, because a query without `dislike_weights` has no dislikes (`Query.concatenate_signed`).
    weights = np.ones(len(against.columns)) if against.weights is None else against.weights
    return query._replace(dislikes=against.columns, dislike_weights=weights)


def _finish(
    query: Query,
    offer: Offer,
    ignored: Mapping[str, None],
    pins: Pins,
    *,
    unused: tuple[str, ...],
    profile: Profile | None = None,
    with_new: bool = True,
    gone: Mapping[str, PinFault] = MappingProxyType({}),
) -> Prepared:
    """Add to the query the pins that may be shown. Return it with the facts that its answer reports.

    Pins that may not be shown are among these facts, as ignored items and with the reason. `gone` has the reason for
    each new item that is left out by its id.
    """
    if not pins:
        return Prepared(query, unused, tuple(ignored), profile)
    n_items = offer.model.n_items
    columns = offer.names.columns([item for item, _ in pins], with_new=with_new and not query.popular)
    excluded = query.exclude if query.popular else excluded_columns(query, offer.model.history)
    shown = ~ItemSet.of_columns(excluded, n_items)
    if query.allowed is not None:
        shown &= query.allowed
    # Clipped only so that the look-up stays within the set. The first two conditions decide about these columns.
    may = (columns >= 0) & (columns < n_items) & shown.contains(columns.clip(0, n_items - 1))
    if query.new is not None:
        may |= np.isin(columns, n_items + query.new.rows)
    placed = tuple(Pin(int(columns[n]), pins[n][1]) for n in np.flatnonzero(may).tolist())
    ignored_pins = tuple(
        (item, gone.get(item, "filtered") if column >= n_items else _why_not_shown(column, query, excluded))
        for (item, _), column, shows in zip(pins, columns, may, strict=True)
        if not shows
    )
    rules = (query.rules or Rules())._replace(pins=placed)
    # A query whose pins are all hidden stays without rules, which would raise its cost class.
    active = rules if rules != Rules() or query.new is not None else None
    reported = tuple(dict.fromkeys((*ignored, *(item for item, _ in ignored_pins))))
    return Prepared(query._replace(rules=active), unused, reported, profile, ignored_pins)


def _why_not_shown(column: np.int32, query: Query, excluded: NDArray[np.int32]) -> PinFault:
    """Return the reason for leaving out the item of a pin. `excluded` are all columns that must not be recommended."""
    if column < 0:
        return "unknown"
    if column in query.exclude:
        return "excluded"
    return "seen" if column in excluded else "filtered"


def _by_item(item_features: Mapping[str, object] | None) -> dict[str | None, Mapping[str, object]]:
    """Return the features by item id. The key is None for one item without an id."""
    if item_features is None:
        return {}
    # No value of a feature is an object, so objects can only be the features of one item each.
    if item_features and all(isinstance(value, Mapping) for value in item_features.values()):
        return {item: features for item, features in item_features.items() if isinstance(features, Mapping)}
    return {None: item_features}

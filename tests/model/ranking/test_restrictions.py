"""Restrictions apply before the best items are selected. Rankings are compared with brute force over all items."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svc.errors import UnknownUser
from svc.model.history import History
from svc.model.ids import IdTable
from svc.model.model import Model
from svc.model.ranking.item_sets import ItemSet
from svc.model.ranking.query import Interaction, Prepared, Query, Ranking
from svc.model.recommenders.factor_index import FactorIndex
from svc.model.recommenders.factors import BPRScorer, SVDScorer
from tests import planned
from tests.families import EVERY_FAMILY, N_ITEMS, N_USERS, family
from tests.planned import Restriction, without_chosen

model_of = cache(family)
sets = st.none() | st.integers(0, 2**N_ITEMS - 1).map(
    lambda bits: ItemSet.of_flags(np.array([bits >> place & 1 for place in range(N_ITEMS)], dtype=np.bool_))
)
ids = st.integers(0, N_ITEMS + 3).map(lambda number: f"i{number}")
dislikes = st.builds(Interaction, ids, st.sampled_from([0.0, 1.0, 2.5, 10.0]))
interactions = st.builds(Interaction, ids, st.sampled_from([1.0, 0.5, 3.0]))


@st.composite
def questions(draw: st.DrawFn) -> tuple[dict[str, Any], Restriction]:
    """Return a strategy for requests of known or unknown users, and the items that their answers may hold."""
    offset = draw(st.integers(0, N_ITEMS + 2))
    include = draw(st.none() | st.lists(ids, max_size=12))
    asked = {
        "user_id": draw(st.none() | st.integers(0, N_USERS).map(lambda number: f"u{number}")),
        "user_features": None,
        "limit": draw(st.integers(1, N_ITEMS)),
        "exclude_items": draw(st.lists(ids, max_size=6)),
        "include_seen": draw(st.booleans()),
        "history": draw(st.lists(interactions, max_size=6)),
        "replace": draw(st.booleans()),
        "fallback": True,
        "dislikes": draw(st.lists(dislikes, max_size=4)),
    }
    return without_chosen(asked), Restriction(offset, include, draw(sets))


def everything(model: Model, query: Query) -> Ranking:
    """Return the ranking of all items for the user of a request."""
    return model.rank([query._replace(limit=N_ITEMS, include_seen=True, allowed=None, exclude=query.exclude[:0])])[0]


def brute_force(model: Model, prepared: Prepared, asked: dict[str, Any], restriction: Restriction) -> list[str]:
    """Return the ids of the page, by checking every item in turn."""
    query, page = prepared.query, []
    seen: set[int] = set()
    if not asked["include_seen"] and not query.popular:
        seen = set(query.seeds.tolist()) | (set(model.history.items(query.user).tolist()) if query.user >= 0 else set())
    allowed = range(N_ITEMS) if restriction.allowed is None else restriction.allowed.columns().tolist()
    disliked = {dislike.item_id for dislike in asked["dislikes"]}
    for column in everything(model, query).items.tolist():
        name = model.item_ids.at(column)
        named = restriction.include_items is None or name in restriction.include_items
        if column in allowed and named and name not in (*asked["exclude_items"], *disliked) and column not in seen:
            page.append(name)
    return page[restriction.offset : restriction.offset + asked["limit"]]


@pytest.mark.parametrize("name", EVERY_FAMILY)
@settings(max_examples=12)
@given(some=st.lists(questions(), min_size=1, max_size=12))
def test_the_answer_is_that_of_brute_force_alone_and_in_a_batch(
    name: str, some: list[tuple[dict[str, Any], Restriction]]
) -> None:
    """All controls of a request are mixed. Bits are equal alone and in a batch."""
    model = model_of(name)
    prepared = [planned.recommend(model, **asked, restriction=restriction) for asked, restriction in some]
    batch = model.rank([one.query for one in prepared])
    for one, ranking, (asked, restriction) in zip(prepared, batch, some, strict=True):
        page = ranking.from_place(one.query.offset)
        assert [model.item_ids.at(column) for column in page.items] == brute_force(model, one, asked, restriction)
        alone = model.rank([one.query])[0]
        assert alone.items.tolist() == ranking.items.tolist()
        assert alone.scores.tobytes() == ranking.scores.tobytes()


@pytest.mark.parametrize("scorer", [SVDScorer, BPRScorer])
@pytest.mark.parametrize("share", [0.9, 0.4, 0.13, 0.05, 0.001])
def test_a_large_index_is_scanned_exactly_under_filters(scorer: Any, share: float) -> None:
    """Scans of these sizes prune, gather and pass several blocks. Some item vectors are zero."""
    rng = np.random.default_rng(int(share * 1000))
    n_items, n_users, components = 20_000, 9, 8
    items = (rng.standard_normal((n_items, components + (scorer is BPRScorer)))).astype(np.float32)
    items *= rng.exponential(size=(n_items, 1)).astype(np.float32)
    items[rng.choice(n_items, 3000, replace=False)] = 0
    seen = np.sort(rng.choice(n_items, (n_users, 40)), axis=1).astype(np.int32)
    model = Model(
        user_ids=IdTable.from_ids([f"u{user}" for user in range(n_users)]),
        item_ids=IdTable.from_ids([f"i{item}" for item in range(n_items)]),
        history=History(np.arange(0, n_users * 40 + 1, 40), seen.ravel()),
        scorer=scorer(rng.standard_normal((n_users, components)).astype(np.float32), FactorIndex.build(items)),
        features=None,
    )
    model.ready()
    shared = ItemSet.of_flags(rng.random(n_items) < share)
    own = [ItemSet.of_flags(rng.random(n_items) < share) if user % 3 == 0 else shared for user in range(n_users)]
    queries = [Query(limit=(5, 20, 700)[user % 3], user=user, allowed=own[user]) for user in range(n_users)]
    queries += [query._replace(user=-1, seeds=seen[query.user][:3]) for query in queries]
    full = model.rank([query._replace(limit=n_items, allowed=None) for query in queries])
    for query, ranking, every in zip(queries, model.rank(queries), full, strict=True):
        assert query.allowed is not None
        expected = every.items[query.allowed.flags()[every.items]][: query.limit]
        assert ranking.items.tolist() == expected.tolist()
        assert model.rank([query])[0].scores.tobytes() == ranking.scores.tobytes()


def test_the_profile_names_the_known_parts_of_the_request() -> None:
    """A history with `replace` gives the query of that history alone."""
    model = model_of("IALS")
    given = [Interaction("i3"), Interaction("none"), Interaction("i1", 2.0), Interaction("i3")]

    def profile(**more: Any) -> Prepared:
        return planned.recommend(model, **{"user_id": None, "user_features": None, "limit": 3, **more})

    assert profile(user_id="u1").profile == "user"
    assert profile(user_id="u1", history=[Interaction("none")], replace=True).profile == "user"
    assert profile(user_id="u1", history=given).profile == "user+history"
    assert profile(user_id="no", user_features={}).profile == "features"
    assert profile(user_features={"tag": "a"}, history=given).profile == "features+history"
    assert profile(fallback=True, history=[Interaction("none")]).profile == "popular"
    replaced = profile(user_id="u1", history=given, replace=True)
    assert (replaced.profile, replaced.ignored_items) == ("history", ("none",))
    assert repr(replaced) == repr(profile(history=given))
    assert replaced.query.seeds.tolist() == [1, 3]
    assert replaced.query.seed_weights is not None
    assert replaced.query.seed_weights.tolist() == [2.0, 2.0]
    with pytest.raises(UnknownUser, match="no item of the history"):
        profile(history=[Interaction("none")])


@pytest.mark.parametrize("user", [None, "u5"])
@pytest.mark.parametrize("name", EVERY_FAMILY)
def test_dislikes_are_solved_as_the_textbook_says(name: str, user: str | None) -> None:
    """Least squares treats dislikes as confidence in zero, and sums subtract them. Other models only leave them out."""
    model, items = model_of(name), np.arange(N_ITEMS, dtype=np.int32)
    asked = {"user_id": user, "user_features": None, "limit": N_ITEMS, "include_seen": True}
    history = [Interaction("i3", 2.0), Interaction("i7"), Interaction("i20", 0.5)]
    against = [Interaction("i5", 1.5), Interaction("none"), Interaction("i9", 0.0), Interaction("i30", 3.0)]
    plain, (prepared, ranking) = (
        (prepared, model.rank([prepared.query])[0])
        for prepared in (planned.recommend(model, **asked, history=history, dislikes=some) for some in ((), against))
    )
    assert prepared.ignored_items == ("none",)
    assert not {5, 9, 30} & set(ranking.items.tolist())
    row, found = np.zeros(N_ITEMS), ranking.scores
    weights = plain[0].query.seed_weights
    row[plain[0].query.seeds] = 1.0 if weights is None else weights
    dislikes = np.zeros(N_ITEMS)
    dislikes[[5, 30]] = 1.5, 3.0
    scorer: Any = model.scorer

    def of_sums(part: Any, values: np.ndarray) -> np.ndarray:
        rows = np.flatnonzero(values).astype(np.int32)
        return np.asarray(part.totals(rows, values[rows]))

    def of_factors(part: Any, values: np.ndarray) -> np.ndarray:
        vectors = part.index.vectors(items)
        return np.asarray(vectors @ (values @ vectors))

    if name == "IALS":
        v, solver = scorer.index.vectors(items), scorer.least_squares
        own = np.zeros(N_ITEMS)
        own[model.history.items(5)] = 1.0
        grams = [(v.T * (solver.alpha0 + values)) @ v for values in (own, row + dislikes)]
        of_own, r = (solver.regularization(np.count_nonzero(values), N_ITEMS) for values in (own, row))
        left = grams[1] + r * np.eye(v.shape[1])
        # The features of a training user are known only by the vector, which solves the equations of the history.
        prior = (grams[0] + of_own * np.eye(v.shape[1])) @ scorer.users[5] - v.T @ own
        expected = v @ np.linalg.solve(left, v.T @ row + (0.0 if user is None else r / of_own * prior))
    elif name in ("neighbours", "dense_weights"):
        expected = of_sums(scorer, row - dislikes)
    elif name == "SVD":
        expected = of_factors(scorer, row - dislikes)
    elif name in ("blend", "popular_blend"):
        parts = of_factors(scorer.factors, row - dislikes), of_sums(scorer.sums[0], row - dislikes)
        expected = sum(w * part / part.std() for w, part in zip(scorer.weights, parts, strict=True))
        if scorer.popularity is not None:
            expected += scorer.popularity.addends
    else:
        expected = np.zeros(N_ITEMS)
        expected[plain[1].items] = plain[1].scores
    np.testing.assert_allclose(found, expected[ranking.items], rtol=1e-9, atol=1e-9)
    assert (np.diff(found) <= 0).all()


def test_an_empty_history_is_no_profile() -> None:
    """The error does not speak of a user id, which the request does not have."""
    with pytest.raises(UnknownUser, match="the history is empty; fallback: popular answers anyway"):
        planned.recommend(model_of("IALS"), user_id=None, user_features=None, history=[])


def test_dislikes_are_no_profile() -> None:
    """Dislikes alone raise UnknownUser, or give the fallback without their items. Beside features, they have weight."""
    model, nobody = model_of("IALS"), {"user_id": None, "user_features": None, "limit": N_ITEMS}
    against = [Interaction("i5", 2.0)]
    with pytest.raises(UnknownUser, match="dislikes are not a profile"):
        planned.recommend(model, **nobody, dislikes=against)
    popular = planned.recommend(model, **nobody, dislikes=against, fallback=True)
    assert popular.profile == "popular"
    assert 5 not in model.rank([popular.query])[0].items
    described = nobody | {"user_features": {"tag": "a", "age": 48}}
    with_them = model.rank([planned.recommend(model, **described, dislikes=against).query])[0]
    without = model.rank([planned.recommend(model, **described, exclude_items=["i5"]).query])[0]
    v, solver = model.scorer.index.vectors(np.arange(N_ITEMS)), model.scorer.least_squares  # type: ignore[attr-defined]
    weight_on_zero = 2.0 * v[5, 0] ** 2
    before = solver.alpha0 * float(v[:, 0] @ v[:, 0]) + solver.regularization(0, N_ITEMS)
    factor = before / (before + weight_on_zero)  # with one component, the right side stays and the left side grows
    np.testing.assert_allclose(with_them.scores, without.scores * factor, rtol=1e-9)


def test_repeated_items_add_to_the_weights_of_the_known_history() -> None:
    """An item of the known history counts once more if the request repeats it."""
    model = model_of("neighbours")
    column = int(model.history.items(3)[0])
    asked = {"user_id": "u3", "user_features": None, "limit": 3}
    query = planned.recommend(model, **asked, history=[Interaction(f"i{column}", 2.5)]).query
    assert query.seed_weights is not None
    assert dict(zip(query.seeds.tolist(), query.seed_weights.tolist(), strict=True))[column] == 3.5

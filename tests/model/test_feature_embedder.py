"""New items in every ranking. Their places equal those of a naive implementation, with rules and filters."""

from __future__ import annotations

from collections import Counter
from copy import copy
from functools import cache
from itertools import chain
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from svc.model.history import History
from svc.model.ids import IdTable
from svc.model.model import Model
from svc.model.ranking.filter_fields import LabelField
from svc.model.ranking.item_sets import ItemSet
from svc.model.ranking.new_items import NewItems
from svc.model.ranking.query import Interaction, Prepared, Query
from svc.model.ranking.rerank import Boost, Limit, Rules, Share
from svc.model.ranking.steps import result_of
from svc.model.recommenders.base import Scorer
from svc.model.recommenders.blend import BlendScorer
from svc.model.recommenders.factors import ColdStartScorer, IALSScorer
from tests import planned
from tests.families import EVERY_FAMILY, N_ITEMS, N_USERS, family
from tests.model.ranking.brute_force import NEAR, Naive, variations
from tests.planned import Restriction, without_chosen

N_NEW = 30
N_ALL = N_ITEMS + N_NEW
IDS = [*(f"i{item}" for item in range(N_ITEMS)), *(f"n{row}" for row in range(N_NEW))]
NAMES = (*EVERY_FAMILY, "aware blend")
LEARNED, OTHER = 0.7, 0.1
"""Recency of the part with features, and of the other parts, in models with a recency for each part."""
HIDDEN = {
    "u1": {"i11": True, "i20": False, "n3": False, "n8": True},
    "u5": {"i2": False, "n2": False, "n9": True},
}
"""Items hidden from each user. True hides an item for good."""
LABELS = ["ab"[item % 2] + ("|c" if item % 5 == 0 else "") for item in range(N_ALL)]
LABELS_OF = [frozenset(labels.split("|")) for labels in LABELS]
FIELD = LabelField.read("genres", "multi_label", "|", LABELS, N_ALL)


@cache
def model_of(name: str) -> Model:
    """Return a model of a family with an embedder. The embedder is another model, unless the family is iALS."""
    aware = family("IALS", seed=11)
    if name == "IALS":
        return aware
    if name == "aware blend":
        other = cast(Any, family("neighbours").scorer)
        scorer: Scorer = BlendScorer.of(cast(IALSScorer, aware.scorer), [other], [0.5, 0.5], aware.history)
        cold = None
    else:
        scorer, cold = family(name).scorer, ColdStartScorer.of(cast(IALSScorer, aware.scorer))
    made = Model(
        user_ids=aware.user_ids,
        item_ids=aware.item_ids,
        history=aware.history,
        scorer=scorer,
        features=aware.features,
        cold=cold,
    )
    made.ready()
    return made


@cache
def model_of_recencies(name: str) -> Model:
    """Return a blend whose embedder has the recency LEARNED.

    The embedder is a part of the blend, or a cold-start model beside it. A blend with a cold-start model has the
    recency OTHER.
    """
    plain = model_of(name)
    known, is_beside = plain.history, plain.cold is not None
    history = History(known.offsets, known.columns, recency=OTHER if is_beside else LEARNED, recency_beside=is_beside)
    factors, sums = (plain.scorer.factors, plain.scorer.sums) if isinstance(plain.scorer, BlendScorer) else (None, ())
    scorer = BlendScorer.of(factors, sums, [0.5, 0.5], known)
    scorer.measure(history)
    made = Model(
        user_ids=plain.user_ids,
        item_ids=plain.item_ids,
        history=history,
        scorer=scorer,
        features=plain.features,
        cold=plain.cold,
        cold_recency=0.0 if plain.cold is None else LEARNED,
    )
    made.ready()
    return made


@cache
def hiding(name: str) -> Model:
    """Return the model with the hidden items HIDDEN. Some of them are new items."""
    made = copy(model_of(name))
    for prefix, attribute in (("i", "hidden"), ("n", "hidden_new")):
        rows = [HIDDEN.get(f"u{user}", {}) for user in range(N_USERS)]
        own = [{int(item[1:]): always for item, always in row.items() if item[0] == prefix} for row in rows]
        columns = np.array([column for row in own for column in row], dtype=np.int32)
        values = np.array([1.0 if always else 0.5 for row in own for always in row.values()], dtype=np.float32)
        setattr(made, attribute, History(np.cumsum([0, *map(len, own)]), columns, values))
    made.hidden_new_ids = IdTable.from_ids([f"n{row}" for row in range(N_NEW)])
    made.ready()
    return made


@cache
def new_items(max_share: float | None, min_share: float = 0.0) -> NewItems:
    """Return new items: some of equal vectors, some better and some worse than all items of the model."""
    vectors = np.random.default_rng(3).integers(-20, 21, (N_NEW, 1)) / 8
    return NewItems(IdTable.from_ids([f"n{row}" for row in range(N_NEW)]), vectors, N_ITEMS, max_share, min_share)


def embedder_scorer(model: Model) -> IALSScorer:
    """Return the embedder's scorer."""
    part = model.cold or model.scorer
    return cast(IALSScorer, part.factors if isinstance(part, BlendScorer) else part)


def scores_by_features(model: Model, query: Query, recency: float = LEARNED) -> NDArray[np.float64]:
    """Return the embedder's score of every item, new ones last: the user vector times all item vectors."""
    part = embedder_scorer(model)
    if query.user >= 0 and not len(part.users):
        seeds = model.history.items(query.user)
        beside = (None, np.arange(len(seeds))[::-1]) if model.history.recency_beside else None
        query = query._replace(user=-1, seeds=seeds, seeds_beside=beside)
    if query.seeds_beside is not None:
        values, positions = query.seeds_beside
        weights = (1.0 if values is None else values) * np.exp(-recency * positions)
        query = query._replace(seed_weights=weights, seeds_beside=None)
    user = part.users[query.user].astype(float) if query.user >= 0 else part.embed_cold([query])[0]
    known = part.index.vectors(np.arange(N_ITEMS, dtype=np.int32))
    return np.concatenate([known, new_items(None).vectors]) @ user


class NaiveWithNew(Naive):
    """The naive choice of a page among the items of a model and new items."""

    def __init__(self, model: Model, query: Query, may: NDArray[np.bool_]) -> None:
        """Rank all items. `may` says which of them the request permits, (N_ALL,)."""
        super().__init__(query.rules or Rules(), query.limit, IDS)
        nothing = query.exclude[:0]
        plain = query._replace(limit=N_ITEMS, rules=None, new=None, explain=0, include_seen=True, allowed=None)
        (known,) = model.rank([plain._replace(exclude=nothing)])
        by_features = scores_by_features(model, query)
        new = sorted(N_ITEMS + np.flatnonzero(may[N_ITEMS:]), key=lambda column: (-by_features[column], column))
        answering, part = model.scorer_of(query), embedder_scorer(model)
        own = answering is part or (answering.kind == "blend" and query.user_features is not None)
        order = [column for column in known.items.tolist() if may[column]]
        scores = dict(zip(known.items.tolist(), known.scores.tolist(), strict=True))
        self.ties: dict[int, tuple[int, int]] = {column: (column, 0) for column in (*order, *new)}
        ranked: list[int] = []
        waiting = list(new)
        above = np.sort(by_features[order])[::-1]
        for rank, column in enumerate(order):
            while waiting and np.count_nonzero(above >= by_features[waiting[0]]) <= rank:
                ranked.append(waiting.pop(0))
                self._stand(ranked[-1], column, scores, by_features, own=own, step=len(ranked) - 2 * N_ALL)
            ranked.append(column)
        for step, column in enumerate(waiting, start=1):
            ranked.append(column)
            self._stand(column, order[-1] if order else -1, scores, by_features, own=own, step=step)
        self.scores = scores
        self.similar = similarities(model, answering)
        self.rank(ranked, [scores[column] for column in ranked], self.ties)

    def _stand(
        self, column: int, anchor: int, scores: dict[int, float], by_features: Any, *, own: bool, step: int
    ) -> None:
        if own or anchor < 0:
            scores[column] = float(by_features[column])
        else:
            scores[column], self.ties[column] = scores[anchor], (anchor, step)

    def left(self) -> list[int]:
        taken = Counter(label for chosen in self.chosen for label in LABELS_OF[chosen])
        full = {label for label, count in taken.items() if any(count >= limit.most for limit in self.rules.limits)}
        share, gone = self.rules.share, {*self.chosen, *self.pinned}
        late = share is not None and self.n_new() + 1 > share.most * (len(self.chosen) + 1) + NEAR
        return [
            column
            for column in self.ranked
            if column not in gone and not full & LABELS_OF[column] and not (late and column >= N_ITEMS)
        ]

    def n_new(self) -> int:
        return sum(chosen >= N_ITEMS for chosen in self.chosen)

    def due(self, left: list[int]) -> int | None:
        """Return the best new item if one must come next.

        It gets the score of the best item that could come instead.
        """
        share = self.rules.share
        if share is None or self.n_new() + 1 > share.least * (len(self.chosen) + 1) + NEAR:
            return None
        new = next((column for column in left if column >= N_ITEMS), None)
        if new is not None:
            self.scores[new] = self.scores[left[0]]
        return new


@cache
def similarities(model: Model, answering: Scorer) -> NDArray[np.float64]:
    """Return the similarities of all pairs: by the vectors of the embedder if one of the two is new."""
    every = np.arange(N_ITEMS, dtype=np.int32)
    vectors = np.concatenate([embedder_scorer(model).index.vectors(every), new_items(None).vectors])[:, 0]
    found = np.sign(vectors)[:, np.newaxis] * np.sign(vectors)
    among_known = result_of(answering.similar(every))
    found[:N_ITEMS, :N_ITEMS] = [among_known(place) for place in range(N_ITEMS)]
    return np.asarray(found, dtype=np.float64)


seeds = st.integers(0, 2**32)
some_items = seeds.map(lambda seed: np.random.default_rng(seed).random(N_ALL) < 0.5)


def ids_of(flags: NDArray[np.bool_]) -> list[str]:
    """Return the ids of the flagged items."""
    return [f"i{column}" if column < N_ITEMS else f"n{column - N_ITEMS}" for column in np.flatnonzero(flags).tolist()]


bodies = st.fixed_dictionaries(
    {
        "user_id": st.sampled_from(["u1", "u5", "u11", "nobody"]),
        "user_features": st.sampled_from([None, None, {"tag": "a", "age": 20}]),
        "limit": st.integers(1, 25),
        "exclude_items": st.just([]) | some_items.map(ids_of),
        "history": st.just([]) | st.just([Interaction("i3"), Interaction("n2")]),
        "replace": st.booleans(),
        "include_seen": st.booleans(),
        "fallback": st.just(True),
        "dislikes": st.lists(
            st.builds(Interaction, st.sampled_from(IDS), st.sampled_from([0.0, 1.0, 3.0])), max_size=3
        ),
    }
).map(without_chosen)
sets = some_items.map(ItemSet.of_flags)
rules = st.none() | st.builds(
    Rules,
    diversity=st.sampled_from([0.0, 0.0, 0.3, 1.0]),
    limits=st.just(()) | st.sampled_from([1, 3, 9]).map(lambda most: (Limit(FIELD, most),)),
    boosts=st.just(()) | st.lists(st.builds(Boost, sets, st.sampled_from([0.1, 0.5, 1.0, 2.0])), max_size=2).map(tuple),
    pins=st.just(()),
    share=st.none(),
    rotation=st.none(),
)
restrictions = st.builds(
    Restriction,
    offset=st.just(0) | st.integers(0, 20),
    allowed=st.none() | sets,
    include_items=st.none() | some_items.map(ids_of),
    rules=rules,
    pins=st.just([]) | st.just([("n4", 1), ("i7", 3), ("n9", 60), ("none", 2)]),
    new=st.sampled_from([None, 0.0, 0.1, 0.2, 0.29, 1.0]).map(new_items)
    | st.sampled_from([(None, 0.3), (0.2, 0.1), (0.29, 0.29), (1.0, 0.5), (1.0, 1.0)]).map(
        lambda both: new_items(*both)
    ),
    explain=st.sampled_from([0, 0, 2]),
    variation=st.none() | variations(IDS),
)


def shown(model: Model, query: Query, body: dict[str, Any], restriction: Restriction) -> NDArray[np.bool_]:
    """Return whether the request permits each item, (N_ALL,)."""
    allowed = np.ones(N_ALL, dtype=np.bool_) if restriction.allowed is None else restriction.allowed.flags()
    gone = {*body["exclude_items"], *(dislike.item_id for dislike in body["dislikes"])}
    if not body["include_seen"]:
        gone |= {interaction.item_id for interaction in body["history"]}
        if query.user >= 0 or query.of_trained_user:
            gone |= {f"i{column}" for column in model.history.items(model.user_ids.index(body["user_id"]))}
    hidden = HIDDEN.get(body["user_id"], {}) if model.hidden is not None else {}
    gone |= {item for item, always in hidden.items() if always or not body["include_seen"]}
    included = IDS if restriction.include_items is None else restriction.include_items
    return np.array([allowed[place] and name not in gone and name in included for place, name in enumerate(IDS)])


def check(model: Model, questions: list[tuple[dict[str, Any], Restriction]]) -> list[Prepared]:
    """Check a request alone and in a batch, including the scores of the places."""
    prepared: list[Prepared] = [planned.recommend(model, **body, restriction=one) for body, one in questions]
    for one, ranking, asked in zip(prepared, model.rank([one.query for one in prepared]), questions, strict=True):
        (alone,) = model.rank([one.query])
        found = ranking.items.tolist()
        assert alone.scores.tobytes() == ranking.scores.tobytes()
        assert (alone.items.tolist(), alone.reasons, alone.because) == (found, ranking.reasons, ranking.because)
        if one.query.new is None:
            assert max(found, default=0) < N_ITEMS
            continue
        assert one.query.rules is not None
        naive = NaiveWithNew(model, one.query, shown(model, one.query, *asked))
        assert found == naive.page(found)
        expected = np.array([naive.scores[column] for column in found])
        if one.query.explain:  # the score that the reasons explain
            by_features = scores_by_features(model, one.query)
            page = [place for place, column in enumerate(found) if column >= N_ITEMS and place >= one.query.offset]
            expected[page] = by_features[ranking.items[page]]
        np.testing.assert_allclose(ranking.scores, expected, atol=NEAR)
        reasons = ranking.reasons or ((),) * len(found)
        assert [column >= N_ITEMS for column in found] == ["new" in reason for reason in reasons]
    return prepared


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=12)
@given(questions=st.lists(st.tuples(bodies, restrictions), min_size=4, max_size=9))
def test_a_new_item_stands_where_the_embedder_would_put_it(name: str, questions: Any) -> None:
    """A new item is placed by its own score, or by its rank if another part answers.

    Requests have all controls.
    """
    check(hiding(name), questions)


def test_new_items_reach_their_minimum_share() -> None:
    """Equal bounds fix the number of new items among the first n. Consecutive pages give the whole ranking."""
    assert [Share(0, 0.29).room(n) for n in (1, 3, 4, 100)] == [0, 0, 1, 29]
    model = model_of("neighbours")

    def page(limit: int, offset: int, *shares: float) -> tuple[list[int], list[float]]:
        restriction = Restriction(new=new_items(*shares), offset=offset)
        asked = planned.recommend(model, user_id="u1", user_features=None, limit=limit, restriction=restriction)
        (ranking,) = model.rank([asked.query])
        return ranking.items[offset:].tolist(), ranking.scores[offset:].tolist()

    items, scores = page(40, 0, 0.3, 0.3)
    n_new = np.cumsum(np.array(items) >= N_ITEMS)
    np.testing.assert_array_equal(n_new, np.floor(0.3 * np.arange(1, 41) + NEAR))
    pages = [page(5, offset, 0.3, 0.3) for offset in range(0, 40, 5)]
    assert ([*chain(*(of for of, _ in pages))], [*chain(*(of for _, of in pages))]) == (items, scores)
    known = [column for column in items if column < N_ITEMS]
    without = [column for column in page(40, 0, 0.0)[0] if column < N_ITEMS]
    assert known == without[: len(known)]
    # Scores fall only with a maximum of 1: with a lower one, a new item that had to wait follows lower scores.
    falling = page(40, 0, 1.0, 0.3)[1]
    assert falling == sorted(falling, reverse=True)
    assert sorted(page(40, 0, 1.0, 1.0)[0][:N_NEW]) == [*range(N_ITEMS, N_ALL)]


def test_a_new_item_is_explained_by_its_own_score() -> None:
    """The explanation is that of the embedder's score."""
    for name in ("IALS", "neighbours", "aware blend"):
        model = model_of(name)
        restriction = Restriction(new=new_items(None), explain=10)
        query = planned.recommend(
            model, user_id="u5", user_features=None, limit=N_ALL, include_seen=True, restriction=restriction
        ).query
        (ranking,) = model.rank([query])
        assert len(ranking.because) == len(ranking.items) == N_ALL
        assert any(because.reasons for because in ranking.because)
        for because in ranking.because:
            if because.reasons:
                assert abs(sum(share for _, share in because.reasons) + because.rest - 1) < NEAR


def test_the_embedder_weighs_histories_by_its_own_recency() -> None:
    """Requests have an unknown or a known user, with and without a history.

    The recency of other parts would reverse the order of new items for some of them.
    """
    model = model_of_recencies("blend")
    by_vector = np.argsort(embedder_scorer(model).index.vectors(np.arange(N_ITEMS, dtype=np.int32))[:, 0])
    history = [Interaction(f"i{item}") for item in (*by_vector[-3:], by_vector[0])]
    users = ["nobody", *(f"u{user}" for user in range(0, 12, 2))]
    of = [{"user_id": user, "history": given} for given in (history, []) for user in users]
    plain = {"user_features": None, "limit": 20, "fallback": True, "exclude_items": [], "include_seen": False}
    asked = [({**plain, "dislikes": [], **who}, Restriction(new=new_items(None, 0.1))) for who in of]
    turned: dict[str | None, int] = {}
    for prepared in check(model, asked):
        query = prepared.query
        if query.seeds_beside is not None or (query.user >= 0 and not len(embedder_scorer(model).users)):
            signs = [np.sign(scores_by_features(model, query, recency)) for recency in (LEARNED, OTHER)]
            turned[prepared.profile] = turned.get(prepared.profile, 0) + bool((signs[0] == -signs[1]).all())
        elif prepared.profile == "history":  # answered by the learning part itself, which has weighed it already
            assert query.seed_weights is not None
            np.testing.assert_allclose(query.seed_weights, np.exp(-LEARNED * np.arange(4)[::-1]))
    assert turned.keys() == {"user", "user+history"}
    assert all(turned.values()), turned


def prior_of(model: Model, user: int) -> NDArray[np.float64]:
    """Return the prior of a training user with features, for whom the stored vector is the solution."""
    part = embedder_scorer(model)
    v, solver, row = part.index.vectors(np.arange(N_ITEMS, dtype=np.int32)), part.least_squares, np.zeros(N_ITEMS)
    own, weights = model.history.items(user), model.history.weigh(user)
    row[own] = 1.0 if weights is None else weights
    r = solver.regularization(len(own), N_ITEMS)
    left = (v.T * (solver.alpha0 + row)) @ v + r * np.eye(v.shape[1])
    prior: NDArray[np.float64] = (left @ part.users[user] - v.T @ row) / r
    return prior


@pytest.mark.parametrize("user", [None, "u5"])
def test_recency_does_not_decay_dislikes_in_a_blend(user: str | None) -> None:
    """Recency decays the history but not the dislikes, which are current."""
    model = model_of_recencies("aware blend")
    scorer: Any = model.scorer
    query = planned.recommend(
        model,
        user_id=user,
        user_features=None,
        limit=N_ITEMS,
        include_seen=True,
        history=[Interaction(f"i{item}") for item in (3, 20, 7)],
        dislikes=[Interaction("i5", 1.5), Interaction("i30", 3.0)],
    ).query
    dislikes = np.zeros(N_ITEMS)
    dislikes[[5, 30]] = 1.5, 3.0
    row = np.zeros(N_ITEMS)
    row[query.seeds] = query.seed_weights
    v, solver = scorer.factors.index.vectors(np.arange(N_ITEMS, dtype=np.int32)), scorer.factors.least_squares
    left = (v.T * (solver.alpha0 + row + dislikes)) @ v
    r = solver.regularization(np.count_nonzero(row), N_ITEMS)
    left += r * np.eye(v.shape[1])
    right = v.T @ row + (0.0 if user is None else r * prior_of(model, 5))
    values = row - dislikes
    columns = np.flatnonzero(values).astype(np.int32)
    parts = v @ np.linalg.solve(left, right), scorer.sums[0].totals(columns, values[columns])
    expected = sum(w * part / part.std() for w, part in zip(scorer.weights, parts, strict=True))
    (ranking,) = model.rank([query])
    assert not {5, 30} & set(ranking.items.tolist())
    np.testing.assert_allclose(ranking.scores, expected[ranking.items], rtol=1e-9, atol=1e-9)


def test_popular_and_related_items_contain_no_new_items() -> None:
    model = model_of("neighbours")
    restriction = Restriction(allowed=ItemSet.of_flags(np.ones(N_ALL, dtype=np.bool_)), new=new_items(None))
    popular = planned.recommend(
        model, user_id="nobody", user_features=None, limit=N_ALL, restriction=restriction, fallback=True
    )
    related = planned.related(
        model,
        seed_items=["i1"],
        item_features=None,
        user_features=None,
        limit=N_ALL,
        restriction=restriction._replace(new=None),
    )
    for ranking in model.rank([popular.query, related.query]):
        assert len(ranking.items)
        assert ranking.items.max() < N_ITEMS

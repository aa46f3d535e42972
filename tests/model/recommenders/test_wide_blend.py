"""A blend with wide vectors, whose scan answers every request like a full sort in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from svc.model.coldstart import LeastSquares
from svc.model.history import History
from svc.model.ids import IdTable
from svc.model.model import Model
from svc.model.ranking.filter_fields import LabelField
from svc.model.ranking.item_sets import ItemSet
from svc.model.ranking.query import Interaction, Query, Ranking
from svc.model.ranking.rerank import Boost, Limit, Rules
from svc.model.recommenders import factor_index
from svc.model.recommenders.base import excluded_columns
from svc.model.recommenders.blend import BlendScorer
from svc.model.recommenders.factor_index import FactorIndex
from svc.model.recommenders.factors import IALSScorer
from svc.model.recommenders.neighbours import NeighbourScorer
from tests import planned
from tests.families import family
from tests.planned import Restriction

N_USERS, N_ITEMS, K = 16, 2_400, 64
NEIGHBOURS = 5


class SortingScorer(BlendScorer):
    """A reference that scores every item exactly and sorts all items."""

    def rank(self, queries: Sequence[Query], history: History) -> list[Ranking]:
        return [self._sorted(query, history) for query in queries]

    def _sorted(self, query: Query, history: History) -> Ranking:
        assert self.factors is not None
        layout = self.factors.index.layout
        described = query.user_features is not None or bool(query.seed_features)
        vector = self.factors.embed_cold([query])[0] if described else self._scaled_vector(query)
        scores = np.add.reduce(layout.factors.astype(np.float64) * vector, axis=1)
        if not described:
            scores += self._offsets(query, history)
        scores[layout.positions[excluded_columns(query, history)]] = -np.inf
        if query.allowed is not None:
            scores[~query.allowed.flags()[layout.columns]] = -np.inf
        order = np.lexsort((layout.columns, -scores))[: min(query.limit, np.count_nonzero(scores > -np.inf))]
        return Ranking(layout.columns[order].astype(np.int32), scores[order])


def model_of(kind: type[BlendScorer]) -> Model:
    """Return a model of 64 components with item vectors of nearly one length. The first ten items have equal ones."""
    rng = np.random.default_rng(4)
    items = rng.normal(size=(N_ITEMS, K))
    items *= rng.normal(1, 0.05, (N_ITEMS, 1)) / np.linalg.norm(items, axis=1, keepdims=True)
    items[:10] = items[0]
    user_weights, item_weights = (rng.normal(size=(4, K)).astype(np.float32) for _ in range(2))
    least_squares = LeastSquares(
        alpha0=0.1, reg=0.1, nu=1.0, confidence=1.0, target_weight=1.0, n_users=N_USERS, n_items=N_ITEMS,
        user_weights=user_weights, item_weights=item_weights,
    )  # fmt: skip
    users = rng.normal(size=(N_USERS, K)).astype(np.float32)
    factors = IALSScorer(users, FactorIndex.build(items.astype(np.float32)), least_squares)
    columns = np.array([np.sort(rng.choice(N_ITEMS, NEIGHBOURS, replace=False)) for _ in range(N_ITEMS)])
    neighbours = NeighbourScorer(
        (np.arange(N_ITEMS + 1) * NEIGHBOURS).astype(np.int32),
        columns.ravel().astype(np.int32),
        rng.random(columns.size).astype(np.float32),
    )
    chosen = np.array([np.sort(rng.choice(N_ITEMS, 20, replace=False)) for _ in range(N_USERS)])
    history = History((np.arange(N_USERS + 1) * 20).astype(np.int32), chosen.ravel().astype(np.int32))
    model = Model(
        user_ids=IdTable.from_ids([f"u{user}" for user in range(N_USERS)]),
        item_ids=IdTable.from_ids([f"i{item}" for item in range(N_ITEMS)]),
        history=history,
        scorer=kind.of(factors, [neighbours], (0.7, 0.3), history),
        features=family("IALS").features,
    )
    model.ready()
    return model


HISTORY = [Interaction("i3", 2.0), Interaction("i700"), Interaction("i2000", 0.5)]
PEOPLE: list[dict[str, Any]] = [
    {"user_id": "u5"},
    {"user_id": "u6", "include_seen": True, "exclude_items": ["i0", "i4"]},
    {"history": HISTORY},
    {"user_id": "u7", "history": HISTORY},
    {"user_id": "u8", "history": HISTORY, "replace": True},
    {"user_features": {"tag": "a", "age": 31}},
    {"user_features": {"tag": "b"}, "history": HISTORY},
]
SEEDS: list[dict[str, Any]] = [
    {"seed_items": ["i3", "i900"], "item_features": None},
    {"seed_items": ["i3"], "item_features": {"new": {"tag": "b", "age": 12}}},
]


def restrictions() -> list[Restriction]:
    """Return no restriction, each single filter, rule and explanation, and all of them together."""
    every_third = ItemSet.of_flags(np.arange(N_ITEMS) % 3 == 0)
    few = ItemSet.of_columns(np.arange(0, N_ITEMS, 100), N_ITEMS)
    label = LabelField.read("genre", "categorical", "|", ["abc"[item % 7 % 3] for item in range(N_ITEMS)], N_ITEMS)
    boosts = (Boost(every_third, 2.0),)
    return [
        Restriction(),
        Restriction(offset=3),
        Restriction(allowed=every_third),
        Restriction(allowed=few),
        Restriction(include_items=[f"i{item}" for item in range(0, N_ITEMS, 2)]),
        Restriction(explain=4),
        Restriction(rules=Rules(diversity=0.4)),
        Restriction(rules=Rules(limits=(Limit(label, 2),))),
        Restriction(rules=Rules(boosts=boosts)),
        Restriction(rules=Rules(), pins=[("i17", 1)]),
        Restriction(allowed=every_third, explain=2, rules=Rules(0.2, (Limit(label, 4),), boosts), pins=[("i9", 0)]),
    ]


def queries_to(model: Model) -> list[Query]:
    """Return queries for known users, unknown histories, features and seeds, under every restriction."""
    of_nobody = {"user_id": None, "user_features": None}
    return [
        prepared.query
        for restriction in restrictions()
        for prepared in (
            *(planned.recommend(model, **of_nobody | who, limit=8, restriction=restriction) for who in PEOPLE),
            *(planned.related(model, **to, user_features=None, limit=8, restriction=restriction) for to in SEEDS),
        )
    ]


@pytest.mark.parametrize("with_rounded", [False, True])
def test_every_request_gets_the_answer_of_a_full_sort(*, with_rounded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Items, scores, reasons and explanations agree, alone and in one batch, with either first look."""
    if not with_rounded:
        monkeypatch.setattr(factor_index.RoundedItems, "of", lambda _: None)
    monkeypatch.setattr(factor_index, "LEAST_ROUNDED", 1)
    model, sorting = model_of(BlendScorer), model_of(SortingScorer)
    scorer = model.scorer
    assert isinstance(scorer, BlendScorer)
    assert scorer.factors is not None
    assert scorer.factors.index.layout.even
    assert (scorer.factors.index.layout.rounded is not None) == with_rounded
    queries = queries_to(model)
    together = model.rank(queries)
    for query, found in zip(queries, together, strict=True):
        (alone,), (expected,) = model.rank([query]), sorting.rank([query])
        for ranking in (found, alone):
            assert ranking.items.tolist() == expected.items.tolist()
            assert ranking.scores.tolist() == expected.scores.tolist()
            assert (ranking.reasons, ranking.because) == (expected.reasons, expected.because)

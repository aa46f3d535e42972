"""Intervals of comparisons have their nominal coverage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from svc.training.fitting.train import Builder, train_epochs
from svc.training.judging.evaluator import Evaluator
from svc.training.judging.intervals import paired_change
from svc.training.judging.metrics import user_scores
from svc.training.judging.rankers import ScoreRanker

N_USERS, N_ITEMS, HISTORY, CUTOFF, JUDGED = 2000, 60, 8, 10, 400


@dataclass(frozen=True, eq=False)
class World:
    """Simulated users with known tastes. `taste`, (users, items), is the probability of each item to be the next."""

    taste: NDArray[np.float64]
    history: sparse.csr_matrix

    @classmethod
    def make(cls, rng: np.random.Generator) -> World:
        users, items = rng.normal(size=(N_USERS, 4)), rng.normal(size=(N_ITEMS, 4))
        weight = np.exp(users @ items.T + rng.normal(size=N_ITEMS))
        drawn = np.argsort(-np.log(weight) - rng.gumbel(size=weight.shape), axis=1)[:, :HISTORY]
        rows = np.repeat(np.arange(N_USERS), HISTORY)
        shape = (N_USERS, N_ITEMS)
        history = sparse.csr_matrix((np.ones(rows.size, np.float32), (rows, drawn.ravel())), shape=shape)
        weight[rows, drawn.ravel()] = 0.0
        return cls(weight / weight.sum(axis=1, keepdims=True), history)

    def train(self, seed: int) -> NDArray[np.int64]:
        """Return the rankings, (users, CUTOFF), of an iALS model trained from this seed."""
        params = {"n_components": 6, "alpha0": 0.1, "reg": 0.01, "mean_prior": False}
        model = Builder(seed, 1, 1).build("IALSRecommender", self.history, params, {})
        train_epochs(model, epochs=8)
        everybody = Evaluator(sparse.csr_matrix(np.ones((N_USERS, N_ITEMS), np.float32)), offset=0, cutoff=CUTOFF)
        return np.array(everybody.rankings(ScoreRanker(model.get_score, self.history)))

    def truth(self, rankings: NDArray[np.int64]) -> float:
        """Return the expected ndcg of one held-out item, drawn by taste, of a random user."""
        gains = 1.0 / np.log2(np.arange(CUTOFF) + 2.0)
        return float((np.take_along_axis(self.taste, rankings, axis=1) @ gains).mean())

    def held_out(self, users: NDArray[np.int64], rng: np.random.Generator) -> sparse.csr_matrix:
        """Return a (users, items) matrix with one item for each of `users`, drawn by taste."""
        chances = self.taste[users].cumsum(axis=1)
        items = np.minimum((rng.random((len(users), 1)) > chances).sum(axis=1), N_ITEMS - 1)
        shape = (len(users), N_ITEMS)
        return sparse.csr_matrix((np.ones(len(users), np.float32), (np.arange(len(users)), items)), shape=shape)


def worse(rankings: NDArray[np.int64], share: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the model with reversed rankings for a share of the users."""
    turned = rng.random(len(rankings)) < share
    return np.where(turned[:, np.newaxis], rankings[:, ::-1], rankings)


def outcomes(seed: int, n_pairs: int, n_models: int = 20) -> Iterator[bool]:
    """Return for each pair of models whether the interval contains the true change.

    The interval comes from JUDGED users with one held-out item each. Every other pair has two trainings from different
    seeds. In the others, one model has reversed rankings for up to half of the users.
    """
    rng = np.random.default_rng(seed)
    world = World.make(rng)
    models = [world.train(seed * 1000 + number) for number in range(n_models)]
    pairs = list(combinations(range(n_models), 2)) * 2
    for place, (first, second) in enumerate(pairs[:n_pairs]):
        candidate, other = models[first], models[second]
        if place % 2:
            candidate = worse(candidate, rng.uniform(0, 0.5), rng)
        truth = world.truth(candidate) / world.truth(other) - 1.0
        users = rng.integers(0, N_USERS, JUDGED)
        held = world.held_out(users, rng)
        scores = [user_scores(rankings[users].tolist(), held)["ndcg"] for rankings in (candidate, other)]
        found = paired_change(scores[0], scores[1], seed=place, relative=True)
        yield found.low <= truth <= found.high


@pytest.mark.integration
def test_the_true_change_lies_in_nineteen_of_twenty_intervals() -> None:
    """Of 200 pairs of models with known difference, 93 to 97% are within their 95% interval."""
    held = list(outcomes(seed=4, n_pairs=200))
    assert len(held) == 200
    assert 0.93 <= np.mean(held) <= 0.97

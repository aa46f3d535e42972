"""What does a request of a blend cost beside its slower part alone?

    python -m benchmarks.blend [--components 128] [--top-k 500]
    python -m benchmarks.blend --shape d       # 680 components whose norms hardly differ, made without training

iALS and RP3beta at shape (b), 30,000 users and 41,000 items: processor microseconds a known user, one by one and in
batches of 256, other users in each round. The blend must take at most 2.5 times as long as the slower part. A first
round compares its rankings with brute force over all items. `numpy` is the blend
without numkong, which is another one where the norms hardly differ and the extra `fast` is installed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import sparse

from benchmarks.common import SHAPES, interactions, origin, side_by_side
from benchmarks.wide_model import wide_factors
from svc.cores import limit_blas_threads
from svc.model.history import History
from svc.model.ranking.query import Query
from svc.model.recommenders.base import Scorer, profile
from svc.model.recommenders.blend import BlendScorer, FactorPart
from svc.model.recommenders.factors import IALSScorer
from svc.model.recommenders.neighbours import NeighbourScorer
from svc.training.fitting.algorithms.ials import MeanPriorIALSRecommender
from svc.training.fitting.algorithms.item_weights import TransitionRP3betaRecommender
from svc.training.fitting.export import to_history, to_scorer
from svc.training.fitting.train import train_epochs

LIMIT, ONE_BY_ONE, BATCH, ROUNDS, CHECKED = 10, 64, 256, 7, 50
MOST = 2.5


def queries(n_users: int, count: int, seed: int) -> list[Query]:
    return [Query(limit=LIMIT, user=int(user)) for user in np.random.default_rng(seed).integers(0, n_users, count)]


def one_by_one(scorer: Scorer, history: History) -> Callable[[int], Any]:
    return lambda number: [
        scorer.rank([query], history) for query in queries(len(history), ONE_BY_ONE, number + ROUNDS)
    ]


def batched(scorer: Scorer, history: History) -> Callable[[int], Any]:
    return lambda number: scorer.rank(queries(len(history), BATCH, number + ROUNDS), history)


def agree(blend: BlendScorer, history: History) -> int:
    """For how many of CHECKED users the ranking is that of brute force."""
    assert blend.factors is not None, "iALS is the first part"
    items = np.empty(blend.factors.index.factors.shape)
    items[blend.factors.index.columns] = blend.factors.index.factors
    n_equal = 0
    for query in queries(len(history), CHECKED, 1):
        own, other = (
            items @ blend.factors.users[query.user].astype(np.float64),
            blend.sums[0].totals(*profile(query, history)),
        )
        scores = blend.weights[0] * own / own.std() + blend.weights[1] * other / other.std()
        scores[history.items(query.user)] = -np.inf
        order = np.lexsort((np.arange(len(scores)), -scores))[:LIMIT]
        n_equal += blend.rank([query], history)[0].items.tolist() == order.tolist()
    return n_equal


def trained_ials(matrix: sparse.csr_matrix, components: int) -> IALSScorer:
    recommender = MeanPriorIALSRecommender(matrix, n_components=components, alpha0=0.012, reg=0.012)
    scorer = to_scorer(train_epochs(recommender, 6), "IALSRecommender")
    assert isinstance(scorer, IALSScorer)
    return scorer


def with_rp3beta(factors: FactorPart, matrix: sparse.csr_matrix, history: History, top_k: int = 500) -> BlendScorer:
    """The blend of a factor model with RP3beta, which is trained here."""
    rp3beta = TransitionRP3betaRecommender(matrix, top_k=top_k, beta=0.0, normalize_weight=True).learn()
    neighbours = to_scorer(rp3beta, "RP3betaRecommender")
    assert isinstance(neighbours, NeighbourScorer)
    return BlendScorer.of(factors, [neighbours], (0.7, 0.3), history)


def numpy_alone(blend: BlendScorer) -> BlendScorer:
    """The same blend without rounded vectors."""
    assert blend.factors is not None, "iALS is the first part"
    other, other.factors = copy(blend), copy(blend.factors)
    other.factors.index = copy(blend.factors.index)
    other.ready()  # a copy has the stored arrays alone
    other.factors.index._layout = replace(other.factors.index.layout, rounded=None)
    return other


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--components", type=int, default=128)
    parser.add_argument("--top-k", type=int, default=500)
    parser.add_argument("--shape", choices=("b", "d"), default="b")
    options = parser.parse_args()
    print("\n".join(origin()))
    limit_blas_threads(1)
    shape = SHAPES[options.shape]
    matrix = interactions(shape)
    is_wide, history = options.shape == "d", to_history(matrix)
    ials = wide_factors(matrix, shape.components) if is_wide else trained_ials(matrix, options.components)
    blend = with_rp3beta(ials, matrix, history, options.top_k)
    print(f"rankings equal to brute force: {agree(blend, history)} of {CHECKED}")
    scorers = {"iALS": ials, "RP3beta": blend.sums[0], "blend": blend, "numpy": numpy_alone(blend)}
    for name, call, count in (("one by one", one_by_one, ONE_BY_ONE), ("batches of 256", batched, BATCH)):
        seconds = side_by_side(
            {part: call(scorer, history) for part, scorer in scorers.items()}, ROUNDS, clock=time.thread_time
        )
        micros = {part: taken / count * 1e6 for part, taken in seconds.items()}
        ratio = micros["blend"] / max(micros["iALS"], micros["RP3beta"])
        shown = ", ".join(f"{part} {value:.0f}" for part, value in micros.items())
        print(f"{name}: µs a user {shown}; the blend {ratio:.2f} times the slower part (at most {MOST})")


if __name__ == "__main__":
    main()

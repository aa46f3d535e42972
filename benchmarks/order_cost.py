"""What does the order of histories cost?

    python -m benchmarks.order_cost [--transitions]

Requests: models of 1,000 users and 41,000 items without order and with a recency.
Processor microseconds of one request in the process, as a ratio to the same model without order: known users, histories
of ten, and histories of ten behind those of known users, others in each round. `history` may cost at most 1.1 times as
much. With `--transitions` it trains Transitions on 100,000 histories of 10 items over 40,000 items instead, one core,
and says the processor seconds and the most memory that the process ever held.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from copy import copy
from typing import Any

import numpy as np
from scipy import sparse

from benchmarks.common import ids, origin, side_by_side
from svc.asking.offer import Offer
from svc.asking.plan import plan
from svc.asking.requests import RecommendRequest
from svc.cores import limit_blas_threads
from svc.model.coldstart import LeastSquares
from svc.model.history import History
from svc.model.ids import IdTable
from svc.model.model import Model
from svc.model.ranking.query import Interaction
from svc.model.recommenders.base import Scorer
from svc.model.recommenders.blend import BlendScorer
from svc.model.recommenders.factor_index import FactorIndex
from svc.model.recommenders.factors import IALSScorer
from svc.model.recommenders.neighbours import NeighbourScorer
from svc.training.fitting.algorithms.transitions import TransitionsRecommender

N_USERS, N_ITEMS, COMPONENTS, NEIGHBOURS, LENGTH = 1_000, 41_000, 64, 200, 30
LIMIT, REQUESTS, ROUNDS, GIVEN, RECENCY = 10, 64, 9, 10, 0.5


def factors(rng: np.random.Generator, n_users: int = N_USERS) -> IALSScorer:
    items = rng.normal(0, 0.1, (N_ITEMS, COMPONENTS)).astype(np.float32) * rng.gamma(1.0, 1.0, (N_ITEMS, 1))
    solver = LeastSquares(
        alpha0=0.01, reg=0.01, nu=1.0, confidence=1.0, target_weight=1.0, n_users=n_users, n_items=N_ITEMS,
        user_weights=None, item_weights=None,
    )  # fmt: skip
    users = rng.normal(0, 0.1, (n_users, COMPONENTS)).astype(np.float32)
    return IALSScorer(users, FactorIndex.build(items.astype(np.float32)), solver)


def neighbours(rng: np.random.Generator) -> NeighbourScorer:
    columns = np.sort(rng.integers(0, N_ITEMS, (N_ITEMS, NEIGHBOURS)), axis=1).astype(np.int32).ravel()
    weights = rng.random(N_ITEMS * NEIGHBOURS, dtype=np.float32)
    return NeighbourScorer(np.arange(0, N_ITEMS * NEIGHBOURS + 1, NEIGHBOURS), columns, weights)


def histories(rng: np.random.Generator, n_users: int = N_USERS, length: int = LENGTH, **order: Any) -> History:
    """`length` different items a user; they rise, so that they are in order and sorted alike."""
    columns = np.sort(rng.integers(0, N_ITEMS - length, (n_users, length)), axis=1) + np.arange(length)
    return History(np.arange(0, n_users * length + 1, length), columns.astype(np.int32).ravel(), **order)


def model_of(scorer: Scorer, history: History) -> Model:
    """Return a ready model of N_ITEMS items."""
    made = Model(
        user_ids=IdTable.from_ids(ids("u", len(history))), item_ids=IdTable.from_ids(ids("i", N_ITEMS)),
        history=history, scorer=scorer, features=None,
    )  # fmt: skip
    made.ready()
    return made


def model(scorer: Scorer, **order: Any) -> Model:
    scorer = copy(scorer)
    history = histories(np.random.default_rng(1), **order)
    if isinstance(scorer, BlendScorer):
        scorer.ready()
        scorer.measure(history)
    return model_of(scorer, history)


def asking(asked: Model, *, known: bool, given: bool) -> Callable[[int], Any]:
    """REQUESTS requests one by one."""

    def ask(number: int) -> None:
        rng = np.random.default_rng(number + ROUNDS)
        for user in rng.integers(0, N_USERS, REQUESTS).tolist():
            history = [Interaction(f"i{item}") for item in rng.integers(0, N_ITEMS, GIVEN).tolist()]
            request = RecommendRequest.model_construct(
                user_id=f"u{user}" if known else None, limit=LIMIT, history=history if given else None
            )
            prepared = plan(request, Offer(model=asked))
            asked.rank([prepared.query])

    return ask


def compare_requests() -> None:
    rng = np.random.default_rng(0)
    of_factors, of_neighbours = factors(rng), neighbours(rng)
    blend = BlendScorer(of_factors, (of_neighbours,), (0.5, 0.5), np.ones((2, N_USERS)))
    scorers: dict[str, Scorer] = {"iALS": of_factors, "neighbours": of_neighbours, "blend": blend}
    for name, scorer in scorers.items():
        models = {"without": model(scorer), "one recency": model(scorer, recency=RECENCY)}
        for question, about in (
            ("known user", {"known": True, "given": False}),
            ("history", {"known": False, "given": True}),
            ("known user and history", {"known": True, "given": True}),
        ):
            calls = {order: asking(asked, **about) for order, asked in models.items()}
            seconds = side_by_side(calls, ROUNDS, time.thread_time)
            ratios = [f"{order} {took / seconds['without']:.2f}" for order, took in seconds.items()]
            print(f"{name:11} {question:23} {seconds['without'] / REQUESTS * 1e6:7.0f} µs  {'  '.join(ratios)}")


def train_transitions() -> None:
    rng = np.random.default_rng(0)
    n_users, n_items = 100_000, 40_000
    popular_first = (n_items * rng.random((n_users, 10)) ** 3).astype(np.int32)
    places = (np.repeat(np.arange(n_users), 10), popular_first.ravel())
    times = np.tile(np.arange(1, 11), n_users) * 60 * 10**9
    of_pairs = sparse.csr_matrix((times, places), shape=(n_users, n_items))
    ones = of_pairs.copy()
    ones.data = np.ones(of_pairs.nnz, dtype=np.float32)
    began = time.process_time()
    trained: Any = TransitionsRecommender(ones, times=of_pairs, max_steps=20, backward=1.0, top_k=2000).learn()
    held_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    took_s = time.process_time() - began
    print(f"Transitions: {of_pairs.nnz:,} pairs, {trained.W.nnz:,} weights, {took_s:.1f} s, {held_gib:.2f} GiB at most")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--transitions", action="store_true", help="train Transitions instead")
    options = parser.parse_args()
    print("\n".join(origin()))
    limit_blas_threads(1)
    train_transitions() if options.transitions else compare_requests()


if __name__ == "__main__":
    main()

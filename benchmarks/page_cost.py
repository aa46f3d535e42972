"""What do pages, the order of histories and diversity cost, without HTTP?"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from copy import copy
from functools import partial
from typing import Any, get_args

import numpy as np
from scipy import sparse

from benchmarks import filters
from benchmarks.common import ids, origin, side_by_side
from svc.asking.offer import Offer
from svc.asking.page import PageRequest, page_steps
from svc.asking.parsing import parse
from svc.asking.plan import plan
from svc.asking.policy import Policy
from svc.asking.requests import RecommendRequest, UsersRequest
from svc.cores import limit_blas_threads
from svc.library.answers import answered
from svc.model.coldstart import LeastSquares
from svc.model.history import History
from svc.model.ids import IdTable
from svc.model.model import Model
from svc.model.ranking.query import Interaction, Query, Shown
from svc.model.ranking.rerank import Candidates, Rules, rerank
from svc.model.recommenders.base import Scorer
from svc.model.recommenders.blend import BlendScorer
from svc.model.recommenders.dense_weights import DenseWeightsScorer
from svc.model.recommenders.factor_index import FactorIndex
from svc.model.recommenders.factors import IALSScorer, SVDScorer
from svc.model.recommenders.neighbours import NeighbourScorer
from svc.names import Order
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


def orders(parser: argparse.ArgumentParser) -> None:
    """What does the order of histories cost?

        python -m benchmarks page_cost order [--transitions]

    Requests: models of 1,000 users and 41,000 items without order and with a recency. Processor microseconds of one
    request in the process, as a ratio to the same model without order: known users, histories of ten, and histories of
    ten behind those of known users, others in each round. `history` may cost at most 1.1 times as much. With
    `--transitions` it trains Transitions on 100,000 histories of 10 items over 40,000 items instead, one core, and
    says the processor seconds and the most memory that the process ever held.
    """
    parser.add_argument("--transitions", action="store_true", help="train Transitions instead")
    options = parser.parse_args()
    print("\n".join(origin()))
    limit_blas_threads(1)
    train_transitions() if options.transitions else compare_requests()


FEW_USERS, MANY_USERS, FEW_ITEMS, BEST_USERS = 1_000, 100_000, 8, 100
DISLIKES, SHOWN, ROTATION, PAGES, ROWS = 20, 100, 0.25, 32, 4


def scorers(rng: np.random.Generator, n_users: int) -> dict[str, Scorer]:
    """Return one scorer of each kind for `n_users` users."""
    of_factors, of_neighbours = factors(rng, n_users), neighbours(rng)
    blend = BlendScorer(of_factors, (of_neighbours,), (0.5, 0.5), np.ones((2, n_users)))
    return {"iALS": of_factors, "neighbours": of_neighbours, "blend": blend}


def model_for(scorer: Scorer, n_users: int) -> Model:
    """Return a model whose users have FEW_ITEMS different items each."""
    return model_of(scorer, histories(np.random.default_rng(1), n_users, FEW_ITEMS))


def pages(asked: Model, *, rejects: bool) -> Callable[[int], Any]:
    """Return PAGES pages of known users, with dislikes and items shown before, or with a history as long."""
    requests = {number: list(requested(number, rejects=rejects)) for number in range(-1, ROUNDS)}

    offer = Offer(model=asked)

    def ask(number: int) -> None:
        for request in requests[number]:
            asked.rank([plan(RecommendRequest.model_construct(limit=LIMIT, **request), offer).query])

    return ask


def requested(number: int, *, rejects: bool) -> Iterator[dict[str, Any]]:
    """Yield the arguments of PAGES pages. A server too gets them ready made, from its parser."""
    rng = np.random.default_rng(number + ROUNDS)
    for user in rng.integers(0, FEW_USERS, PAGES).tolist():
        given = [f"i{item}" for item in rng.choice(N_ITEMS, DISLIKES + SHOWN, replace=False).tolist()]
        if rejects:
            yield {
                "user_id": f"u{user}",
                "dislikes": [Interaction(item) for item in given[:DISLIKES]],
                "shown": [Shown(item) for item in given[DISLIKES:]],
                "rotation": ROTATION,
            }
        else:
            yield {"user_id": f"u{user}", "history": [Interaction(item) for item in given]}


def rows(asked: Model, kind: str) -> Callable[[int], Any]:
    """Return PAGES pages of ROWS rows of LIMIT items, in one request, in a request for each row, or in one row."""
    offer = Offer(model=asked)
    row = {"recommend": {"limit": LIMIT}}

    def ask(number: int) -> None:
        for user in np.random.default_rng(number + ROUNDS).integers(0, FEW_USERS, PAGES).tolist():
            if kind == "page":
                named = [{"id": f"{place}", **row} for place in range(ROWS)]
                page = answered(page_steps(parse(PageRequest, {"user_id": f"u{user}", "rows": named}), offer), asked)
                shown = [item for made in page.rows for item in made.ranking.items.tolist()]
                assert len(shown) == len({*shown}) == ROWS * LIMIT
                continue
            excluded: list[str] = []
            for _ in range(ROWS if kind == "requests" else 1):
                limit = LIMIT if kind == "requests" else ROWS * LIMIT
                body = {"user_id": f"u{user}", "limit": limit, "exclude_items": excluded}
                (ranking,) = asked.rank([plan(parse(RecommendRequest, body), offer).query])
                excluded += map(asked.item_ids.at, ranking.items.tolist())

    return ask


def audiences(asked: Model, order: Order) -> Callable[[int], Any]:
    """Return the best users of PAGES items."""
    offer = Offer(model=asked, policy=Policy(users=True))

    def ask(number: int) -> None:
        for item in np.random.default_rng(number + ROUNDS).integers(0, N_ITEMS, PAGES).tolist():
            request = UsersRequest(item_id=f"i{item}", limit=BEST_USERS, order=order)
            asked.rank([plan(request, offer).query])

    return ask


def pages_and_users(parser: argparse.ArgumentParser) -> None:
    """What do dislikes, items shown before, pages of rows and users for an item cost?

        python -m benchmarks page_cost

    Models over 41,000 items. Pages: 1,000 users, the processor microseconds of one request in the process with 20
    dislikes and 100 items shown before, beside one with a history of 120 items. Such a page may cost 100 µs more.
    Rows: a page of four rows of ten items beside four requests whose `exclude_items` grow, and one request for 40
    items. Users: 100,000 users with 8 items each, the processor milliseconds of the best 100 users for an item in each
    order, and of the summary of users that a server makes when it loads a model.
    """
    parser.parse_args()
    print("\n".join(origin()))
    limit_blas_threads(1)
    for name, scorer in scorers(np.random.default_rng(0), FEW_USERS).items():
        asked = model_for(scorer, FEW_USERS)
        calls = {"history": pages(asked, rejects=False), "rejects": pages(asked, rejects=True)}
        took = {kind: s / PAGES * 1e6 for kind, s in side_by_side(calls, ROUNDS, time.thread_time).items()}
        print(f"pages {name:11} history of {DISLIKES + SHOWN} {took['history']:5.0f} µs, ", end="")
        print(f"{DISLIKES} dislikes and {SHOWN} shown {took['rejects'] - took['history']:+5.0f} µs", flush=True)
        calls = {kind: rows(asked, kind) for kind in ("page", "requests", "one row")}
        took = {kind: s / PAGES * 1e3 for kind, s in side_by_side(calls, ROUNDS, time.thread_time).items()}
        words = ", ".join(f"{kind} {ms:.2f} ms" for kind, ms in took.items())
        print(f"rows  {name:11} {ROWS} of {LIMIT} items: {words}", flush=True)
    for name, scorer in scorers(np.random.default_rng(0), MANY_USERS).items():
        asked = model_for(scorer, MANY_USERS)
        if not isinstance(scorer, IALSScorer):  # a training stores them: no rank depends on them
            asked.user_moments = np.ones((2, MANY_USERS))
        began = time.thread_time()
        asked.serve_users()
        summary_s = time.thread_time() - began
        calls = {order: audiences(asked, order) for order in get_args(Order)}
        of_orders = side_by_side(calls, ROUNDS, time.thread_time)
        words = ", ".join(f"{order} {s / PAGES * 1e3:.1f} ms" for order, s in of_orders.items())
        print(f"users {name:11} {words}; summary {summary_s:.2f} s", flush=True)


PAGE, POOL, DIVERSITY, N_ASKED = 20, 100, 0.3, 200
DENSE_ITEMS = 5_000


def svd(rng: np.random.Generator) -> Scorer:
    return SVDScorer(filters.factors(rng, filters.N_USERS), FactorIndex.build(filters.factors(rng, 41_000)))


def dense(rng: np.random.Generator) -> Scorer:
    return DenseWeightsScorer(rng.standard_normal((DENSE_ITEMS, DENSE_ITEMS), dtype=np.float32))


def random_history(n_items: int, rng: np.random.Generator) -> History:
    seen = np.sort(rng.choice(n_items, (filters.N_USERS, 50)), axis=1).astype(np.int32)
    return History(np.arange(0, seen.size + 1, 50, dtype=np.int32), seen.ravel())


def processor_ms(call: Callable[[], Any]) -> float:
    began = time.process_time()
    call()
    return (time.process_time() - began) * 1000


def enough() -> Candidates:
    raise AssertionError("the candidates suffice for a page")


def milliseconds(scorer: Scorer, rng: np.random.Generator) -> tuple[float, float]:
    """(arranging, ranking) in milliseconds."""
    scorer.ready()
    known, rules = random_history(scorer.n_items, rng), Rules(diversity=DIVERSITY)
    arranging, ranking = [], []
    for user in range(N_ASKED):
        (pool,) = scorer.rank([Query(limit=POOL, user=user)], known)
        candidates = Candidates(pool.items, pool.scores, False, enough)
        arranging.append(processor_ms(partial(rerank, candidates, rules, PAGE, scorer.similar, np.empty(0))))
        ranking.append(processor_ms(partial(scorer.rank, [Query(limit=PAGE, user=user)], known)))
    return statistics.median(arranging), statistics.median(ranking)


def diversity(parser: argparse.ArgumentParser) -> None:
    """What does diversity add to a page of 20 items, chosen from 100 candidates? Without HTTP, one thread.

        python -m benchmarks page_cost diversity          # every kind of similarity; a few seconds

    `arranging` is what `svc.model.ranking.rerank.rerank` and the similarities of the candidates take; `ranking` is the
    same user's ranking without diversity, over all items. Milliseconds of the processor, medians of interleaved
    rounds.
    """
    parser.parse_args()
    print("\n".join(origin()))
    rng = np.random.default_rng(5)
    print(f"{PAGE} items of {POOL} candidates      arranging  ranking   ratio")
    limit_blas_threads(1)
    makers = {"ials": filters.ials, "svd": svd, "neighbours": filters.neighbours, "dense weights": dense}
    for name, make in makers.items():
        arranging, ranking = milliseconds(make(rng), rng)
        print(f"{name:32} {arranging:8.2f} {ranking:8.2f} {(arranging + ranking) / ranking:7.1f}", flush=True)


CASES = {"page": pages_and_users, "order": orders, "diversity": diversity}

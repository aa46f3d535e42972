"""What do dislikes, items shown before, pages of rows and users for an item cost?

    python -m benchmarks.page_cost

Models over 41,000 items. Pages: 1,000 users, the processor microseconds of one request in the process with 20 dislikes
and 100 items shown before, beside one with a history of 120 items. Such a page may cost 100 µs more. Rows: a page of
four rows of ten items beside four requests whose `exclude_items` grow, and one request for 40 items. Users: 100,000
users with 8 items each, the processor milliseconds of the best 100 users for an item in each order, and of the summary
of users that a server makes when it loads a model.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any, get_args

import numpy as np

from benchmarks.common import origin, side_by_side
from benchmarks.order_cost import N_ITEMS, factors, histories, model_of, neighbours
from svc.asking.offer import Offer
from svc.asking.page import PageRequest, page_steps
from svc.asking.parsing import parse
from svc.asking.plan import plan
from svc.asking.policy import Policy
from svc.asking.requests import RecommendRequest, UsersRequest
from svc.cores import limit_blas_threads
from svc.library.answers import answered
from svc.model.model import Model
from svc.model.ranking.query import Interaction, Shown
from svc.model.recommenders.base import Scorer
from svc.model.recommenders.blend import BlendScorer
from svc.model.recommenders.factors import IALSScorer
from svc.names import Order

FEW_USERS, MANY_USERS, LENGTH, LIMIT, BEST_USERS = 1_000, 100_000, 8, 10, 100
DISLIKES, SHOWN, ROTATION, REQUESTS, ROUNDS, ROWS = 20, 100, 0.25, 32, 9, 4


def scorers(rng: np.random.Generator, n_users: int) -> dict[str, Scorer]:
    """Return one scorer of each kind for `n_users` users."""
    of_factors, of_neighbours = factors(rng, n_users), neighbours(rng)
    blend = BlendScorer(of_factors, (of_neighbours,), (0.5, 0.5), np.ones((2, n_users)))
    return {"iALS": of_factors, "neighbours": of_neighbours, "blend": blend}


def model(scorer: Scorer, n_users: int) -> Model:
    """Return a model whose users have LENGTH different items each."""
    return model_of(scorer, histories(np.random.default_rng(1), n_users, LENGTH))


def pages(asked: Model, *, rejects: bool) -> Callable[[int], Any]:
    """Return REQUESTS pages of known users, with dislikes and items shown before, or with a history as long."""
    requests = {number: list(requested(number, rejects=rejects)) for number in range(-1, ROUNDS)}

    offer = Offer(model=asked)

    def ask(number: int) -> None:
        for request in requests[number]:
            asked.rank([plan(RecommendRequest.model_construct(limit=LIMIT, **request), offer).query])

    return ask


def requested(number: int, *, rejects: bool) -> Iterator[dict[str, Any]]:
    """Yield the arguments of REQUESTS pages. A server too gets them ready made, from its parser."""
    rng = np.random.default_rng(number + ROUNDS)
    for user in rng.integers(0, FEW_USERS, REQUESTS).tolist():
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
    """Return REQUESTS pages of ROWS rows of LIMIT items, in one request, in a request for each row, or in one row."""
    offer = Offer(model=asked)
    row = {"recommend": {"limit": LIMIT}}

    def ask(number: int) -> None:
        for user in np.random.default_rng(number + ROUNDS).integers(0, FEW_USERS, REQUESTS).tolist():
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
    """Return the best users of REQUESTS items."""
    offer = Offer(model=asked, policy=Policy(users=True))

    def ask(number: int) -> None:
        for item in np.random.default_rng(number + ROUNDS).integers(0, N_ITEMS, REQUESTS).tolist():
            request = UsersRequest(item_id=f"i{item}", limit=BEST_USERS, order=order)
            asked.rank([plan(request, offer).query])

    return ask


def main() -> None:
    """Print one line for each kind of model and question."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print("\n".join(origin()))
    limit_blas_threads(1)
    for name, scorer in scorers(np.random.default_rng(0), FEW_USERS).items():
        asked = model(scorer, FEW_USERS)
        calls = {"history": pages(asked, rejects=False), "rejects": pages(asked, rejects=True)}
        took = {kind: s / REQUESTS * 1e6 for kind, s in side_by_side(calls, ROUNDS, time.thread_time).items()}
        print(f"pages {name:11} history of {DISLIKES + SHOWN} {took['history']:5.0f} µs, ", end="")
        print(f"{DISLIKES} dislikes and {SHOWN} shown {took['rejects'] - took['history']:+5.0f} µs", flush=True)
        calls = {kind: rows(asked, kind) for kind in ("page", "requests", "one row")}
        took = {kind: s / REQUESTS * 1e3 for kind, s in side_by_side(calls, ROUNDS, time.thread_time).items()}
        words = ", ".join(f"{kind} {ms:.2f} ms" for kind, ms in took.items())
        print(f"rows  {name:11} {ROWS} of {LIMIT} items: {words}", flush=True)
    for name, scorer in scorers(np.random.default_rng(0), MANY_USERS).items():
        asked = model(scorer, MANY_USERS)
        if not isinstance(scorer, IALSScorer):  # a training stores them: no rank depends on them
            asked.user_moments = np.ones((2, MANY_USERS))
        began = time.thread_time()
        asked.serve_users()
        summary_s = time.thread_time() - began
        calls = {order: audiences(asked, order) for order in get_args(Order)}
        of_orders = side_by_side(calls, ROUNDS, time.thread_time)
        words = ", ".join(f"{order} {s / REQUESTS * 1e3:.1f} ms" for order, s in of_orders.items())
        print(f"users {name:11} {words}; summary {summary_s:.2f} s", flush=True)


if __name__ == "__main__":
    main()

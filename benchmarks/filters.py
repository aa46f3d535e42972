"""What do filters, histories, the fallback, reasons and rules add to a request? Without HTTP, one thread.

    python -m benchmarks.filters            # 41,000 items; half a minute

Each row is a whole request: its body is validated, the query prepared, ranked and encoded. Times are microseconds of
the processor, medians of interleaved rounds; the ratio is to the same request without the field, in the same rounds.
Vectors are random with norms as uneven as those of trained models.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from benchmarks.common import ids, origin
from svc.model.coldstart import LeastSquares
from svc.model.filter_fields import FilterFields, NumberField
from svc.model.history import History
from svc.model.ids import IdTable
from svc.model.model import Model
from svc.model.recommenders.base import Scorer
from svc.model.recommenders.factor_index import FactorIndex
from svc.model.recommenders.factors import IALSScorer
from svc.model.recommenders.neighbours import NeighbourScorer
from svc.model.threads import limit_blas_threads
from svc.serving.api.parsing import parse
from svc.serving.api.requests import RecommendRequest
from svc.serving.models.fragments import AnswerHeader, ItemFragments, encode_answer
from svc.serving.models.registry import Served

N_USERS, N_ITEMS, COMPONENTS, SEEN = 2_000, 41_000, 128, 50
ROUNDS, REQUESTS_A_ROUND = 9, 40
ORIGIN = AnswerHeader("r", "movies", "sha256:0")


def factors(rng: np.random.Generator, rows: int) -> np.ndarray:
    vectors = rng.standard_normal((rows, COMPONENTS)) * rng.lognormal(0, 0.7, (rows, 1))
    return (vectors / 10).astype(np.float32)


def ials(rng: np.random.Generator) -> Scorer:
    solver = LeastSquares(
        alpha0=0.01, reg=0.003, nu=0.5, confidence=1.0, target_weight=1.0, n_users=N_USERS, n_items=N_ITEMS,
        user_weights=None, item_weights=None,
    )  # fmt: skip
    return IALSScorer(factors(rng, N_USERS), FactorIndex.build(factors(rng, N_ITEMS)), solver)


def neighbours(rng: np.random.Generator) -> Scorer:
    columns = rng.integers(0, N_ITEMS, N_ITEMS * 100).astype(np.int32)
    weights = rng.random(len(columns), dtype=np.float32)
    return NeighbourScorer(np.arange(0, len(columns) + 1, 100, dtype=np.int32), columns, weights)


def served(scorer: Scorer, rng: np.random.Generator) -> Served:
    seen = np.sort(rng.choice(N_ITEMS, (N_USERS, SEEN)), axis=1).astype(np.int32)
    model = Model(
        user_ids=IdTable.from_ids(ids("u", N_USERS)),
        item_ids=IdTable.from_ids(ids("i", N_ITEMS)),
        history=History(np.arange(0, seen.size + 1, SEEN, dtype=np.int32), seen.ravel()),
        scorer=scorer,
        features=None,
    )
    model.ready()
    shares = NumberField(rng.permutation(N_ITEMS) / N_ITEMS)
    fields = FilterFields({"share": shares}, N_ITEMS)
    fragments = ItemFragments.build(model.item_ids, None)
    return Served("movies", model, fragments, {}, "sha256:0", "k", cast(Any, None), 0.0, filters=fields)


def answer(served: Served, body: bytes) -> bytes:
    prepared = parse(RecommendRequest, body).prepare(served)
    (ranking,) = served.model.rank([prepared.query])
    return encode_answer(ORIGIN, ranking.from_place(prepared.offset), served.fragments, prepared)


def kinds(rng: np.random.Generator) -> dict[str, Callable[[int], dict[str, Any]]]:
    """The fields beside a user, by name of the row; each is given a number that no other request has."""
    own = ids("i", N_ITEMS)
    return {
        "no filter": lambda _: {},
        "filter keeps 50%": lambda _: {"filter": {"share": {"lt": 0.5}}},
        "filter keeps 5%": lambda _: {"filter": {"share": {"lt": 0.05}}},
        "filter keeps 0.1%": lambda _: {"filter": {"share": {"lt": 0.001}}},
        "new filter, 50%": lambda number: {"filter": {"share": {"lt": 0.5 + number * 1e-9}}},
        "include_items, 200": lambda _: {"include_items": [own[i] for i in rng.integers(0, N_ITEMS, 200)]},
        "offset 100": lambda _: {"offset": 100},
        "history of 10 joined": lambda _: {"history": [own[i] for i in rng.integers(0, N_ITEMS, 10)]},
        "explain 3": lambda _: {"explain": 3},
        "diversity 0.3": lambda _: {"diversity": 0.3},
        "pin": lambda _: {"pins": [{"item_id": "i7", "position": 0}]},
        "unknown, popular": lambda _: {"user_id": "nobody", "fallback": "popular"},
    }


def measure(name: str, scorer: Callable[[np.random.Generator], Scorer]) -> None:
    rng = np.random.default_rng(1)
    model = served(scorer(rng), rng)
    times: dict[str, list[float]] = {}
    number = 0
    for _ in range(ROUNDS):
        for kind, more in kinds(rng).items():
            spent = 0.0
            for user in rng.integers(0, N_USERS, REQUESTS_A_ROUND):
                number += 1
                body = json.dumps({"user_id": f"u{user}", **more(number)}).encode()
                began = time.thread_time()
                answer(model, body)
                spent += time.thread_time() - began
            times.setdefault(kind, []).append(spent / REQUESTS_A_ROUND * 1e6)
    print(f"\n{name}, {N_ITEMS:,} items\n\n| request | µs | ratio |\n|---|---|---|")
    for kind, found in times.items():
        ratio = statistics.median(a / b for a, b in zip(found, times["no filter"], strict=True))
        print(f"| {kind} | {statistics.median(found):.0f} | {ratio:.2f} |")


def main() -> None:
    limit_blas_threads(1)
    print("\n".join(origin()))
    measure(f"iALS, {COMPONENTS} components", ials)
    measure("neighbours, 100 each", neighbours)


if __name__ == "__main__":
    main()

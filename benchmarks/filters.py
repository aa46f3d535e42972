"""What do filters, histories, the fallback, reasons and rules add to a request? Without HTTP, one thread.

    python -m benchmarks.filters            # 41,000 items; half a minute
    python -m benchmarks.filters --http     # what a server spends on the same requests, in all its threads
    python -m benchmarks.filters --trained  # with models that are trained, as those of `scoring`; --http goes with it

Each row is a whole request: its body is validated, the query prepared, ranked and encoded. Times are microseconds of
the processor, medians of rounds; the ratio is to the same requests without the field, in the same rounds. Within a
round each user asks for every row, in an order drawn for that user, so that all of them find the caches of the
processor as mixed requests leave them.
Vectors are random, with norms as uneven as those of trained models, unless models are trained. Items of a history are
drawn as often as users chose them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from irspack.recommenders import CosineKNNRecommender

from benchmarks.common import SHAPES, ids, interactions, origin, processor_s
from benchmarks.scoring import exported, train
from svc.asking.parsing import parse
from svc.asking.plan import plan
from svc.asking.requests import RecommendRequest
from svc.cores import limit_blas_threads
from svc.model.coldstart import LeastSquares
from svc.model.history import History
from svc.model.ids import IdTable
from svc.model.model import Model
from svc.model.ranking.filter_fields import FilterFields, NumberField
from svc.model.recommenders.base import Scorer
from svc.model.recommenders.factor_index import FactorIndex
from svc.model.recommenders.factors import IALSScorer
from svc.model.recommenders.neighbours import NeighbourScorer
from svc.serving.models.fragments import AnswerHeader, ItemFragments, encode_fields
from svc.serving.models.registry import Served
from tests.e2e.server import Server
from tests.filter_items import filterable_home
from tests.serving.artifacts import served_model

N_USERS, N_ITEMS, COMPONENTS, SEEN = 2_000, 41_000, 128, 50
ROUNDS, REQUESTS_A_ROUND = 9, 40
Spend = Callable[[bytes], float]
"""Answers a request body and returns the seconds of the processor that it took."""
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
    return filterable(model, rng)


def filterable(model: Model, rng: np.random.Generator) -> Served:
    """The model with a number of its own for each item."""
    model.ready()
    fields = FilterFields({"year": NumberField(rng.permutation(N_ITEMS) / N_ITEMS)}, N_ITEMS)
    return served_model(model, fragments=ItemFragments.build(model.item_ids, None), filters=fields)


def random_models() -> Iterator[tuple[str, Served]]:
    for name, scorer in ((f"iALS, {COMPONENTS} components", ials), ("neighbours, 100 each", neighbours)):
        rng = np.random.default_rng(1)
        yield name, served(scorer(rng), rng)


def trained_models() -> Iterator[tuple[str, Served]]:
    matrix = interactions(SHAPES["b"])
    recommender = train(SHAPES["b"], matrix)
    yield "trained iALS", filterable(exported("IALSRecommender", recommender, matrix), np.random.default_rng(1))
    recommender = CosineKNNRecommender(matrix, top_k=100, n_threads=1).learn()
    yield (
        "trained neighbours",
        filterable(exported("CosineKNNRecommender", recommender, matrix), np.random.default_rng(1)),
    )


def answer(served: Served, body: bytes) -> bytes:
    prepared = plan(parse(RecommendRequest, body), served)
    (ranking,) = served.model.rank([prepared.query])
    answer = ORIGIN.before(encode_fields(ranking.from_place(prepared.offset), served.fragments, prepared))
    return answer if isinstance(answer, bytes) else b"".join(answer)


def kinds(rng: np.random.Generator, chosen: np.ndarray) -> dict[str, Callable[[int], dict[str, Any]]]:
    """The fields beside a user, by name of the row; each is given a number that no other request has.

    `chosen` are the columns of all interactions.
    """
    own = ids("i", N_ITEMS)

    def history(size: int = 10) -> list[str]:
        return [own[i] for i in dict.fromkeys(rng.choice(chosen, 10 * size).tolist())][:size]

    return {
        "no filter": lambda _: {},
        "filter keeps 50%": lambda _: {"filter": {"year": {"lt": 0.5}}},
        "filter keeps 5%": lambda _: {"filter": {"year": {"lt": 0.05}}},
        "filter keeps 0.1%": lambda _: {"filter": {"year": {"lt": 0.001}}},
        "new filter, 50%": lambda number: {"filter": {"year": {"lt": 0.5 + number * 1e-9}}},
        "include_items, 200": lambda _: {"include_items": [own[i] for i in rng.integers(0, N_ITEMS, 200)]},
        "offset 100": lambda _: {"offset": 100},
        "history of 10": lambda _: {"user_id": None, "history": history()},
        "history of 10 joined": lambda _: {"history": history()},
        "history of 20 joined": lambda _: {"history": history(20)},
        "history of 120 joined": lambda _: {"history": history(120)},
        "20 dislikes": lambda _: {"dislikes": history(20)},
        "100 shown": lambda _: {"shown": history(100)},
        "20 dislikes, 100 shown": lambda _: {"dislikes": history(20), "shown": history(100)},
        "explain 3": lambda _: {"explain": 3},
        "diversity 0.3": lambda _: {"diversity": 0.3},
        "pin": lambda _: {"pins": [{"item_id": "i7", "position": 0}]},
        "unknown, popular": lambda _: {"user_id": "nobody", "fallback": "popular"},
    }


def in_process(served: Served) -> Iterator[Spend]:
    def spend(body: bytes) -> float:
        began = time.thread_time()
        answer(served, body)
        return time.thread_time() - began

    yield spend


def over_http(served: Served) -> Iterator[Spend]:
    shares = served.filters.fields["year"]
    assert isinstance(shares, NumberField)
    rows = (f"i{item},,,{share}" for item, share in enumerate(shares.numbers.tolist()))
    with (
        tempfile.TemporaryDirectory() as folder,
        Server(filterable_home(Path(folder), "m", served.model, rows)) as http,
    ):

        def spend(body: bytes) -> float:
            before = processor_s(http.process.pid)
            http.client.post("/v1/recipes/m:recommend", content=body).raise_for_status()
            return processor_s(http.process.pid) - before

        yield spend


def measure(name: str, spend: Spend, chosen: np.ndarray) -> None:
    rng = np.random.default_rng(1)
    rows = kinds(rng, chosen)
    times: dict[str, list[float]] = {}
    number = 0
    for _ in range(ROUNDS):
        spent = dict.fromkeys(rows, 0.0)
        for user in rng.integers(0, N_USERS, REQUESTS_A_ROUND):
            for kind in rng.permutation(list(rows)):
                number += 1
                spent[kind] += spend(json.dumps({"user_id": f"u{user}", **rows[kind](number)}).encode())
        for kind, total in spent.items():
            times.setdefault(kind, []).append(total / REQUESTS_A_ROUND * 1e6)
    print(f"\n{name}, {N_ITEMS:,} items\n\n| request | µs | ratio |\n|---|---|---|")
    for kind, durations in times.items():
        ratio = statistics.median(a / b for a, b in zip(durations, times["no filter"], strict=True))
        print(f"| {kind} | {statistics.median(durations):.0f} | {ratio:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--http", action="store_true")
    parser.add_argument("--trained", action="store_true")
    options = parser.parse_args()
    print("\n".join(origin()))
    for name, model in trained_models() if options.trained else random_models():
        limit_blas_threads(1)
        for spend in over_http(model) if options.http else in_process(model):
            measure(name, spend, model.model.history.columns)


if __name__ == "__main__":
    main()

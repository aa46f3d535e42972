"""What do filters and the other fields of a request cost?"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import httpx
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
from tests.filter_trees import condition, fuzzed, widest
from tests.serving.artifacts import factor_model, served_model

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
    answer = ORIGIN.before(encode_fields(ranking.from_place(prepared.query.offset), served.fragments, prepared))
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


def fields(parser: argparse.ArgumentParser) -> None:
    """What do filters, histories, the fallback, reasons and rules add to a request? Without HTTP, one thread.

        python -m benchmarks filters            # 41,000 items; half a minute
        python -m benchmarks filters --http     # what a server spends on the same requests, in all its threads
        python -m benchmarks filters --trained  # with trained models; --http goes with it

    Each row is a whole request: its body is validated, the query prepared, ranked and encoded. Times are microseconds
    of the processor, medians of rounds; the ratio is to the same requests without the field, in the same rounds.
    Within a round each user asks for every row, in an order drawn for that user, so that all of them find the caches
    of the processor as mixed requests leave them. Vectors are random, with norms as uneven as those of trained models,
    unless models are trained. Items of a history are drawn as often as users chose them.
    """
    parser.add_argument("--http", action="store_true")
    parser.add_argument("--trained", action="store_true")
    options = parser.parse_args()
    print("\n".join(origin()))
    for name, model in trained_models() if options.trained else random_models():
        limit_blas_threads(1)
        for spend in over_http(model) if options.http else in_process(model):
            measure(name, spend, model.model.history.columns)


BOUND_MS = 5.0


def random_home(folder: Path) -> Path:
    rng, numbers = random.Random(1), np.random.default_rng(1)
    genres = ("|".join({f"g{rng.randint(0, 30)}" for _ in range(3)}) for _ in range(N_ITEMS))
    rows = (f"i{n},{genre},c{rng.randint(0, 90)},{rng.randint(1950, 2026)}" for n, genre in enumerate(genres))
    return filterable_home(folder, "m", served(ials(numbers), numbers).model, rows)


def milliseconds(
    server: Server, make: Callable[[random.Random], Any], count: int, statuses: Counter[int]
) -> list[float]:
    """Milliseconds of each request, ascending."""
    rng, spent = random.Random(count), []
    for number in range(count):
        body = {"user_id": f"u{number % N_USERS}", "filter": make(rng)}
        content = json.dumps({name: value for name, value in body.items() if value is not None}).encode()
        before = processor_s(server.process.pid)
        answer = server.client.post("/v1/recipes/m:recommend", content=content)
        spent.append((processor_s(server.process.pid) - before) * 1e3)
        statuses[answer.status_code] += 1
    return sorted(spent)


def random_filters(parser: argparse.ArgumentParser) -> None:
    """What does the server spend on a request with a random filter, over HTTP?

    41,000 items, three filter fields; filters that no request before had, right and wrong ones in turn, one request at
    a time. Processor time of all threads of the server, as the kernel counts it; other work on the machine makes it
    larger.
    """
    parser.add_argument("--filters", type=int, default=5000)
    options = parser.parse_args()
    print("\n".join(origin()))
    print("\n| filter | requests | median ms | p99 ms | highest ms | over 5 ms | statuses |")
    print("|---|---|---|---|---|---|---|")
    kinds: dict[str, tuple[Callable[[random.Random], Any], int]] = {
        "none": (lambda _: None, options.filters // 5),
        "one condition": (condition, options.filters // 5),
        "fuzzed": (fuzzed, options.filters),
        "32 conditions of 1,000 values": (widest, max(2, options.filters // 250)),
    }
    with tempfile.TemporaryDirectory() as folder, Server(random_home(Path(folder))) as server:
        for number in range(50):
            server.recommend("m", f"u{number}")
        for name, (make, count) in kinds.items():
            statuses: Counter[int] = Counter()
            spent = milliseconds(server, make, count, statuses)
            over = sum(duration > BOUND_MS for duration in spent)
            shown = ", ".join(f"{status}: {n}" for status, n in sorted(statuses.items()))
            p99 = spent[int(0.99 * len(spent))]
            print(
                f"| {name} | {count} | {median(spent):.2f} | {p99:.2f} | {spent[-1]:.2f} | {over} | {shown} |",
                flush=True,
            )


MANY_ITEMS, ELEMENTS, BODIES = 100_000, 256, 24
RECIPE = "/v1/recipes/films"


def before_a_year(rng: random.Random) -> dict[str, Any]:
    return {"year": {"lt": rng.random()}}


def element(rng: random.Random, filter_: dict[str, Any]) -> dict[str, Any]:
    return {"user_id": f"u{rng.randrange(N_USERS)}", "limit": 10, "filter": filter_}


def send_batches(url: str, seed: int, ready: Any, end: Any, statuses: Any) -> None:
    """Send batches until `end` is set, then put the counts of their statuses."""
    rng, counts = random.Random(seed), Counter[int]()
    filters = [[{"any": [before_a_year(rng) for _ in range(32)]} for _ in range(2)] for _ in range(BODIES * ELEMENTS)]
    elements = [element(rng, {"all": both}) for both in filters]
    bodies = [json.dumps({"requests": elements[number::BODIES]}).encode() for number in range(BODIES)]
    os.nice(19)
    ready.wait()
    with httpx.Client(base_url=url, timeout=120) as client:
        while not end.is_set():
            body = bodies[counts.total() % BODIES]
            counts[client.post(f"{RECIPE}:batch-recommend", content=body).status_code] += 1
    statuses.put(counts)


@contextmanager
def batches(url: str, clients: int) -> Iterator[Counter[int]]:
    """Run clients that send batches during the block. The counter has their statuses after the block."""
    ready, end = multiprocessing.Barrier(clients + 1), multiprocessing.Event()
    statuses: multiprocessing.Queue[Counter[int]] = multiprocessing.Queue()
    arguments = [(url, random.randrange(2**32), ready, end, statuses) for _ in range(clients)]
    processes = [multiprocessing.Process(target=send_batches, args=each) for each in arguments]
    for process in processes:
        process.start()
    ready.wait()
    time.sleep(1)
    counts: Counter[int] = Counter()
    try:
        yield counts
    finally:
        end.set()
        for process in processes:
            counts += statuses.get(timeout=120)
            process.join()


def single_requests(url: str, seconds: float) -> str:
    """Return the percentiles of requests that are sent one after the other, with pauses of 10 ms."""
    rng, took, statuses = random.Random(time.time()), list[float](), Counter[int]()
    ends_at = time.monotonic() + seconds
    with httpx.Client(base_url=url, timeout=120) as client:
        while time.monotonic() < ends_at:
            began = time.perf_counter()
            statuses[client.post(f"{RECIPE}:recommend", json=element(rng, before_a_year(rng))).status_code] += 1
            took.append((time.perf_counter() - began) * 1e3)
            time.sleep(0.01)
    p50, p90, p99 = np.percentile(took, (50, 90, 99))
    return f"p50 {p50:5.1f}  p90 {p90:5.1f}  p99 {p99:5.1f}  longest {max(took):5.1f} ms, {dict(statuses)}"


def beside_batches(parser: argparse.ArgumentParser) -> None:
    """How long do single requests with a new filter wait beside batches of new filters?

        python -m benchmarks filters beside                # 100,000 items, two clients with batches; a minute
        python -m benchmarks filters beside --batches 4 --rounds 5

    Each single request has a filter of one condition, and each element of a batch one of 64 conditions, that no
    request had before. Prints the milliseconds of the single requests without and with the batches, by turns, and the
    statuses. The clients of the batches have the lowest priority, so that they do not compete with the server for the
    processor.
    """
    parser.add_argument("--batches", type=int, default=2, help="clients with batches")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8)
    options = parser.parse_args()
    print("\n".join(origin()))
    rng = np.random.default_rng(0)
    rows = (f"i{item},,,{year}" for item, year in enumerate(rng.random(MANY_ITEMS)))
    with tempfile.TemporaryDirectory() as folder:
        home = filterable_home(Path(folder), "films", factor_model(N_USERS, MANY_ITEMS, 64), rows)
        with Server(home, fresh=True) as server:
            single_requests(server.url, 2)
            for _ in range(options.rounds):
                print(f"alone   {single_requests(server.url, options.seconds)}", flush=True)
                with batches(server.url, options.batches) as statuses:
                    beside = single_requests(server.url, options.seconds)
                print(f"batches {beside}; of the batches {dict(statuses)}", flush=True)


CASES = {"fields": fields, "random": random_filters, "beside": beside_batches}

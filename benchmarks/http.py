"""How many requests a second does the whole server answer?"""

from __future__ import annotations

import argparse
import contextlib
import os
import pickle
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import scipy.sparse as sps

from benchmarks.common import SHAPES, Shape, ids, interactions, origin
from benchmarks.scoring import wide_factors, with_rp3beta
from benchmarks.servers import (
    RECOMMEND,
    Load,
    Running,
    costed,
    floor,
    free_port,
    load,
    measured,
    prepare,
    running,
    running_svc,
    script,
    write_served,
    wrk,
)
from svc.model.ids import IdTable
from svc.model.model import Model
from svc.model.recommenders.factor_index import FactorIndex
from svc.model.recommenders.factors import SVDScorer
from svc.settings import Settings
from svc.training.fitting.export import assemble, to_history

CONNECTIONS = (1, 16, 64)
ROUNDS = {"quick": (3, 2), "full": (7, 4)}
"""Rounds, and seconds of each."""
TARGETS = {
    "a": {"floor": (1.8, 3.0, 3.0), "trivial": (None, None, 1.0), "fastapi": (None, None, 5)},
    "b": {"floor": (1.5, 2.2, 2.5), "fastapi": (None, None, 8)},
}
OURS = ("svc", "cached")
BATCH_RECOMMEND = "/v1/recipes/m:batch-recommend"


LIMIT = 10
BATCH = 256


def answer_size(url: str) -> int:
    request = urllib.request.Request(url, b'{"user_id":"u0"}', {"Content-Type": "application/json"})
    return len(urllib.request.urlopen(request).read())


def measure(shape: Shape, rounds: int, seconds: int, *, with_fastapi: bool) -> None:
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        prepare(shape, folder)
        servers = {
            "svc": running_svc(stack, folder).asked(RECOMMEND),
            "cached": running_svc(stack, folder, SVC_CACHED_ANSWERS=str(Settings().cached_answers)).asked(RECOMMEND),
        }
        size = answer_size(servers["svc"].url)
        servers["floor"] = stack.enter_context(floor(size))
        for kind in ("trivial", "fastapi") if with_fastapi else ():
            port = free_port()
            command = [sys.executable, "-m", "benchmarks.servers", kind, str(port), name]
            servers[kind] = stack.enter_context(running(command, port, "/openapi.json")).asked("/recommend")
        lua = script(folder, shape.n_users)
        print(f"\n({shape.name}) {shape.n_items:,} items, {shape.n_users:,} users, answers of {size} bytes\n")
        print("| connections | server | requests/s | CPU µs | p99 ms | svc's ratio to it | of cached | target |")
        print("|---|---|---|---|---|---|---|---|")
        for place, connections in enumerate(CONNECTIONS):
            found: dict[str, list[tuple[Load, float]]] = {server: [] for server in servers}
            for number in range(-1, rounds):
                for server, running_one in servers.items():
                    taken = costed(running_one, connections, seconds if number >= 0 else 1, lua)
                    if number >= 0:
                        found[server].append(taken)
            _print_rows(shape, place, found)


def _print_rows(shape: Shape, place: int, found: dict[str, list[tuple[Load, float]]]) -> None:
    for server, loads in found.items():
        if failed := sum(taken.failed for taken, _ in loads):
            print(f"{failed} answers of {server} were errors")
        ratios = [
            median(ours.rate / theirs.rate for (ours, _), (theirs, _) in zip(found[one], loads, strict=True))
            for one in OURS
        ]
        target = TARGETS.get(shape.name, {}).get(server, (None,) * 3)[place]
        rate, p99 = median(taken.rate for taken, _ in loads), median(taken.p99_ms for taken, _ in loads)
        cpu = median(cost for _, cost in loads) * 1e6
        shown = " | ".join("" if server in OURS else f"{ratio:.2f}" for ratio in ratios)
        figures = f"{rate:,.0f} | {cpu:,.0f} | {p99:.1f} | {shown} | {target or ''}"
        print(f"| {CONNECTIONS[place]} | {server} | {figures} |", flush=True)


def batches_and_latency(shape: Shape, seconds: int) -> None:
    """Users a second in batches of 256, and the latency of others while the server is busy."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        prepare(shape, folder)
        server = running_svc(stack, folder)
        single, batch = script(folder, shape.n_users), script(folder, shape.n_users, BATCH)
        print(f"\n({shape.name}) {shape.n_items:,} items, {shape.n_users:,} users\n")
        batches(folder, server, single, batch, seconds)
        capacity = load(server.url + RECOMMEND, 64, seconds, single).rate
        half = script(folder, shape.n_users, pause_ms=round(64 / capacity * 2 * 1000))
        for what, path, connections, lua in (
            ("one connection of :recommend", RECOMMEND, 1, single),
            ("64 connections of :recommend, half", RECOMMEND, 64, half),
            ("64 connections of :recommend without pause", RECOMMEND, 64, single),
            ("four clients of batches without pause", BATCH_RECOMMEND, 4, batch),
        ):
            latency(server, what, wrk(server.url + path, connections, 2 * seconds + 2, lua), single, seconds)


def batches(folder: Path, server: Running, single: Path, batch: Path, seconds: int) -> None:
    rates: dict[str, list[float]] = {"alone": [], "one": [], "two": [], "numpy": []}
    call = numpy_batch(folder)
    for _ in range(5):
        rates["alone"].append(load(server.url + RECOMMEND, 1, seconds, single).rate)
        rates["one"].append(BATCH * load(server.url + BATCH_RECOMMEND, 1, seconds, batch).rate)
        rates["two"].append(BATCH * load(server.url + BATCH_RECOMMEND, 2, seconds, batch).rate)
        began = time.perf_counter()
        for _ in range(3):
            call()
        rates["numpy"].append(3 * BATCH / (time.perf_counter() - began))
    alone, one, two, limit = (median(found) for found in rates.values())
    print(
        f"users a second: one by one {alone:,.0f}; batches of {BATCH} over one connection {one:,.0f}"
        f" ({one / alone:.1f} times), over two {two:,.0f}; numpy and encoding {limit:,.0f} ({limit / one:.2f} times)",
        flush=True,
    )


def numpy_batch(folder: Path) -> Callable[[], bytes]:
    """The matrix product on all cores, the cheapest exact selection, and the encoding, of as many users as a batch."""
    import numpy as np
    from pydantic_core import to_json

    with (folder / "irspack.pickle").open("rb") as file:
        recommender, users, items = pickle.load(file)
    user_vectors, item_vectors = recommender.get_user_embedding().copy(), recommender.get_item_embedding().copy()
    names, random = np.array(items), np.random.default_rng(0)

    def call() -> bytes:
        scores = user_vectors[random.integers(0, len(users), BATCH)] @ item_vectors.T
        best = np.argpartition(scores, -LIMIT, axis=1)[:, -LIMIT:]
        found = np.take_along_axis(scores, best, axis=1)
        order = np.argsort(-found, axis=1)
        best, found = np.take_along_axis(best, order, axis=1), np.take_along_axis(found, order, axis=1)
        pairs = zip(names[best].tolist(), found.tolist(), strict=True)
        return to_json([[{"item_id": i, "score": s} for i, s in zip(*pair, strict=True)] for pair in pairs])

    return call


def latency(server: Running, what: str, command: list[str], single: Path, seconds: int) -> None:
    """The 99th percentiles of one more client, who asks for health and then for recommendations, and of the load."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as busy:
        time.sleep(0.5)
        health = load(server.url + "/v1/health", 1, seconds, None)
        one = load(server.url + RECOMMEND, 1, seconds, single)
        others = measured(busy.communicate()[0])
    print(
        f"beside {what}: p99 of /v1/health {health.p99_ms:.1f} ms, of :recommend {one.p99_ms:.1f} ms;"
        f" the load itself {others.rate:,.0f} requests/s, p99 {others.p99_ms:.1f} ms",
        flush=True,
    )


def narrow_model(parser: argparse.ArgumentParser) -> None:
    """How many requests a second does the whole server answer, beside the floor of its stack and a FastAPI service?

        python -m benchmarks http [--profile quick|full] [--shapes a,b] [--no-fastapi] [--batch]

    The servers run at once and are loaded in turn, round by round, by wrk in a process of its own: `svc serve` with
    one trained model, which ranks for every answer (svc, with SVC_CACHED_ANSWERS=0) or keeps answers as it does by
    default (cached), a bare ASGI application on hypercorn's trio worker (the floor, which answered svc's requests
    until 2.1), FastAPI that returns ten items without ranking any (trivial), and FastAPI with irspack. Every request
    asks for ten items of a random known user. Shape (a) has fewer users than answers are kept, so after a moment the
    cached server ranks none; at (b) it knows one in seven, at (c) one in twenty-four. Ratios are medians of the ratios
    within a round, so a busy neighbour falls out of them; absolute rates hold for the machine named. The 99th
    percentile is that of the median round. `CPU µs` is what the server's process used for a request, in user and
    system mode on all its threads.

    `--batch` asks svc alone: users a second one by one and in batches of 256, beside what numpy's matrix product, its
    `argpartition` and the encoding of the answer take for as many users in this process; then the latency of others
    while the server is busy. A load of `half` leaves each client a pause, so that about half the capacity is asked
    for.
    """
    parser.add_argument("--profile", choices=ROUNDS, default="quick")
    parser.add_argument("--shapes", default="a,b")
    parser.add_argument("--no-fastapi", action="store_true")
    parser.add_argument("--batch", action="store_true", help="batches and the latency of others instead")
    options = parser.parse_args()
    print("\n".join(origin()))
    rounds, seconds = ROUNDS[options.profile]
    for shape in options.shapes.split(","):
        if options.batch:
            batches_and_latency(SHAPES[shape], seconds)
        else:
            measure(SHAPES[shape], rounds, seconds, with_fastapi=not options.no_fastapi)


def prepare_wide(folder: Path) -> None:
    """Write the blend of shape (d) as an artifact with its recipe."""
    shape = SHAPES["d"]
    matrix = interactions(shape)
    blend = with_rp3beta(wide_factors(matrix, shape.components), matrix, to_history(matrix))
    users, items = ids("u", shape.n_users), ids("i", shape.n_items)
    model = assemble(blend, user_ids=users, item_ids=items, X=matrix, features=None)
    write_served(model, "IALSRecommender", folder)


def wide_model(parser: argparse.ArgumentParser) -> None:
    """What does a request to a blend of 680 factors cost, beside a narrow iALS and beside one connection?

        python -m benchmarks http wide [--rounds 5] [--seconds 6]

    The servers run at once and are loaded in turn, as in `http`, without kept answers: shape (d), blended with
    RP3beta, as numpy alone scans it (numpy) and with the extra `fast` (fast), and an iALS of shape (b) (narrow).
    Medians of the rounds are shown; `CPU µs` is what the server's process used for a request. Clients share the cores
    with the servers.
    """
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=6)
    options = parser.parse_args()
    print("\n".join(origin()))
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        wide, narrow, hidden = (Path(name) / part for part in ("wide", "narrow", "hidden"))
        for folder in (wide, narrow, hidden):
            folder.mkdir()
        prepare_wide(wide)
        prepare(SHAPES["b"], narrow)
        (hidden / "sitecustomize.py").write_text("import sys\nsys.modules['numkong'] = None\n", encoding="utf-8")
        servers = {
            "numpy": running_svc(stack, wide, PYTHONPATH=str(hidden)).asked(RECOMMEND),
            "fast": running_svc(stack, wide).asked(RECOMMEND),
            "narrow": running_svc(stack, narrow).asked(RECOMMEND),
        }
        lua = script(Path(name), SHAPES["d"].n_users)
        print("\n| connections | server | requests/s | CPU µs | p99 ms |\n|---|---|---|---|---|")
        for connections in CONNECTIONS:
            taken: dict[str, list[tuple[Load, float]]] = {server: [] for server in servers}
            for number in range(-1, options.rounds):  # the first round only warms up
                for server, running in servers.items():
                    measured = costed(running, connections, options.seconds, lua)
                    if number >= 0:
                        taken[server].append(measured)
            for server, loads in taken.items():
                if failed := sum(load.failed for load, _ in loads):
                    print(f"{failed} answers of {server} were errors")
                rate, p99 = median(load.rate for load, _ in loads), median(load.p99_ms for load, _ in loads)
                cpu = median(cost for _, cost in loads) * 1e6
                print(f"| {connections} | {server} | {rate:,.0f} | {cpu:,.0f} | {p99:.1f} |", flush=True)


PUBLISHED = {50: (70, 437), 250: (24, 160)}
"""Requests a second by number of factors: exact, and approximate. Of 32 cores."""
N_USERS, N_ITEMS, N_INTERACTIONS = 50_000, 1_000_000, 2_500_000
FEW_CONNECTIONS = (1, 16)


def prepare_random(components: int, folder: Path) -> None:
    """Write a model of normal random vectors, whose users have no history."""
    rng = np.random.default_rng(0)
    users, items = (rng.standard_normal((count, components), dtype=np.float32) for count in (N_USERS, N_ITEMS))
    model = Model(
        user_ids=IdTable.from_ids(ids("u", N_USERS)),
        item_ids=IdTable.from_ids(ids("i", N_ITEMS)),
        history=to_history(sps.csr_matrix((N_USERS, N_ITEMS))),
        scorer=SVDScorer(users, FactorIndex.build(items), None),
        features=None,
    )
    model.ready()
    write_served(model, "TruncatedSVDRecommender", folder)


def measure_published(components: int, kind: str, seconds: int) -> None:
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        if kind == "random":
            prepare_random(components, folder)
        else:
            prepare(Shape(kind, N_USERS, N_ITEMS, N_INTERACTIONS, components), folder)
        server = running_svc(stack, folder).asked(RECOMMEND)
        lua = script(folder, N_USERS)
        exact, approximate = PUBLISHED[components]
        for connections in FEW_CONNECTIONS:
            costed(server, connections, 2, lua)
            found, cpu_s = costed(server, connections, seconds, lua)
            figures = f"{found.rate:,.0f} | {found.p99_ms:,.0f} | {cpu_s * 1e3:.1f} | {exact} | {approximate}"
            print(f"| {components} | {kind} | {connections} | {figures} |", flush=True)


def published_shapes(parser: argparse.ArgumentParser) -> None:
    """How many exact answers a second are there in the shapes of Oryx 2's published table, the only one of its kind?

        python -m benchmarks http published [--components 50 250] [--seconds 6]

    One million items, 50 and 250 factors. The table (its project's documentation, a machine of 32 cores) has 70 and 24
    requests a second when every item is looked at, and 437 and 160 with an approximate search that looks at 30% of
    them. Here every answer is exact. Two kinds of data: `tastes` are the vectors that iALS finds in generated
    interactions; `random` are normal numbers, for which no item can be left out, since all norms are alike. The server
    is asked over HTTP by wrk, which shares its cores, at one connection and at 16; requests together are scored
    together.
    """
    parser.add_argument("--components", type=int, nargs="+", choices=PUBLISHED, default=list(PUBLISHED))
    parser.add_argument("--seconds", type=int, default=6)
    options = parser.parse_args()
    print("\n".join(origin()))
    print(f"\n{os.cpu_count()} cores, {N_ITEMS:,} items; published of 32 cores\n")
    print("| factors | data | connections | svc, exact requests/s | p99 ms | CPU ms | exact | approximate |")
    print("|---|---|---|---|---|---|---|---|")
    for components in options.components:
        for kind in ("tastes", "random"):
            measure_published(components, kind, options.seconds)


CASES = {"narrow": narrow_model, "wide": wide_model, "published": published_shapes}

"""How many requests a second does the whole server answer, beside the floor of its stack and a FastAPI service?

    python -m benchmarks http [--profile quick|full] [--shapes a,b] [--no-fastapi] [--batch]

The servers run at once and are loaded in turn, round by round, by wrk in a process of its own: `svc serve` with one
trained model, which ranks for every answer (svc, with SVC_CACHED_ANSWERS=0) or keeps answers as it does by default
(cached), a bare ASGI application on hypercorn's trio worker (the floor, which answered svc's requests until 2.1),
FastAPI that returns ten items without ranking any (trivial), and FastAPI with irspack. Every request asks for ten items
of a random known user. Shape (a) has fewer users than answers are kept, so after a moment the cached server ranks none;
at (b) it knows one in seven, at (c) one in twenty-four. Ratios are medians of the ratios within a round, so a busy
neighbour falls out of them; absolute rates hold for the machine named. The 99th percentile is that of the median round.
`CPU µs` is what the server's process used for a request, in user and system mode on all its threads.

`--batch` asks svc alone: users a second one by one and in batches of 256, beside what numpy's matrix product, its
`argpartition` and the encoding of the answer take for as many users in this process; then the latency of others
while the server is busy. A load of `half` leaves each client a pause, so that about half the capacity is asked for.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pickle
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.common import SHAPES, Shape, ids, interactions, origin
from svc.artifact import layout
from svc.model.codec import encode
from svc.model.load_model import running_irspack_version
from svc.model.model import Model
from svc.settings import Settings
from svc.training.fitting.export import assemble, to_scorer

KEY = "11" * 32
ENV = {
    "SVC_SIGNING_KEYS": f"k:{KEY}",
    "SVC_LOG_LEVEL": "warning",
    "SVC_MAX_PAYLOAD_BYTES": "2GiB",
    "OPENBLAS_NUM_THREADS": "1",
    "SVC_CACHED_ANSWERS": "0",
}
CONNECTIONS = (1, 16, 64)
ROUNDS = {"quick": (3, 2), "full": (7, 4)}
"""Rounds, and seconds of each."""
TARGETS = {
    "a": {"floor": (1.8, 3.0, 3.0), "trivial": (None, None, 1.0), "fastapi": (None, None, 5)},
    "b": {"floor": (1.5, 2.2, 2.5), "fastapi": (None, None, 8)},
}
OURS = ("svc", "cached")
RECOMMEND = "/v1/recipes/m:recommend"
BATCH_RECOMMEND = "/v1/recipes/m:batch-recommend"
START_S = 120.0
MANY_ITEMS = 200_000
"""From here on a model is trained for one epoch only."""


LIMIT = 10
BATCH = 256
TICKS = os.sysconf("SC_CLK_TCK")


class Load(NamedTuple):
    """What wrk measured: requests, and those a second, the 99th percentile in milliseconds, answers other than 2xx."""

    requests: int
    rate: float
    p99_ms: float
    failed: int


class Running(NamedTuple):
    """A server process and the URL that is asked."""

    url: str
    pid: int

    def asked(self, path: str) -> Running:
        return Running(self.url + path, self.pid)

    def cpu_s(self) -> float:
        """User and system time that the process has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS


def prepare(shape: Shape, folder: Path) -> None:
    """Train a model of this shape; write it as an artifact with its recipe, and pickled for irspack."""
    from irspack import IALSRecommender

    matrix = interactions(shape)
    epochs = 4 if shape.n_items < MANY_ITEMS else 1
    recommender = IALSRecommender(
        matrix, n_components=shape.components, alpha0=0.05, reg=0.002, train_epochs=epochs
    ).learn()
    users, items = ids("u", matrix.shape[0]), ids("i", matrix.shape[1])
    with (folder / "irspack.pickle").open("wb") as file:
        pickle.dump((recommender, users, items), file)
    model = assemble(to_scorer(recommender, "IALSRecommender"), user_ids=users, item_ids=items, X=matrix, features=None)
    write_served(model, "IALSRecommender", folder)


def write_model(model: Model, best_class: str, path: Path) -> None:
    """Write the model as an artifact that the servers of the benchmarks take."""
    header = {
        "irspack_version": running_irspack_version(),
        "best_class": best_class,
        "algorithms": [best_class],
        "metric": "ndcg",
        "cutoff": 20,
    }
    with path.open("wb") as out:
        layout.write(out, kid="k", key=bytes.fromhex(KEY), header=header, payload=encode(model))


def write_served(model: Model, best_class: str, folder: Path) -> None:
    """Write the model as the artifact of the recipe `m` in `folder`, which a server can be pointed at."""
    write_model(model, best_class, folder / "m.svc")
    recipe = {
        "name": "m",
        "source": {"type": "csv", "path": "none.csv"},
        "schema": {"user_column": "u", "item_column": "i"},
        "training": {"algorithms": [best_class]},
        "output": {"path": "../m.svc", "versioning": "always_overwrite"},
    }
    (folder / "recipes").mkdir()
    (folder / "recipes" / "m.yaml").write_text(json.dumps(recipe))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(command: list[str], port: int, ready: str, **env: str) -> Iterator[Running]:
    """A server process that answers at the path `ready`."""
    process = subprocess.Popen(command, env={**os.environ, **ENV, **env}, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_S
        while True:
            try:
                urllib.request.urlopen(url + ready, timeout=5).read()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{command} does not answer") from None
                time.sleep(0.1)
        yield Running(url, process.pid)
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def floor(size: int) -> Iterator[Running]:
    """A bare ASGI application on the HTTP library that svc uses, with answers of `size` bytes."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.http_servers", "floor", str(port), str(size)]
    with running(command, port, "/") as server:
        yield server


def script(folder: Path, n_users: int, size: int = 0, pause_ms: int = 0) -> Path:
    """A wrk script that asks for random users: one a request, or `size` of them in a batch.

    Each connection rests for `pause_ms` on average before a request.
    """
    one = f"'{{\"user_id\":\"u' .. math.random(0, {n_users - 1}) .. '\"}}'"
    body = f"return wrk.format(nil, nil, nil, {one})"
    if size:
        body = (
            f"local t = {{}}; for i = 1, {size} do t[i] = {one} end; "
            "return wrk.format(nil, nil, nil, '{\"requests\":[' .. table.concat(t, ',') .. ']}')"
        )
    path = folder / f"load{size}-{pause_ms}.lua"
    lines = [
        'wrk.method = "POST"',
        'wrk.headers["Content-Type"] = "application/json"',
        f"request = function() {body} end",
    ]
    if pause_ms:
        lines.append(f"delay = function() return math.random(0, {2 * pause_ms}) end")
    path.write_text("\n".join(lines) + "\n")
    return path


def wrk(url: str, connections: int, seconds: int, lua: Path | None) -> list[str]:
    return ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", *(["-s", str(lua)] if lua else []), url]


def load(url: str, connections: int, seconds: int, lua: Path | None) -> Load:
    command = wrk(url, connections, seconds, lua)
    return measured(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def measured(text: str) -> Load:
    """What wrk says of a load."""
    requests = re.search(r"(\d+) requests in", text)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    p99 = re.search(r"99%\s+([\d.]+)(us|ms|s)", text)
    failed = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    assert requests
    assert rate
    assert p99
    scale = {"us": 1e-3, "ms": 1.0, "s": 1e3}[p99[2]]
    return Load(int(requests[1]), float(rate[1]), float(p99[1]) * scale, int(failed[1]) if failed else 0)


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
            command = [sys.executable, "-m", "benchmarks.http_servers", kind, str(port), name]
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


def costed(server: Running, connections: int, seconds: int, lua: Path) -> tuple[Load, float]:
    """A load, and the seconds of processor time that the server used for each of its requests."""
    before = server.cpu_s()
    taken = load(server.url, connections, seconds, lua)
    return taken, (server.cpu_s() - before) / taken.requests


def running_svc(stack: contextlib.ExitStack, folder: Path, **env: str) -> Running:
    port = free_port()
    command = [sys.executable, "-m", "svc", "serve", "--recipes", str(folder / "recipes"), "--port", str(port)]
    return stack.enter_context(running(command, port, "/v1/health", **env))


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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", choices=ROUNDS, default="quick")
    parser.add_argument("--shapes", default="a,b")
    parser.add_argument("--no-fastapi", action="store_true")
    parser.add_argument("--batch", action="store_true", help="batches and the latency of others instead")
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        sys.exit("this benchmark loads the servers with wrk: apt-get install wrk")
    print("\n".join(origin()))
    rounds, seconds = ROUNDS[options.profile]
    for shape in options.shapes.split(","):
        if options.batch:
            batches_and_latency(SHAPES[shape], seconds)
        else:
            measure(SHAPES[shape], rounds, seconds, with_fastapi=not options.no_fastapi)


if __name__ == "__main__":
    main()

"""How many requests a second does the whole server answer, beside the floor of its stack and a FastAPI service?

    python -m benchmarks http [--profile quick|full] [--shapes a,b] [--no-fastapi] [--batch] [--health]

Three servers run at once and are loaded in turn, round by round, by wrk in a process of its own: `svc serve` with one
trained model, a bare ASGI application on the same hypercorn (the floor), and FastAPI with irspack. Every request asks
for ten items of a random known user. Ratios are medians of the ratios within a round, so a busy neighbour falls out
of them; absolute rates hold for the machine named. The 99th percentile is that of the median round.
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
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.common import SHAPES, Shape, ids, interactions, origin
from svc.artifact import layout
from svc.model.codec import encode
from svc.model.skew import running_irspack_version
from svc.training.export import export

KEY = "11" * 32
CONNECTIONS = (1, 16, 64)
ROUNDS = {"quick": (3, 2), "full": (7, 4)}
"""Rounds, and seconds of each."""
TARGETS = {
    "a": {"floor": (0.8, 1.0, 1.1), "fastapi": (1.3, None, 2.5)},
    "b": {"floor": (0.55, 0.7, 1.0), "fastapi": (3, None, 8)},
}
START_S = 120.0


class Load(NamedTuple):
    """What wrk measured: requests a second, the 99th percentile in milliseconds, answers other than 2xx."""

    rate: float
    p99_ms: float
    failed: int


def prepare(shape: Shape, folder: Path) -> None:
    """Train a model of this shape; write it as an artifact with its recipe, and pickled for irspack."""
    from irspack import IALSRecommender

    matrix = interactions(shape)
    recommender = IALSRecommender(matrix, n_components=shape.components, alpha0=0.05, reg=0.002, train_epochs=4).learn()
    users, items = ids("u", matrix.shape[0]), ids("i", matrix.shape[1])
    with (folder / "irspack.pickle").open("wb") as file:
        pickle.dump((recommender, users, items), file)
    model = export(recommender, "IALSRecommender", user_ids=users, item_ids=items, X=matrix, features=None)
    header = {
        "irspack_version": running_irspack_version(),
        "best_class": "IALSRecommender",
        "algorithms": ["IALSRecommender"],
        "metric": "ndcg",
        "cutoff": 20,
    }
    with (folder / "m.svc").open("wb") as out:
        layout.write(out, kid="k", key=bytes.fromhex(KEY), header=header, payload=encode(model))
    recipe = {
        "name": "m",
        "source": {"type": "csv", "path": "none.csv"},
        "schema": {"user_column": "u", "item_column": "i"},
        "training": {"algorithms": ["IALSRecommender"]},
        "output": {"path": "../m.svc", "versioning": "always_overwrite"},
    }
    (folder / "recipes").mkdir()
    (folder / "recipes" / "m.yaml").write_text(json.dumps(recipe))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(command: list[str], port: int, ready: str) -> Iterator[str]:
    """A server process that answers at the path `ready`; its base URL."""
    environ = {**os.environ, "SVC_SIGNING_KEYS": f"k:{KEY}", "SVC_LOG_LEVEL": "warning", "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL)
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
        yield url
    finally:
        process.terminate()
        process.wait()


def script(folder: Path, n_users: int, size: int = 0) -> Path:
    """A wrk script that asks for random users: one a request, or `size` of them in a batch."""
    one = f"'{{\"user_id\":\"u' .. math.random(0, {n_users - 1}) .. '\"}}'"
    body = f"return wrk.format(nil, nil, nil, {one})"
    if size:
        body = (
            f"local t = {{}}; for i = 1, {size} do t[i] = {one} end; "
            "return wrk.format(nil, nil, nil, '{\"requests\":[' .. table.concat(t, ',') .. ']}')"
        )
    path = folder / f"load{size}.lua"
    path.write_text(
        f'wrk.method = "POST"\nwrk.headers["Content-Type"] = "application/json"\nrequest = function() {body} end\n'
    )
    return path


def load(url: str, connections: int, seconds: float, lua: Path | None) -> Load:
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", *(["-s", str(lua)] if lua else []), url]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    p99 = re.search(r"99%\s+([\d.]+)(us|ms|s)", text)
    failed = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    assert rate
    assert p99
    scale = {"us": 1e-3, "ms": 1.0, "s": 1e3}[p99[2]]
    return Load(float(rate[1]), float(p99[1]) * scale, int(failed[1]) if failed else 0)


def answer_size(url: str) -> int:
    request = urllib.request.Request(url, b'{"user_id":"u0"}', {"Content-Type": "application/json"})
    return len(urllib.request.urlopen(request).read())


def measure(shape: Shape, rounds: int, seconds: float, *, with_fastapi: bool) -> None:
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        prepare(shape, folder)
        urls = {"svc": _svc(stack, folder)}
        port = free_port()
        helper = [sys.executable, "-m", "benchmarks.http_servers"]
        size = str(answer_size(urls["svc"]))
        urls["floor"] = stack.enter_context(running([*helper, "floor", str(port), size], port, "/"))
        if with_fastapi:
            port = free_port()
            base = stack.enter_context(running([*helper, "fastapi", str(port), name], port, "/openapi.json"))
            urls["fastapi"] = base + "/recommend"
        lua = script(folder, shape.n_users)
        print(f"\n({shape.name}) {shape.n_items:,} items, {shape.n_users:,} users, answers of {size} bytes\n")
        print("| connections | server | requests/s | p99 ms | svc's ratio to it | target |\n|---|---|---|---|---|---|")
        for place, connections in enumerate(CONNECTIONS):
            found: dict[str, list[Load]] = {server: [] for server in urls}
            for number in range(-1, rounds):
                for server, url in urls.items():
                    taken = load(url, connections, seconds if number >= 0 else 1, lua)
                    if number >= 0:
                        found[server].append(taken)
            _print_rows(shape, place, found)


def _svc(stack: contextlib.ExitStack, folder: Path) -> str:
    port = free_port()
    command = [sys.executable, "-m", "svc", "serve", "--recipes", str(folder / "recipes"), "--port", str(port)]
    return stack.enter_context(running(command, port, "/v1/health")) + "/v1/recipes/m:recommend"


def _print_rows(shape: Shape, place: int, found: dict[str, list[Load]]) -> None:
    for server, loads in found.items():
        if failed := sum(taken.failed for taken in loads):
            print(f"{failed} answers of {server} were errors")
        ratio = median(ours.rate / theirs.rate for ours, theirs in zip(found["svc"], loads, strict=True))
        target = TARGETS.get(shape.name, {}).get(server, (None,) * 3)[place]
        rate, p99 = median(taken.rate for taken in loads), median(taken.p99_ms for taken in loads)
        shown = "" if server == "svc" else f"{ratio:.2f}"
        print(f"| {CONNECTIONS[place]} | {server} | {rate:,.0f} | {p99:.1f} | {shown} | {target or ''} |", flush=True)


def batches_and_health(shape: Shape, seconds: float) -> None:
    """Users a second in batches of 256, and the latency of others meanwhile."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        prepare(shape, folder)
        single_url = _svc(stack, folder)
        batch_url = single_url.replace(":recommend", ":batch-recommend")
        health_url = single_url.partition("/v1/")[0] + "/v1/health"
        single, batch = script(folder, shape.n_users), script(folder, shape.n_users, 256)
        alone = load(single_url, 1, seconds, single)
        batched = load(batch_url, 1, seconds, batch)
        print(f"\n({shape.name}) one by one {alone.rate:,.0f} users/s; batches of 256 over one connection "
              f"{batched.rate * 256:,.0f} users/s = {batched.rate * 256 / alone.rate:.1f}x")  # fmt: skip
        for label, background in (
            ("64 connections of :recommend", (single_url, 64, single)),
            ("four clients of batches", (batch_url, 4, batch)),
        ):
            url, connections, lua = background
            command = ["wrk", "-t1", f"-c{connections}", f"-d{3 * seconds + 2}s", "-s", str(lua), url]
            busy = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            health = load(health_url, 1, seconds, None)
            one = load(single_url, 1, seconds, single)
            busy.wait()
            print(f"meanwhile {label}: /v1/health p99 {health.p99_ms:.1f} ms, :recommend p99 {one.p99_ms:.1f} ms")


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
            batches_and_health(SHAPES[shape], seconds)
        else:
            measure(SHAPES[shape], rounds, seconds, with_fastapi=not options.no_fastapi)


if __name__ == "__main__":
    main()

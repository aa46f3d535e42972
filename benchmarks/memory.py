"""How much memory do models take, and what do several workers cost and share?"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.common import SHAPES, Shape, forget_peak, held_bytes, origin, processes, status_bytes
from benchmarks.servers import (
    RECOMMEND,
    Running,
    measured,
    prepare,
    running_svc,
    script,
    write_model,
    write_served,
    wrk,
)
from benchmarks.swap import prepare as prepare_swaps
from benchmarks.swap import put_next
from tests.e2e.server import Server, write_recipe
from tests.serving.artifacts import factor_model, write_artifact

BASE_BYTES = 0.15 * (1 << 30)
MB = 1e6
ENV = {"SVC_MAX_PAYLOAD_BYTES": "2GiB", "SVC_LOG_LEVEL": "info"}
SIZES = {"1 MB": (1_000, 1_000), "56 MB": (50_000, 50_000), "650 MB": (700_000, 450_000)}
COMPONENTS = 128
BODY_BYTES = 64 << 20
BODIES = {
    "blanks": b'{"user_id":"u1"' + b" " * (BODY_BYTES - 16) + b"}",
    "one text": b'{"user_id":"' + b"u" * (BODY_BYTES - 14) + b'"}',
    "texts": b'{"requests":["' + b'","'.join([b"t" * 60_000] * (BODY_BYTES // 60_003)) + b'"]}',
    "features": b'{"requests":['
    + b",".join([b'{"user_features":{' + b",".join(b'"f%d":"%b"' % (n, b"t" * 8_000) for n in range(32)) + b"}}"] * 256)
    + b"]}",
    "numbers": b'{"requests":[' + b"1," * (BODY_BYTES // 2 - 8) + b"1]}",
}


def swap(server: Server, folder: Path, number: int) -> None:
    """Put the other artifact in place and wait until it is served."""
    put_next(folder, number)
    server.wait_for("artifact_loaded", times=number + 1)
    server.recommend("a", "u1").raise_for_status()


def measure(name: str, swaps: int, *, metadata: bool = False) -> None:
    n_users, n_items = SIZES[name]
    label = f"{name} + metadata" if metadata else name
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        recipes = prepare_swaps(folder, n_users, n_items, **(_metadata(folder, n_items) if metadata else {}))
        size = (folder / "a.svc").stat().st_size
        with Server(recipes, env=ENV, fresh=True) as server:
            server.recommend("a", "u1").raise_for_status()
            row("artifact", label, size, size)
            row("serving", label, server.resident_bytes(), size)
            forget_peak(server.process.pid)
            for number in range(1, swaps + 1):
                swap(server, folder, number)
                if number in (1, 10, 20, 50, 100):
                    row(f"after {number} swaps", label, server.resident_bytes(), size)
            row("peak of swaps", label, status_bytes(server.process.pid, "VmHWM"), size)


def _metadata(folder: Path, n_items: int) -> dict[str, Any]:
    lines = [f"i{number},The title of item {number},{1900 + number % 120}" for number in range(n_items)]
    (folder / "items.csv").write_text("\n".join(["item_id,title,year", *lines]), encoding="utf-8")
    source = {"type": "csv", "path": str(folder / "items.csv")}
    return {"item_metadata": {"source": source, "id_column": "item_id", "fields": ["title", "year"]}}


def bodies() -> None:
    """What the server needs more at its peak while it answers a large body, beside the size of that body."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_recipe(folder, "a", folder / "a.svc")
        write_artifact(folder / "a.svc", factor_model(*SIZES["1 MB"], COMPONENTS))
        for name, body in BODIES.items():
            with Server(folder, env=ENV, fresh=True) as server:
                server.recommend("a", "u1").raise_for_status()
                before = server.resident_bytes()
                forget_peak(server.process.pid)
                verb = "batch-recommend" if name in {"texts", "numbers", "features"} else "recommend"
                status = server.client.post(f"/v1/recipes/a:{verb}", content=body).status_code
                cost = status_bytes(server.process.pid, "VmHWM") - before
                size = len(body)
                found = f"status {status}, peak +{cost / MB:.0f} MB = {cost / size:.2f} times its size"
                print(f"body of {size / MB:.0f} MB, {name:9} {found}", flush=True)


def row(what: str, name: str, peak: float, size: int) -> None:
    print(f"{name:18} {what:18} {peak / MB:9.1f} MB   ratio {(peak - BASE_BYTES) / size:6.2f}", flush=True)


def model_memory(parser: argparse.ArgumentParser) -> None:
    """How much memory does a served model take, while it serves, while it is swapped, and after many swaps?

        python -m benchmarks memory            # artifacts of about 1 and 56 MB, 20 swaps each
        python -m benchmarks memory --full     # also 650 MB, and 100 swaps

    Models are random factors: their size is that of trained ones. `ratio` is (resident − 0.15 GiB) / artifact, to be
    held against 1.3 while serving and 2.4 at the peak of a swap; a small artifact leaves it below zero. The rows with
    metadata are of a recipe that joins a title and a year, read from a csv file, to every item. Last, what a body of
    64 MiB costs at its peak, for what such bodies may hold.
    """
    parser.add_argument("--full", action="store_true", help="also 650 MB, and 100 swaps")
    full = parser.parse_args().full
    print("\n".join(origin()))
    for name in SIZES if full else ("1 MB", "56 MB"):
        measure(name, (20 if name == "650 MB" else 100) if full else 20)
    for name in ("1 MB", "56 MB"):
        measure(name, 20, metadata=True)
    bodies()


CONNECTIONS = 8
"""Of each client."""
N_WORKERS = 4
ALLOWED_MODELS, ALLOWED_MB_A_WORKER = 1.1, 95.0
ASKED = 200
LOOK_S, SETTLED_S = 0.02, 5.0


class Cost(NamedTuple):
    """Seconds of processor time a request, requests a second, and the largest 99th percentile in milliseconds."""

    cpu_s: float
    rate: float
    p99_ms: float


def cpu_s(servers: Sequence[Running]) -> float:
    return sum(Running("", pid).cpu_s() for server in set(servers) for pid in processes(server.pid))


def loaded(servers: Sequence[Running], seconds: int, lua: Path, headers: Sequence[str]) -> Cost:
    """Load each server as often as it is named, all at once."""
    before = cpu_s(servers)
    more = [part for header in headers for part in ("-H", header)]
    commands = [[*wrk(server.url, CONNECTIONS, seconds, lua), *more] for server in servers]
    clients = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    loads = [measured(client.communicate()[0]) for client in clients]
    if failed := sum(load.failed for load in loads):
        raise RuntimeError(f"{failed} answers were errors")
    used_s = cpu_s(servers) - before
    requests = sum(load.requests for load in loads)
    return Cost(used_s / requests, sum(load.rate for load in loads), max(load.p99_ms for load in loads))


def measure_workers(shape: Shape, rounds: int, seconds: int) -> None:
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        prepare(shape, folder)
        lua = script(folder, shape.n_users)
        alone, beside, two, three = (
            running_svc(stack, folder, SVC_WORKERS=str(count)).asked(RECOMMEND) for count in (1, 1, 2, 3)
        )
        arrangements = {
            "one process": [alone],
            "two processes": [alone, beside],
            "2 workers": [two] * 2,
            "3 workers": [three] * 3,
        }
        for connections, headers in (("kept", []), ("new for each request", ["Connection: close"])):
            costs: dict[str, list[Cost]] = {arrangement: [] for arrangement in arrangements}
            for number in range(-1, rounds):
                for arrangement, servers in arrangements.items():
                    cost = loaded(servers, seconds if number >= 0 else 1, lua, headers)
                    if number >= 0:
                        costs[arrangement].append(cost)
            print(f"\n({shape.name}) {shape.n_items:,} items, {CONNECTIONS} connections a worker, {connections}\n")
            print_table(costs)


def print_table(costs: dict[str, list[Cost]]) -> None:
    """Medians, and medians of the ratios to the one process in the same round."""
    print("| server | requests/s | CPU µs | p99 ms | CPU: ratio to one process | answers: ratio |")
    print("|---|---|---|---|---|---|")
    for arrangement, taken in costs.items():
        pairs = list(zip(taken, costs["one process"], strict=True))
        cpu = median(cost.cpu_s / base.cpu_s for cost, base in pairs)
        answers = median(cost.rate / base.rate for cost, base in pairs)
        rate, cpu_us = median(cost.rate for cost in taken), median(cost.cpu_s for cost in taken) * 1e6
        p99_ms = median(cost.p99_ms for cost in taken)
        print(f"| {arrangement} | {rate:,.0f} | {cpu_us:.0f} | {p99_ms:.1f} | {cpu:.2f} | {answers:.2f} |", flush=True)


def whole_bytes(server: Running) -> int:
    """Memory of all processes of a server: what each has for itself, and each memory file once, mapped or not."""
    files: dict[int, int] = {}
    private = 0
    for pid in processes(server.pid):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # it has been closed meanwhile
                if str(path.readlink()).startswith("/memfd:"):
                    status = path.stat()
                    files[status.st_ino] = 512 * status.st_blocks
        sizes = dict(line.split()[:2] for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
        private += (int(sizes["Pss:"]) - int(sizes["Pss_Shmem:"])) << 10
    return private + sum(files.values())


def version(server: Running, number: int) -> str:
    """Ask for a user; the version of the model that answers."""
    body = f'{{"user_id":"u{number}"}}'.encode()
    request = urllib.request.Request(server.url + RECOMMEND, body, {"Content-Type": "application/json"})
    return str(json.loads(urllib.request.urlopen(request).read())["model_version"])


def shared_memory(n_vectors: int) -> None:
    """What each process of a server takes that has a model with so many users, and as many items; then a swap."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        write_served(factor_model(n_vectors, n_vectors, COMPONENTS), "IALSRecommender", folder)
        write_model(factor_model(n_vectors, n_vectors, COMPONENTS, seed=1), "IALSRecommender", folder / "next.svc")
        size = (folder / "m.svc").stat().st_size / MB
        server = running_svc(stack, folder, SVC_WORKERS=str(N_WORKERS), SVC_WATCH_INTERVAL="1")
        for number in range(ASKED):  # each over a connection of its own, so that every worker answers
            first = version(server, number)
        parent, template, *workers = (held_bytes(pid) / MB for pid in processes(server.pid))
        pss = parent + template + sum(workers)
        allowed = ALLOWED_MODELS * size + ALLOWED_MB_A_WORKER * N_WORKERS
        print(f"\nmodel of {size:,.0f} MB, {N_WORKERS} workers: {pss:,.0f} MB in all, allowed {allowed:,.0f} MB")
        each = " ".join(f"{worker:,.0f}" for worker in workers)
        print(f"Pss: parent {parent:,.0f} MB, template {template:,.0f} MB, workers {each} MB", flush=True)
        before = peak = whole_bytes(server)
        (folder / "next.svc").rename(folder / "m.svc")
        while version(server, 0) == first:
            peak = max(peak, whole_bytes(server))
            time.sleep(LOOK_S)
        time.sleep(SETTLED_S)
        after = whole_bytes(server)
        figures = f"{before / MB:,.0f} MB before, {peak / MB:,.0f} MB at most, {after / MB:,.0f} MB after"
        print(f"swap: {figures}; {(peak - before) / MB / size:.2f} models more at the peak", flush=True)


def workers(parser: argparse.ArgumentParser) -> None:
    """What does a request cost with several workers, how many more do they answer, and what do they share of a large
    model?

        python -m benchmarks memory workers            # shapes (a) and (b), and a model of 1 GiB with 4 workers
        python -m benchmarks memory workers --small    # shape (a), rounds of one second, and a model of 64 MiB

    The servers run at once and are loaded in turn, round by round: one process, two processes apart, and one server
    with 2 and with 3 workers. For each worker or process a wrk with 8 connections asks for ten items of random known
    users, so each has as much to do at a time as the one process alone. `CPU µs` is what all processes of a server
    used for a request. Ratios to the one process are medians of the ratios within a round. The clients take their part
    of the cores: what two processes apart reach is what two workers can. Once more, each request opens a connection of
    its own.

    Then the proportional memory (Pss) of each process of a server with 4 workers, after all have answered, in all and
    beside 1.1 times the model and 95 MB a worker; and the memory of all before, in, and after a swap, looked at often.
    """
    parser.add_argument("--small", action="store_true", help="shape (a), short rounds, and a model of 64 MiB")
    small = parser.parse_args().small
    print("\n".join(origin()))
    for shape in ("a",) if small else ("a", "b"):
        measure_workers(SHAPES[shape], rounds=3 if small else 15, seconds=1 if small else 2)
    shared_memory(64_000 if small else 1 << 20)


CASES = {"model": model_memory, "workers": workers}

"""How long do single requests with a new filter wait beside batches of new filters?

    python -m benchmarks.new_filters                # 100,000 items, two clients with batches; a minute
    python -m benchmarks.new_filters --batches 4 --rounds 5

Each single request has a filter of one condition, and each element of a batch one of 64 conditions, that no request had
before. Prints the milliseconds of the single requests without and with the batches, by turns, and the statuses. The
clients of the batches have the lowest priority, so that they do not compete with the server for the processor.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.common import origin
from tests.e2e.server import Server
from tests.filter_items import filterable_home
from tests.serving.artifacts import factor_model

N_USERS, N_ITEMS, COMPONENTS, ELEMENTS, BODIES = 2_000, 100_000, 64, 256, 24
RECIPE = "/v1/recipes/films"


def condition(rng: random.Random) -> dict[str, Any]:
    return {"year": {"lt": rng.random()}}


def element(rng: random.Random, filter_: dict[str, Any]) -> dict[str, Any]:
    return {"user_id": f"u{rng.randrange(N_USERS)}", "limit": 10, "filter": filter_}


def send_batches(url: str, seed: int, ready: Any, end: Any, statuses: Any) -> None:
    """Send batches until `end` is set, then put the counts of their statuses."""
    rng, counts = random.Random(seed), Counter[int]()
    filters = [[{"any": [condition(rng) for _ in range(32)]} for _ in range(2)] for _ in range(BODIES * ELEMENTS)]
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
            statuses[client.post(f"{RECIPE}:recommend", json=element(rng, condition(rng))).status_code] += 1
            took.append((time.perf_counter() - began) * 1e3)
            time.sleep(0.01)
    p50, p90, p99 = np.percentile(took, (50, 90, 99))
    return f"p50 {p50:5.1f}  p90 {p90:5.1f}  p99 {p99:5.1f}  longest {max(took):5.1f} ms, {dict(statuses)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=2, help="clients with batches")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8)
    options = parser.parse_args()
    print("\n".join(origin()))
    rng = np.random.default_rng(0)
    rows = (f"i{item},,,{year}" for item, year in enumerate(rng.random(N_ITEMS)))
    with tempfile.TemporaryDirectory() as folder:
        home = filterable_home(Path(folder), "films", factor_model(N_USERS, N_ITEMS, COMPONENTS), rows)
        with Server(home, fresh=True) as server:
            single_requests(server.url, 2)
            for _ in range(options.rounds):
                print(f"alone   {single_requests(server.url, options.seconds)}", flush=True)
                with batches(server.url, options.batches) as statuses:
                    beside = single_requests(server.url, options.seconds)
                print(f"batches {beside}; of the batches {dict(statuses)}", flush=True)


if __name__ == "__main__":
    main()

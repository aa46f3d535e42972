"""What does the server spend on a request with a random filter, over HTTP?

41,000 items, three filter fields; filters that no request before had, right and wrong ones in turn, one request at a
time. Processor time of all threads of the server, as the kernel counts it; other work on the machine makes it larger.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common import origin, processor_s
from benchmarks.filters import N_ITEMS, N_USERS, ials, served
from tests.e2e.server import Server
from tests.filter_items import filterable_home
from tests.filter_trees import condition, fuzzed, widest

BOUND_MS = 5.0


def home(folder: Path) -> Path:
    rng, numbers = random.Random(1), np.random.default_rng(1)
    genres = ("|".join({f"g{rng.randint(0, 30)}" for _ in range(3)}) for _ in range(N_ITEMS))
    rows = (f"i{n},{genre},c{rng.randint(0, 90)},{rng.randint(1950, 2026)}" for n, genre in enumerate(genres))
    return filterable_home(folder, "m", served(ials(numbers), numbers).model, rows)


def measure(server: Server, make: Callable[[random.Random], Any], count: int, statuses: Counter[int]) -> list[float]:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
    with tempfile.TemporaryDirectory() as folder, Server(home(Path(folder))) as server:
        for number in range(50):
            server.recommend("m", f"u{number}")
        for name, (make, count) in kinds.items():
            statuses: Counter[int] = Counter()
            spent = measure(server, make, count, statuses)
            over = sum(duration > BOUND_MS for duration in spent)
            shown = ", ".join(f"{status}: {n}" for status, n in sorted(statuses.items()))
            p99 = spent[int(0.99 * len(spent))]
            print(
                f"| {name} | {count} | {median(spent):.2f} | {p99:.2f} | {spent[-1]:.2f} | {over} | {shown} |",
                flush=True,
            )


if __name__ == "__main__":
    main()

"""What does a swap cost those who ask meanwhile, and how fast is a new artifact served?

    python -m benchmarks swap            # 30,000 users × 41,000 items, 128 components, 5 swaps
    python -m benchmarks swap --full     # 20 swaps, and the load time of a 650 MB artifact
    python -m benchmarks swap --slope 1000   # does anything grow over so many swaps? One a second, 5,000 items

Sixteen connections of wrk ask for recommendations without pause, first while nothing changes, then while the model is
swapped each second. Then: `load` is the time from reading to publishing, `floor` a bare read of the file into memory
plus one sha256 of it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.common import origin
from benchmarks.http import Load, load, measured, script, wrk
from tests.e2e.server import Server, write_recipe
from tests.serving.artifacts import factor_model, write_artifact

CLIENTS = 16
STEADY_S, EACH_S = 10, 1
"""Seconds without a swap, and for each swap; the watch interval is one too."""
N_USERS = 30_000
ENV = {"SVC_MAX_PAYLOAD_BYTES": "2GiB", "SVC_CACHED_ANSWERS": "0"}


def report(what: str, load: Load) -> None:
    print(f"{what:14} {load.requests:7} answered, {load.failed} failed, p99 {load.p99_ms:6.1f} ms", flush=True)


def prepare(folder: Path, n_users: int, n_items: int) -> Path:
    """Two artifacts, the first of them in place, and a folder with the recipe."""
    recipes = folder / "recipes"
    recipes.mkdir()
    write_recipe(recipes, "a", folder / "a.svc")
    for seed in (0, 1):
        write_artifact(folder / f"{seed}.svc", factor_model(n_users, n_items, 128, seed=seed))
    os.link(folder / "0.svc", folder / "a.svc")
    return recipes


def put(folder: Path, number: int) -> None:
    os.link(folder / f"{number % 2}.svc", folder / "next")
    (folder / "next").rename(folder / "a.svc")


def swapped(server: Server, folder: Path, numbers: range) -> list[float]:
    """Swap once a second; the seconds that each new model took to be served."""
    waits = []
    for number in numbers:
        began = time.perf_counter()
        put(folder, number)
        server.wait_for("artifact_loaded", times=number + 1)
        waits.append(time.perf_counter() - began)
        time.sleep(max(EACH_S - waits[-1], 0))
    return waits


def over_many(swaps: int) -> None:
    """The load and the memory in each tenth of so many swaps."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        recipes, lua = prepare(folder, 2_000, 5_000), script(folder, 2_000)
        with Server(recipes, env=ENV) as server:
            url = f"{server.url}/v1/recipes/a:recommend"
            load(url, CLIENTS, 1, lua)
            print("| swaps | answered | failed | requests/s | p99 ms | resident MB |\n|---|---|---|---|---|---|")
            for tenth in range(10):
                numbers = range(tenth * swaps // 10 + 1, (tenth + 1) * swaps // 10 + 1)
                command = wrk(url, CLIENTS, len(numbers) * EACH_S, lua)
                with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as asking:
                    swapped(server, folder, numbers)
                    seen = measured(asking.communicate()[0])
                figures = f"{seen.requests:,} | {seen.failed} | {seen.rate:,.0f} | {seen.p99_ms:.1f}"
                print(f"| {numbers[-1]} | {figures} | {server.resident_bytes() / 1e6:.1f} |", flush=True)


def under_load(swaps: int) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        recipes, lua = prepare(folder, N_USERS, 41_000), script(folder, N_USERS)
        with Server(recipes, env=ENV) as server:
            url = f"{server.url}/v1/recipes/a:recommend"
            load(url, CLIENTS, 1, lua)
            report("steady", load(url, CLIENTS, STEADY_S, lua))
            command = wrk(url, CLIENTS, swaps * EACH_S, lua)
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as asking:
                waits = swapped(server, folder, range(1, swaps + 1))
                swapping = measured(asking.communicate()[0])
            report(f"{swaps} swaps", swapping)
            loads = [record["seconds"] for record in server.said("artifact_loaded")[1:]]
            print(
                f"file to answer {min(waits):.2f} to {max(waits):.2f} s, loading {min(loads)} to {max(loads)} s of it"
            )


def loading(n_users: int, n_items: int) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        recipes = prepare(folder, n_users, n_items)
        floors = []
        for _ in range(3):
            began = time.perf_counter()
            hashlib.sha256((folder / "a.svc").read_bytes()).digest()
            floors.append(time.perf_counter() - began)
        with Server(recipes, env=ENV) as server:
            for number in range(1, 4):
                put(folder, number)
                server.wait_for("artifact_loaded", times=number + 1)
            loads = sorted(record["seconds"] for record in server.said("artifact_loaded"))
        size = (folder / "a.svc").stat().st_size
        floor, load = sorted(floors)[1], loads[len(loads) // 2]
        print(f"{size / 1e6:.0f} MB: load {load:.2f} s, floor {floor:.2f} s, {load / floor:.1f} times")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="20 swaps, and a 650 MB artifact")
    parser.add_argument(
        "--slope", type=int, metavar="SWAPS", help="so many swaps of a small model instead, at least 10"
    )
    options = parser.parse_args()
    full = options.full
    print("\n".join(origin()))
    if options.slope:
        over_many(options.slope)
        return
    under_load(20 if full else 5)
    loading(50_000, 50_000)
    if full:
        loading(700_000, 450_000)


if __name__ == "__main__":
    main()

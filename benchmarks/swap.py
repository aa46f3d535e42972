"""What do swaps of a model and changes of lists cost those who ask meanwhile?"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import trio

from benchmarks.common import origin
from benchmarks.servers import Load, load, measured, script, wrk
from tests.e2e.server import Server, put, write_recipe
from tests.serving.artifacts import SIGNING_KEYS, factor_model, write_artifact

CLIENTS = 16
STEADY_S, EACH_S = 10, 1
"""Seconds without a swap, and for each swap; the watch interval is one too."""
N_USERS = 30_000
ENV = {"SVC_MAX_PAYLOAD_BYTES": "2GiB", "SVC_CACHED_ANSWERS": "0"}


def report(what: str, load: Load) -> None:
    print(f"{what:14} {load.requests:7} answered, {load.failed} failed, p99 {load.p99_ms:6.1f} ms", flush=True)


def prepare(folder: Path, n_users: int, n_items: int, **more: Any) -> Path:
    """Two artifacts, the first of them in place, and a folder with the recipe, which has the blocks of `more`."""
    recipes = folder / "recipes"
    recipes.mkdir()
    write_recipe(recipes, "a", folder / "a.svc", **more)
    for seed in (0, 1):
        write_artifact(folder / f"{seed}.svc", factor_model(n_users, n_items, 128, seed=seed))
    os.link(folder / "0.svc", folder / "a.svc")
    return recipes


def put_next(folder: Path, number: int) -> None:
    os.link(folder / f"{number % 2}.svc", folder / "next")
    (folder / "next").rename(folder / "a.svc")


def swapped(server: Server, folder: Path, numbers: range) -> list[float]:
    """Swap once a second; the seconds that each new model took to be served."""
    waits = []
    for number in numbers:
        began = time.perf_counter()
        put_next(folder, number)
        server.wait_for("artifact_loaded", times=number + 1)
        waits.append(time.perf_counter() - began)
        time.sleep(max(EACH_S - waits[-1], 0))
    return waits


def over_many(swaps: int) -> None:
    """The load and the memory in each tenth of so many swaps."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        recipes, lua = prepare(folder, 2_000, 5_000), script(folder, 2_000)
        with Server(recipes, env=ENV, fresh=True) as server:
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
        with Server(recipes, env=ENV, fresh=True) as server:
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
        with Server(recipes, env=ENV, fresh=True) as server:
            for number in range(1, 4):
                put_next(folder, number)
                server.wait_for("artifact_loaded", times=number + 1)
            loads = sorted(record["seconds"] for record in server.said("artifact_loaded"))
        size = (folder / "a.svc").stat().st_size
        floor, load = sorted(floors)[1], loads[len(loads) // 2]
        print(f"{size / 1e6:.0f} MB: load {load:.2f} s, floor {floor:.2f} s, {load / floor:.1f} times")


def model_swaps(parser: argparse.ArgumentParser) -> None:
    """What does a swap cost those who ask meanwhile, and how fast is a new artifact served?

        python -m benchmarks swap            # 30,000 users × 41,000 items, 128 components, 5 swaps
        python -m benchmarks swap --full     # 20 swaps, and the load time of a 650 MB artifact
        python -m benchmarks swap --slope 1000   # does anything grow over so many swaps? One a second, 5,000 items

    Sixteen connections of wrk ask for recommendations without pause, first while nothing changes, then while the model
    is swapped each second. Then: `load` is the time from reading to publishing, `floor` a bare read of the file into
    memory plus one sha256 of it.
    """
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


N_READERS, N_KNOWN, N_NEW, N_WORDS, VOCABULARY = 2_000, 5_000, 10_000, 30, 8_000
RECIPES = ("a", "b")
CONNECTIONS, AS_THEY_ARE_S, PART_S = 4, 30, 20
DUMP_S = 10.0


class Turns(trio.abc.Instrument):
    """The longest turns of the event loop in seconds, by each of three clocks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reset()

    def _reset(self) -> None:
        self.count = 0
        self.wall, self.own, self.process = (0.0, 0.0, ""), 0.0, 0.0
        self._began = self._own_began = self._process_began = self._step_began = 0.0
        self._step = (0.0, "")

    def after_io_wait(self, timeout: float) -> None:  # noqa: ARG002
        self._began, self._step = time.perf_counter(), (0.0, "")
        self._own_began, self._process_began = time.thread_time(), time.process_time()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:  # noqa: ARG002
        self._step_began = time.perf_counter()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self._step = max(self._step, (time.perf_counter() - self._step_began, task.name))

    def before_io_wait(self, timeout: float) -> None:  # noqa: ARG002
        if not self._began:
            return
        wall, own = time.perf_counter() - self._began, time.thread_time() - self._own_began
        process = min(wall, time.process_time() - self._process_began)
        self.count += 1
        said = f"{'.'.join(self._step[1].split('.')[-2:])} {self._step[0] * 1000:.1f} ms"
        self.wall = max(self.wall, (wall, process, said))
        self.own, self.process = max(self.own, own), max(self.process, process)

    def write(self, *_: object) -> None:
        """Write what was seen, and begin anew."""
        seen = {"count": self.count, "wall": self.wall, "own": self.own, "process": self.process}
        put(self._path, json.dumps(seen))
        self._reset()


def serve_measured(arguments: list[str], path: Path) -> int:
    """`svc serve` with an instrument, which writes what it saw to `path` at SIGUSR1."""
    from svc.cli.main import run

    turns, run_loop = Turns(path), trio.run
    trio.run = lambda *given, **named: run_loop(*given, **named, instruments=[turns])
    signal.signal(signal.SIGUSR1, turns.write)
    return run(arguments)


def texts(rng: np.random.Generator, count: int) -> list[str]:
    words = (rng.zipf(1.3, (count, N_WORDS)) % VOCABULARY).tolist()
    return [" ".join(f"word{word}" for word in row) for row in words]


def prepare_lists(folder: Path, env: dict[str, str]) -> None:
    rng = np.random.default_rng(1)
    items = rng.zipf(1.2, (N_READERS, 40)) % N_KNOWN
    users = np.repeat([f"u{user}" for user in range(N_READERS)], 40)
    pd.DataFrame({"u": users, "i": items.ravel()}).to_csv(folder / "x.csv", index=False)
    pd.DataFrame({"i": np.arange(N_KNOWN), "text": texts(rng, N_KNOWN)}).to_csv(folder / "f.csv", index=False)
    (folder / "recipes").mkdir()
    for name in RECIPES:
        write_list(folder, name, 0)
        recipe = {
            "name": name,
            "source": {"type": "csv", "path": "../x.csv"},
            "schema": {"user_column": "u", "item_column": "i"},
            "features": {
                "item": {
                    "source": {"type": "csv", "path": "../f.csv"},
                    "id_column": "i",
                    "columns": [{"name": "text", "kind": "text"}],
                }
            },
            "training": {"algorithms": ["IALS"], "n_trials": 1, "search_space": {"IALS": {"n_components": [64, 64]}}},
            "serving": {
                "new_items": {
                    "source": {"type": "csv", "path": f"../{name}.csv"},
                    "refresh_seconds": 5,
                    "min_share": 0.1,
                }
            },
            "output": {"path": "../m.svc", "versioning": "always_overwrite"},
        }
        (folder / "recipes" / f"{name}.yaml").write_text(json.dumps(recipe), encoding="utf-8")
    command = [sys.executable, "-m", "svc", "train", str(folder / "recipes" / "a.yaml"), "--quiet"]
    subprocess.run(command, check=True, env=env, stderr=subprocess.DEVNULL)


def write_list(folder: Path, name: str, number: int) -> None:
    """A list of other items for each number."""
    rng = np.random.default_rng([number, *name.encode()])
    ids = [f"n{number}-{row}" for row in range(N_NEW)]
    put(folder / f"{name}.csv", pd.DataFrame({"i": ids, "text": texts(rng, N_NEW)}).to_csv(index=False))


def turns(server: Server, path: Path) -> dict[str, Any]:
    path.unlink(missing_ok=True)
    os.kill(server.process.pid, signal.SIGUSR1)
    deadline = time.monotonic() + DUMP_S
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    seen: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return seen


def report_turns(what: str, requests: int, failed: int, p99_ms: float, seen: dict[str, Any]) -> None:
    wall, its_process, step = seen["wall"]
    print(
        f"{what}: {requests:,} answered, {failed} failed, p99 {p99_ms:.1f} ms; {seen['count']:,} turns, longest by"
        f" own {seen['own'] * 1000:.1f} ms, by process {seen['process'] * 1000:.1f} ms, by wall {wall * 1000:.1f} ms"
        f" (process {its_process * 1000:.1f} ms; {step})",
        flush=True,
    )


def refreshed(server: Server, folder: Path, loaded: dict[str, int]) -> int:
    """How many lists are in force; each that is new to `loaded` is written anew."""
    for name in RECIPES:
        count = len(server.said("new_items_loaded", name=name))
        if count > loaded[name]:
            loaded[name] = count
            write_list(folder, name, count)
    return sum(loaded.values())


def under_refreshes(folder: Path, refreshes: int) -> None:
    path = folder / "turns.json"
    prefix = [sys.executable, "-m", "benchmarks", "swap", "lists", "--measure", str(path)]
    with Server(folder / "recipes", prefix=prefix, env={"SVC_CACHED_ANSWERS": "0"}) as server:
        lua, url = script(folder, N_READERS), f"{server.url}/v1/recipes/a:recommend"
        load(url, CONNECTIONS, 2, lua)
        turns(server, path)
        steady = load(url, CONNECTIONS, AS_THEY_ARE_S, lua)
        report_turns("lists as they are", steady.requests, steady.failed, steady.p99_ms, turns(server, path))
        loaded = dict.fromkeys(RECIPES, 0)
        began, first = time.monotonic(), refreshed(server, folder, loaded)
        done, n_requests, n_failed, worst = 0, 0, 0, 0.0
        while done < refreshes:
            with subprocess.Popen(wrk(url, CONNECTIONS, PART_S, lua), stdout=subprocess.PIPE, text=True) as asking:
                while asking.poll() is None:
                    done = refreshed(server, folder, loaded) - first
                    time.sleep(0.1)
                assert asking.stdout is not None
                part = measured(asking.stdout.read())
            n_requests, n_failed, worst = n_requests + part.requests, n_failed + part.failed, max(worst, part.p99_ms)
        report_turns(
            f"{done} refreshes in {time.monotonic() - began:.0f} s", n_requests, n_failed, worst, turns(server, path)
        )
        print(f"refused lists: {len(server.said('new_items_load_failed'))}")


def lists(parser: argparse.ArgumentParser) -> None:
    """Does refreshing lists of new items hold up those who ask meanwhile?

        python -m benchmarks swap lists                 # 200 refreshes of 10,000 items with texts; ten minutes
        python -m benchmarks swap lists --refreshes 20

    Two recipes share a trained model of 5,000 items with words; each has a list of 10,000 new items of thirty words,
    which is written anew as soon as it is in force and read every five seconds, the shortest interval. Connections of
    wrk ask without pause, first while the lists stay as they are, then while they change.

    A turn of the event loop is the time from one wait for input and output to the next: `wall`, with its longest step
    of a task. `own` is the processor time of the loop's thread in it, and `process` that of all threads: where one of
    them holds the interpreter lock the loop waits while it runs, so a turn with a core to itself takes no longer. The
    rest of `wall` went to other processes of the machine.
    """
    parser.add_argument("--measure", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.add_argument("--refreshes", type=int, default=200)
    options = parser.parse_args()
    if options.measure:
        path, *command = options.measure
        sys.exit(serve_measured(command[command.index("serve") :], Path(path)))
    print("\n".join(origin()))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        prepare_lists(folder, {**os.environ, "SVC_SIGNING_KEYS": SIGNING_KEYS})
        under_refreshes(folder, options.refreshes)


CASES = {"model": model_swaps, "lists": lists}

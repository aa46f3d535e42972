"""Does refreshing lists of new items hold up those who ask meanwhile?

    python -m benchmarks new_items_refresh                 # 200 refreshes of 10,000 items with texts; ten minutes
    python -m benchmarks new_items_refresh --refreshes 20

Two recipes share a trained model of 5,000 items with words; each has a list of 10,000 new items of thirty words, which
is written anew as soon as it is in force and read every five seconds, the shortest interval. Connections of wrk ask
without pause, first while the lists stay as they are, then while they change.

A turn of the event loop is the time from one wait for input and output to the next: `wall`, with its longest step of a
task. `own` is the processor time of the loop's thread in it, and `process` that of all threads: where one of them holds
the interpreter lock the loop waits while it runs, so a turn with a core to itself takes no longer. The rest of `wall`
went to other processes of the machine.
"""

from __future__ import annotations

import argparse
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
from benchmarks.http import load, measured, script, wrk
from tests.e2e.server import Server, put
from tests.serving.artifacts import SIGNING_KEYS

N_USERS, N_KNOWN, N_NEW, N_WORDS, VOCABULARY = 2_000, 5_000, 10_000, 30, 8_000
RECIPES = ("a", "b")
CONNECTIONS, STEADY_S, PART_S = 4, 30, 20
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


def prepare(folder: Path, env: dict[str, str]) -> None:
    rng = np.random.default_rng(1)
    items = rng.zipf(1.2, (N_USERS, 40)) % N_KNOWN
    users = np.repeat([f"u{user}" for user in range(N_USERS)], 40)
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


def report(what: str, requests: int, failed: int, p99_ms: float, seen: dict[str, Any]) -> None:
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
    prefix = [sys.executable, "-m", "benchmarks.new_items_refresh", "--measure", str(path)]
    with Server(folder / "recipes", prefix=prefix, env={"SVC_CACHED_ANSWERS": "0"}) as server:
        lua, url = script(folder, N_USERS), f"{server.url}/v1/recipes/a:recommend"
        load(url, CONNECTIONS, 2, lua)
        turns(server, path)
        steady = load(url, CONNECTIONS, STEADY_S, lua)
        report("lists as they are", steady.requests, steady.failed, steady.p99_ms, turns(server, path))
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
        report(
            f"{done} refreshes in {time.monotonic() - began:.0f} s", n_requests, n_failed, worst, turns(server, path)
        )
        print(f"refused lists: {len(server.said('new_items_load_failed'))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--refreshes", type=int, default=200)
    options = parser.parse_args()
    print("\n".join(origin()))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        prepare(folder, {**os.environ, "SVC_SIGNING_KEYS": SIGNING_KEYS})
        under_refreshes(folder, options.refreshes)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        sys.exit(serve_measured(sys.argv[sys.argv.index("serve") :], Path(sys.argv[2])))
    main()

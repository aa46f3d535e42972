"""How do time and memory of a training grow with its rows?

    python -m benchmarks.training_scale --rows 1000000 3000000 10000000
    python -m benchmarks.training_scale --full                          # 100 million
    python -m benchmarks.training_scale --full --sample-users 200000    # trained on a tenth of the users

Generates interactions with long tails (500,000 users and 50,000 items at 10 million rows, fewer in proportion; with
--full 2 million users and 200,000 items), writes them as a folder of parquet files, and trains iALS on them in a fresh
process; with --full of 64 dimensions. Prints seconds by phase and the peak memory: that of the process or, if it is
more, the most that it and its workers held together at one moment, with what they share counted once.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common import held_bytes, processes

PHASES = {
    "fetch": ("fetching_data", "data_fetched"),
    "cleanse": ("data_fetched", "data_cleansed"),
    "split": ("splitting_data", "split_done"),
    "search": ("search_started", "search_done"),
    "measure": ("search_done", "winner_measured"),
    "refit": ("training_final_model", "final_model_trained"),
    "write": ("final_model_trained", "artifact_written"),
}


FILE_ROWS = 5_000_000
FULL_ROWS, FULL_USERS, FULL_ITEMS = 100_000_000, 2_000_000, 200_000


def generate(folder: Path, rows: int) -> None:
    """About 20 rows a user, 50 with FULL_ROWS; activity of users and popularity of items have long tails."""
    rng = np.random.default_rng(1)
    full = rows >= FULL_ROWS
    n_users, n_items = (FULL_USERS, FULL_ITEMS) if full else (max(1000, rows // 20), max(1000, rows // 200))
    names = [pa.array([f"{letter}{i}" for i in range(n)]) for letter, n in (("u", n_users), ("i", n_items))]
    chances = [np.cumsum(rng.lognormal(0, 1, n_users)), np.cumsum(1.0 / np.arange(1, n_items + 1) ** 0.8)]
    folder.mkdir()
    for number, start in enumerate(range(0, rows, FILE_ROWS)):
        count = min(FILE_ROWS, rows - start)
        drawn = [np.searchsorted(chance, rng.random(count) * chance[-1]) for chance in chances]
        users, items = (
            known.take(pa.array(np.minimum(codes, len(known) - 1))) for known, codes in zip(names, drawn, strict=True)
        )
        times = pa.array(1_600_000_000 + rng.integers(0, 10**8, count))
        pq.write_table(pa.table({"user_id": users, "item_id": items, "ts": times}), folder / f"{number:03}.parquet")


def recipe(folder: Path, rows: int, sample_users: int | None) -> Path:
    found: dict[str, Any] = {
        "name": "scale",
        "source": {"type": "parquet", "path": str(folder / "data")},
        "schema": {"user_column": "user_id", "item_column": "item_id", "time_column": "ts", "time_unit": "s"},
        "training": {
            "algorithms": ["IALS"],
            "n_trials": 2,
            "split": {"scheme": "time_user", "heldout_ratio": 0.1, "test_user_ratio": 0.02},
        },
        "output": {"path": str(folder / "scale.svc")},
    }
    if rows >= FULL_ROWS:
        found["training"]["search_space"] = {"IALS": {"n_components": [64, 64]}}
    if sample_users is not None:
        found["training"]["sample_users"] = sample_users
    path = folder / "scale.yaml"
    path.write_text(json.dumps(found), encoding="utf-8")
    return path


def train(path: Path) -> None:
    """Body of the fresh process: train, and tell the moments of all events and the peak memory."""
    import structlog

    from svc.progress import Progress
    from svc.recipe.load import load_recipe
    from svc.settings import Settings
    from svc.training.run import TrainOptions
    from svc.training.run import train as run

    moments: dict[str, float] = {}

    def note(_logger: object, _method: str, record: MutableMapping[str, Any]) -> NoReturn:
        moments[str(record["event"])] = time.monotonic()
        raise structlog.DropEvent

    structlog.configure(processors=[note])
    begin = time.monotonic()
    settings = Settings()
    result = run(load_recipe(path, {}, settings=settings), TrainOptions("r", dev_unsigned=True), settings, Progress())
    seconds = {name: moments[end] - moments[start] for name, (start, end) in PHASES.items()}
    seconds["total"] = time.monotonic() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    size = path.with_suffix(".svc").stat().st_size
    print(json.dumps({"exit_code": result.exit_code, "seconds": seconds, "peak_bytes": peak, "artifact_bytes": size}))


def most_held(training: subprocess.Popen[str]) -> int:
    """The most bytes that a process and its descendants held at once, looked at each second until it ends."""
    most = 0
    while training.poll() is None:
        time.sleep(1.0)
        most = max(most, sum(map(held_bytes, processes(training.pid))))
    return most


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 3_000_000, 10_000_000])
    parser.add_argument("--full", action="store_true", help="100 million rows")
    parser.add_argument("--sample-users", type=int, help="train on so many users, place the others exactly")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.train)
        return
    for rows in [FULL_ROWS] if options.full else options.rows:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            generate(folder / "data", rows)
            path = recipe(folder, rows, options.sample_users)
            command = [sys.executable, "-m", "benchmarks.training_scale", "--train", str(path)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as training:
                together = most_held(training)
                found = json.loads(training.communicate()[0])
            seconds = found["seconds"]
            before = sum(seconds[phase] for phase in ("fetch", "cleanse", "split"))
            share = before / (seconds["search"] + seconds["refit"])
            peak, size = max(found["peak_bytes"], together) / 2**30, found["artifact_bytes"] / 2**20
            parts = "  ".join(f"{phase} {taken:.1f}" for phase, taken in seconds.items())
            print(
                f"{rows:>10,} rows  {parts} s  reading to split {share:.0%} of training  "
                f"peak {peak:.2f} GiB  artifact {size:.0f} MiB",
                flush=True,
            )


if __name__ == "__main__":
    main()

"""How do time and memory of a training grow with its rows?

    python -m benchmarks.training_scale --rows 1000000 3000000 10000000

Generates interactions with long tails (500,000 users and 50,000 items at 10 million rows, fewer in proportion),
writes them as parquet, and trains iALS on them in a fresh process. Prints seconds by phase and the peak memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

PHASES = {
    "fetch": ("fetching_data", "data_fetched"),
    "cleanse": ("data_fetched", "data_cleansed"),
    "split": ("splitting_data", "split_done"),
    "search": ("search_started", "search_done"),
    "refit": ("training_final_model", "final_model_trained"),
    "write": ("final_model_trained", "artifact_written"),
}


def generate(path: Path, rows: int) -> None:
    """Users have about 20 rows each in random order; item popularity falls with rank^0.8."""
    rng = np.random.default_rng(1)
    n_users, n_items = max(1000, rows // 20), max(1000, rows // 200)
    weights = 1.0 / np.arange(1, n_items + 1) ** 0.8
    items = np.searchsorted(np.cumsum(weights / weights.sum()), rng.random(rows))
    users = rng.integers(0, n_users, rows)
    times = 1_600_000_000 + rng.integers(0, 10**8, rows)
    names = [pa.array([f"{letter}{i}" for i in range(n)]) for letter, n in (("u", n_users), ("i", n_items))]
    table = pa.table(
        {
            "user_id": names[0].take(pa.array(users)),
            "item_id": names[1].take(pa.array(np.minimum(items, n_items - 1))),
            "ts": pa.array(times),
        }
    )
    pq.write_table(table, path)


def recipe(folder: Path) -> Path:
    found = {
        "name": "scale",
        "source": {"type": "parquet", "path": str(folder / "data.parquet")},
        "schema": {"user_column": "user_id", "item_column": "item_id", "time_column": "ts", "time_unit": "s"},
        "training": {
            "algorithms": ["IALS"],
            "n_trials": 2,
            "split": {"scheme": "time_user", "heldout_ratio": 0.1, "test_user_ratio": 0.02},
        },
        "output": {"path": str(folder / "scale.svc")},
    }
    path = folder / "scale.yaml"
    path.write_text(json.dumps(found), encoding="utf-8")
    return path


def train(path: Path) -> None:
    """Body of the fresh process: train, and tell the moments of all events and the peak memory."""
    import structlog

    from svc.recipe.load import load_recipe
    from svc.settings import Settings
    from svc.training.progress import NullProgress
    from svc.training.run import TrainOptions
    from svc.training.run import train as run

    moments: dict[str, float] = {}

    def note(_logger: object, _method: str, record: dict[str, object]) -> dict[str, object]:
        moments[str(record["event"])] = time.monotonic()
        raise structlog.DropEvent

    structlog.configure(processors=[note])
    begin = time.monotonic()
    settings = Settings()
    result = run(
        load_recipe(path, {}, settings=settings), TrainOptions("r", dev_unsigned=True), settings, NullProgress()
    )
    seconds = {name: moments[end] - moments[start] for name, (start, end) in PHASES.items()}
    seconds["total"] = time.monotonic() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    size = path.with_suffix(".svc").stat().st_size
    print(json.dumps({"exit_code": result.exit_code, "seconds": seconds, "peak_bytes": peak, "artifact_bytes": size}))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 3_000_000, 10_000_000])
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.train)
        return
    for rows in options.rows:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            generate(folder / "data.parquet", rows)
            command = [sys.executable, "-m", "benchmarks.training_scale", "--train", str(recipe(folder))]
            found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
            seconds = found["seconds"]
            around = 1 - (seconds["search"] + seconds["refit"]) / seconds["total"]
            parts = "  ".join(f"{phase} {taken:.1f}" for phase, taken in seconds.items())
            print(
                f"{rows:>10,} rows  {parts} s  around irspack {around:.0%}  "
                f"peak {found['peak_bytes'] / 2**30:.2f} GiB  artifact {found['artifact_bytes'] / 2**20:.0f} MiB",
                flush=True,
            )


if __name__ == "__main__":
    main()

"""When does the search of one version of svc reach the best score of another one, on the same recipe and machine?

    python -m benchmarks.search_race recipe.yaml old=/path/to/old/bin/svc new=svc [--trials 40]
    python -m benchmarks.search_race --generate sparse /tmp/sparse        # writes a data set and its recipe

Runs `svc train` of each version in turn, reads `trial_done` from its log, and prints when each best score was reached,
how long the search took, and when each version reached the final score of the first one: by the clock and in seconds of
processor time of all its processes, which say more where other programs run. `--generate` makes data of
other shapes than film ratings: `sparse` has 30,000 users with about four rows each over 8,000 items, `dense` 3,000
users with about 120 over 1,500.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import yaml

from benchmarks.common import origin

SHAPES = {"sparse": (30_000, 8_000, 4), "dense": (3_000, 1_500, 120)}
N_TASTES = 24


class Spent(NamedTuple):
    """Seconds by the clock, and of processor time."""

    clock: float
    cpu: float

    @classmethod
    def by(cls, pid: int) -> Spent:
        """What process `pid` and its descendants have used until now. Those that ended and were waited for count."""
        ticks: dict[int, int] = {}
        children: dict[int, list[int]] = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = path.read_text(encoding="utf-8").rpartition(")")[2].split()
                number = int(path.parent.name)
                ticks[number] = sum(map(int, fields[11:15]))
                children.setdefault(int(fields[1]), []).append(number)
        family = [pid]
        for member in family:
            family += children.get(member, [])
        return cls(time.monotonic(), sum(ticks.get(member, 0) for member in family) / os.sysconf("SC_CLK_TCK"))

    def since(self, begin: Spent) -> Spent:
        return Spent(self.clock - begin.clock, self.cpu - begin.cpu)

    def __str__(self) -> str:
        return f"{self.clock:.1f} s ({self.cpu:.1f} s of processor time)"


NOTHING = Spent(0.0, 0.0)


@dataclass
class Run:
    """Seconds are counted from `search_started`, so that the start of the program does not count."""

    spent: Spent = NOTHING
    reached: list[tuple[Spent, float, str]] = field(default_factory=list)

    def first(self, score: float) -> Spent | None:
        return next((at for at, found, _name in self.reached if found >= score), None)


def generate(shape: str, folder: Path) -> None:
    """Users mix two of 24 tastes; items are popular by rank, each in one taste, and one choice in five is by chance."""
    n_users, n_items, per_user = SHAPES[shape]
    rng = np.random.default_rng(7)
    popularity = 1.0 / np.arange(1, n_items + 1) ** 0.7
    taste_of = rng.integers(N_TASTES, size=n_items)
    chances = [np.where(taste_of == taste, popularity, 0.0) for taste in range(N_TASTES)]
    chances = [chance / chance.sum() for chance in chances]
    rows = []
    for user in range(n_users):
        count = min(n_items // 4, 1 + int(rng.geometric(1 / per_user)))
        mixed = 0.2 * popularity / popularity.sum()
        for taste, share in zip(rng.choice(N_TASTES, 2, replace=False), (0.5, 0.3), strict=True):
            mixed = mixed + share * chances[taste]
        items = rng.choice(n_items, size=count, replace=False, p=mixed / mixed.sum())
        rows.append(pd.DataFrame({"user_id": f"u{user}", "item_id": [f"i{item}" for item in items]}))
    folder.mkdir(parents=True, exist_ok=True)
    pd.concat(rows).to_csv(folder / "interactions.csv", index=False)
    recipe = {
        "name": shape,
        "source": {"type": "csv", "path": "interactions.csv"},
        "schema": {"user_column": "user_id", "item_column": "item_id"},
        "training": {"cutoff": 20, "split": {"scheme": "random", "heldout_ratio": 0.2}},
        "output": {"path": f"{shape}.svc"},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")


def run(svc: str, recipe: Path, trials: int) -> Run:
    found = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    found["training"]["n_trials"] = trials
    found["source"]["path"] = str((recipe.parent / found["source"]["path"]).resolve())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recipe.yaml"
        path.write_text(yaml.safe_dump(found), encoding="utf-8")
        key = f"race:{secrets.token_hex(32)}"
        environment = os.environ | {"SVC_LOG_FORMAT": "json", "SVC_LOG_LEVEL": "info", "SVC_SIGNING_KEYS": key}
        process = subprocess.Popen([svc, "train", str(path)], stderr=subprocess.PIPE, text=True, env=environment)
        assert process.stderr is not None
        result, began = Run(), Spent.by(process.pid)
        for line in process.stderr:
            event = json.loads(line) if line.startswith("{") else {}
            if event.get("event") == "search_started":
                began = Spent.by(process.pid)
            elif event.get("event") == "trial_done":
                best, result.spent = event.get("best_score"), Spent.by(process.pid).since(began)
                if best is not None and (not result.reached or best > result.reached[-1][1]):
                    result.reached.append((result.spent, best, event["algorithm"]))
        if process.wait() != 0:
            sys.exit(f"{svc} train ended with {process.returncode}")
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe", type=Path, help="with --generate: the folder to write to")
    parser.add_argument("versions", nargs="*", metavar="NAME=SVC", help="a label and the svc command of a version")
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--generate", choices=sorted(SHAPES))
    options = parser.parse_args()
    if options.generate:
        generate(options.generate, options.recipe)
        return
    print("\n".join(origin()))
    goal = None
    for version in options.versions:
        name, _, command = version.partition("=")
        found = run(command, options.recipe, options.trials)
        goal = found.reached[-1][1] if goal is None else goal
        for at, score, algorithm in found.reached:
            print(f"{name:8} {score:.5f} after {at}  {algorithm}")
        reached = found.first(goal)
        when = "never" if reached is None else f"after {reached}"
        print(f"{name:8} {options.trials} trials in {found.spent}; {goal:.5f} reached {when}", flush=True)


if __name__ == "__main__":
    main()

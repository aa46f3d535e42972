"""Does a server stay well under mixed load, swaps and faults for as long as one likes?

    python -m benchmarks soak                  # one minute
    python -m benchmarks soak --minutes 30 --csv soak.csv

Eight clients ask for single users, related items and batches without pause. Every few seconds the artifact changes,
and now and then something goes wrong first: a truncated or foreign artifact, a missing one, a recipe that does not
parse. None of that may fail a request. A row every ten seconds: answered and failed requests so far, resident MB,
threads, open files, swaps and errors cleared.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common import origin
from tests.e2e.load import Load
from tests.e2e.server import Server, write_recipe
from tests.serving.artifacts import OTHER_KEYS, factor_model, popularity_model, write_artifact

CLIENTS = 8
CHANGE_S = 5.0
ROW_S = 10.0
COLUMNS = ("seconds", "answered", "failed", "resident_mb", "threads", "files", "swaps", "cleared")
VERBS = [
    ("/v1/recipes/a:recommend", {"user_id": "u7"}),
    ("/v1/recipes/a:recommend-related", {"seed_items": ["i1", "i2"]}),
    ("/v1/recipes/a:batch-recommend", {"requests": [{"user_id": f"u{number}"} for number in range(32)]}),
    ("/v1/recipes/a:recommend", {"user_id": "u3", "limit": 50}),
]


class Faults:
    """What goes wrong with the artifact or the recipe; a good artifact always follows."""

    def __init__(self, folder: Path, recipe: Path) -> None:
        self._artifact = folder / "a.svc"
        self._recipe = recipe
        self._good_recipe = recipe.read_text(encoding="utf-8")

    def truncated(self) -> None:
        self._artifact.write_bytes(self._artifact.read_bytes()[:1000])

    def foreign(self) -> None:
        write_artifact(self._artifact, popularity_model(), keys=OTHER_KEYS)

    def missing(self) -> None:
        self._artifact.unlink()

    def broken_recipe(self) -> None:
        self._recipe.write_text("name: [", encoding="utf-8")

    def mend(self) -> None:
        self._recipe.write_text(self._good_recipe, encoding="utf-8")

    def all(self) -> list[Callable[[], None]]:
        return [self.truncated, self.foreign, self.missing, self.broken_recipe]


def judge(status: int, _body: dict[str, Any]) -> str | None:
    return None if status == 200 else f"status {status}"


def row(server: Server, load: Load, began: float) -> dict[str, float]:
    process = Path(f"/proc/{server.process.pid}")
    return {
        "seconds": round(time.monotonic() - began),
        "answered": load.tally.answered,
        "failed": len(load.tally.failures),
        "resident_mb": round(server.resident_bytes() / 1e6, 1),
        "threads": len(list((process / "task").iterdir())),
        "files": len(list((process / "fd").iterdir())),
        "swaps": len(server.said("artifact_loaded")) - 1,
        "cleared": len(server.said("artifact_load_error_cleared")),
    }


def soak(seconds: float, folder: Path) -> list[dict[str, float]]:
    recipes = folder / "recipes"
    recipes.mkdir()
    recipe = write_recipe(recipes, "a", folder / "a.svc")
    good = [folder / "0.svc", folder / "1.svc"]
    for seed, path in enumerate(good):
        write_artifact(path, factor_model(2_000, 5_000, 64, seed=seed))
    os.link(good[0], folder / "a.svc")
    faults = Faults(folder, recipe)
    chance = random.Random(0)
    rows: list[dict[str, float]] = []
    with Server(recipes) as server, Load(server.url, VERBS, clients=CLIENTS, judge=judge) as load:
        began = time.monotonic()
        for number in itertools.count(1):
            if chance.random() < 0.5:
                chance.choice(faults.all())()
                time.sleep(CHANGE_S / 2)
            faults.mend()
            (folder / "next").unlink(missing_ok=True)
            (folder / "next").write_bytes(good[number % 2].read_bytes())
            (folder / "next").rename(folder / "a.svc")
            time.sleep(CHANGE_S)
            passed = time.monotonic() - began
            if passed >= ROW_S * (len(rows) + 1):
                rows.append(row(server, load, began))
                print("  ".join(f"{rows[-1][name]:>11}" for name in COLUMNS), flush=True)
            if passed >= seconds:
                break
        print(*load.tally.failures[:5], sep="\n")
        print(f"exit code {server.stop()}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--csv", type=Path, help="also write the rows here")
    options = parser.parse_args()
    print("\n".join(origin()))
    print("  ".join(f"{name:>11}" for name in COLUMNS))
    with tempfile.TemporaryDirectory() as temporary:
        rows = soak(options.minutes * 60, Path(temporary))
    if options.csv:
        with options.csv.open("w", newline="", encoding="utf-8") as out:
            writer = csv.DictWriter(out, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()

"""What are new items in rankings worth, by `evaluation.new_items`, and do columns of chance show nothing?

    python -m benchmarks new_items ratings.csv movies.csv --user user_id --item item_id --texts genres --numbers year
    python -m benchmarks new_items --noise 20       # columns of chance on a generated shape, by 20 seeds

The first measures, for each `serving.new_items.min_share`, what a training with `algorithms: [IALS]` would write, with
the parameters that its search of 12 trials chose on the films of the documentation.

With `--noise` a training on 1,000 users and 300 items of ten tastes has one column that says nothing: eight words of a
thousand, or 64 normal numbers an item. `min_share` is 0.2, so that every page has new items. A seed counts as a gain
where `recall` is above `popularity_recall` by more than the half-widths of both intervals, added in quadrature, which
are those of independent means. Such a gain should be seen in at most one of twenty seeds.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.common import origin
from svc.cores import limit_blas_threads
from svc.progress import Progress
from svc.recipe.load import load_recipe
from svc.recipe.serving_schema import NewItems
from svc.settings import Settings
from svc.training.data import fetch
from svc.training.fitting.trial import TrialRecord
from svc.training.judging.new_items import MEASURES, evaluate_new_items
from svc.training.judging.search_result import SearchResult
from svc.training.judging.task import Task, split_data
from svc.training.search import prepare

MAX_SHARE, MIN_SHARES, CUTOFF = 0.2, (0.0, 0.05, 0.1, 0.2), 20
SEARCHED = {"n_components": 64, "alpha0": 0.0476, "reg": 0.012, "mean_prior": False, "lambda_item_feature": 9_396.0}
SMALL = {"n_components": 16, "alpha0": 0.1, "reg": 0.05, "lambda_item_feature": 100.0}
N_USERS, N_ITEMS, N_TASTES, N_CHOSEN = 1_000, 300, 10, 15
NOISE_WORDS, NOISE_VOCABULARY, NOISE_DIMENSIONS = 8, 1_000, 64
ENOUGH = 1_000
"""So many trials have a search that ten more trainings are a small part of."""


def trial(params: dict[str, Any], epochs: int) -> TrialRecord:
    return TrialRecord(0, "IALSRecommender", params, "complete", 0.1, {}, epochs, 1.0)


def task_of(folder: Path, rows: pd.DataFrame, items: pd.DataFrame, columns: Sequence[Any]) -> Task:
    """What a training of a plain recipe prepares; both tables have the columns `user` and `item`, or `item`."""
    rows.to_csv(folder / "rows.csv", index=False)
    items.to_parquet(folder / "items.parquet")
    side = {"source": {"type": "parquet", "path": "items.parquet"}, "id_column": "item", "columns": columns}
    recipe = {
        "name": "new",
        "source": {"type": "csv", "path": "rows.csv"},
        "schema": {"user_column": "user", "item_column": "item"},
        "features": {"item": side},
        "training": {"algorithms": ["IALS"], "n_trials": 1, "cutoff": CUTOFF},
        "output": {"path": "new.svc"},
    }
    (folder / "new.yaml").write_text(json.dumps(recipe), encoding="utf-8")
    loaded = load_recipe(folder / "new.yaml", {}, settings=Settings())
    data = fetch.load(loaded, Settings(), {}, Progress())
    loaded, parts = split_data(loaded, data)
    return prepare.make_task(loaded, data, parts, Settings())


def measured(task: Task, chosen: TrialRecord, min_share: float) -> dict[str, Any]:
    shares = {"max_share": MAX_SHARE, "min_share": min_share}
    declared = NewItems.model_validate({"source": {"type": "csv", "path": "new.csv"}, **shares})
    result = SearchResult([chosen] * ENOUGH, seconds=1.0, n_orphaned=0)
    return evaluate_new_items(task, result, chosen, declared)


def films(options: argparse.Namespace) -> None:
    rows = pd.read_csv(options.interactions, usecols=[options.user, options.item], dtype=str)
    items = pd.read_csv(options.items, dtype={options.item: str})
    columns = [{"name": name, "kind": "text"} for name in options.texts]
    columns += [{"name": name, "kind": "numerical"} for name in options.numbers]
    with tempfile.TemporaryDirectory() as folder:
        rows = rows.rename(columns={options.user: "user", options.item: "item"})
        task = task_of(Path(folder), rows, items.rename(columns={options.item: "item"}), columns)
        print(f"\n| min_share | {' | '.join(MEASURES)} |\n|---|{'---|' * len(MEASURES)}")
        for min_share in MIN_SHARES:
            figures = measured(task, trial(SEARCHED, 11), min_share)
            cells = [
                f"{figures[name]:.4f} ({figures['intervals'][name][0]:.4f} to {figures['intervals'][name][1]:.4f})"
                for name in MEASURES
            ]
            print(f"| {min_share:g} | {' | '.join(cells)} |", flush=True)


def half_width(figures: dict[str, Any], name: str) -> float:
    low, high = figures["intervals"][name]
    return float(high - low) / 2


def noise(n_seeds: int) -> None:
    kinds: dict[str, dict[str, Any]] = {
        "words": {"kind": "text"},
        "vectors": {"kind": "vector", "dimensions": NOISE_DIMENSIONS},
    }
    gains = dict.fromkeys(kinds, 0)
    for seed in range(n_seeds):
        rng = np.random.default_rng(seed)
        taste = rng.integers(N_TASTES, size=N_ITEMS)
        appeal = 2.0 * (taste == rng.integers(N_TASTES, size=(N_USERS, 1))) - 0.5 * np.log1p(rng.permutation(N_ITEMS))
        chosen = np.argsort(-(appeal + rng.gumbel(size=appeal.shape)), axis=1)[:, :N_CHOSEN]
        rows = pd.DataFrame({"user": np.repeat(np.arange(N_USERS), N_CHOSEN), "item": chosen.ravel()})
        words = rng.integers(NOISE_VOCABULARY, size=(N_ITEMS, NOISE_WORDS)).tolist()
        chance = {
            "words": [" ".join(f"w{word}" for word in row) for row in words],
            "vectors": list(rng.normal(size=(N_ITEMS, NOISE_DIMENSIONS))),
        }
        for kind, column in kinds.items():
            items = pd.DataFrame({"item": np.arange(N_ITEMS).astype(str), "chance": chance[kind]})
            with tempfile.TemporaryDirectory() as folder:
                task = task_of(Path(folder), rows, items, [{"name": "chance", **column}])
                figures = measured(task, trial(SMALL, 6), MAX_SHARE)
            ahead = figures["recall"] - figures["popularity_recall"]
            reach = float(np.hypot(half_width(figures, "recall"), half_width(figures, "popularity_recall")))
            gains[kind] += ahead > reach
            print(f"seed {seed}, {kind}: recall {figures['recall']:.4f}, {ahead:+.4f} ± {reach:.4f}", flush=True)
    print(f"\ngains of {n_seeds} seeds: {gains}; at most one in twenty is expected")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("interactions", nargs="?")
    parser.add_argument("items", nargs="?")
    parser.add_argument("--user", default="user_id")
    parser.add_argument("--item", default="item_id")
    parser.add_argument("--texts", nargs="*", default=[])
    parser.add_argument("--numbers", nargs="*", default=[])
    parser.add_argument("--noise", type=int, metavar="SEEDS", help="columns of chance, by so many seeds")
    options = parser.parse_args()
    if not options.noise and not options.items:
        parser.error("give two tables, or --noise")
    limit_blas_threads(1)
    print("\n".join(origin()))
    if options.noise:
        noise(options.noise)
    else:
        films(options)


if __name__ == "__main__":
    main()

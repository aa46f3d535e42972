"""What does `svc train --refit` cost beside a search, and what does it lose?

    python -m benchmarks.refit ratings.csv --user user_id --item item_id --time ts [--days 5] [--trials 40]
    python -m benchmarks.refit ratings.csv --user user_id --item item_id --time ts --starts
    python -m benchmarks.refit ratings.csv --user user_id --item item_id --time ts --weights
    python -m benchmarks.refit --rows 10000000 --trials 4

The first form trains with the data before each of the last days of a table, in a process of its own: once with a
search, and once with `--refit`, which takes the parameters of one search that is `--days` days old by the last day.
ndcg@20 is that of the rankings over what each known user chooses on the next day and had not chosen before; seconds are
processor seconds of a whole `svc train` with its workers.

With `--starts` it says whether iALS that starts from the vectors of the day before, for as many epochs or for fewer,
comes as far as one that starts from random vectors, over `--seeds` seeds. Intervals are those of the paired differences
of users, for 95 of 100 draws of them.

With `--weights` it searches once, for a winner that is a blend, and says whether a blend with its weights is worse on
the next day than one whose weights are searched again on the data of each day, with the same parts.

`--rows` generates rows (see training_scale.py) and trains iALS on them. A search of 40 trials is computed from one of
few trials: the seconds of the refit, which reads, measures and trains the final model as a search does, and 40 times
what one trial took beside that. The share of the final model is what a start from the vectors of the live model could
shorten.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import svc
from benchmarks.common import origin
from benchmarks.training_scale import generate
from svc import logs
from svc.model.model import Model
from svc.progress import Progress
from svc.recipe.algorithms import BLEND
from svc.recipe.load import load_recipe
from svc.settings import Settings
from svc.training.data import fetch
from svc.training.evaluation.intervals import interval
from svc.training.promotion.live_trial import trainable
from svc.training.search import prepare
from svc.training.search.blend_search import SAMPLE_USERS, WeightSearch
from svc.training.search.objective import Builder, refit_winner
from svc.training.search.served import to_scorer
from svc.training.search.trials import SearchResult, TrialRecord
from svc.training.winner.export import assemble
from svc.training.winner.refit import train_final

CUTOFF, DAY_S, FULL_TRIALS = 20, 86_400, 40
KEY = "SVC_SIGNING_KEYS"
IALS = "IALSRecommender"
STARTED: Mapping[str, Any] = {"n_components": 32, "alpha0": 0.05, "reg": 0.01, "mean_prior": True}
EPOCHS = 8
"""Parameters and epochs of the iALS of `--starts`."""
ByUser = dict[str, float]
Vectors = Mapping[str, Any]


def write_recipe(folder: Path, options: argparse.Namespace) -> Path:
    """A recipe over kept.csv in the folder."""
    recipe = {
        "name": "fresh",
        "source": {"type": "csv", "path": "kept.csv", "dtype": {"user": "str", "item": "str"}},
        "schema": {"user_column": "user", "item_column": "item", "time_column": "time", "time_unit": "s"},
        "training": {
            "algorithms": options.algorithms,
            "n_trials": options.trials,
            "cutoff": CUTOFF,
            "split": {"scheme": "time_global"},
        },
        "output": {"path": "fresh.svc"},
    }
    path = folder / "fresh.yaml"
    path.write_text(json.dumps(recipe), encoding="utf-8")
    return path


def train(recipe: Path, *flags: str) -> float:
    """Processor seconds of one `svc train` with all processes that it starts; its events are in events.jsonl."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "svc", "train", recipe.name, *flags]
    with (recipe.parent / "events.jsonl").open("wb") as file:
        subprocess.run(command, cwd=recipe.parent, check=True, stderr=file)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def share_of_final_model(recipe: Path) -> float:
    """The share of the seconds of the last training from its first event to its last that its final model took."""
    lines = (recipe.parent / "events.jsonl").read_text(encoding="utf-8").splitlines()
    moments = {told["event"]: datetime.fromisoformat(told["timestamp"]) for told in map(json.loads, lines)}
    final = moments["final_model_trained"] - moments["training_final_model"]
    return final / (moments["train_done"] - moments["training_started"])


def live(recipe: Path) -> svc.Recommender:
    return svc.load(recipe.with_suffix(".svc"))


def ndcg(model: Model, rows: pd.DataFrame) -> ByUser:
    """ndcg@20 of each known user of `rows` over the items that are new to the user."""
    gains = 1 / np.log2(np.arange(2, CUTOFF + 2))
    found: ByUser = {}
    for user, items in rows.groupby("user")["item"]:
        row = model.user_ids.index(str(user))
        if row < 0:
            continue
        chosen = {model.item_ids.index(item) for item in items} - set(model.history.items(row).tolist())
        if chosen:
            ranking = model.rank([model.known_user(row, limit=CUTOFF)])[0].items.tolist()
            hits = np.array([item in chosen for item in ranking], dtype=np.float64)
            found[str(user)] = float(hits @ gains[: len(hits)] / gains[: len(chosen)].sum())
    return found


def difference(before: list[ByUser], after: list[ByUser]) -> str:
    """The means over all days, their ratio, and the interval of the difference by user."""
    pairs = [(old[user], new[user]) for old, new in zip(before, after, strict=True) for user in old]
    first, second = np.array(pairs).T
    low, high = interval(second - first, seed=1)
    ratio = second.mean() / first.mean()
    return f"{first.mean():.4f} -> {second.mean():.4f}, ratio {ratio:.3f}, difference {low:+.4f} to {high:+.4f}"


class Days:
    """The rows before each of the last days, and the rows of that day. Day 0 is the one of the first search."""

    def __init__(self, options: argparse.Namespace) -> None:
        columns = {options.user: "user", options.item: "item", options.time: "time"}
        table = pd.read_csv(options.ratings, usecols=list(columns), dtype={options.user: str, options.item: str})
        self._table = table.rename(columns=columns)
        self._end = int(self._table["time"].max()) + 1
        self.count: int = options.days

    def write_before(self, day: int, folder: Path) -> None:
        kept = self._table[self._table["time"] < self._start(day)]
        kept.to_csv(folder / "kept.csv", index=False)

    def of(self, day: int) -> pd.DataFrame:
        first = self._start(day)
        return self._table[(self._table["time"] >= first) & (self._table["time"] < first + DAY_S)]

    def _start(self, day: int) -> int:
        return self._end - (self.count - day + 1) * DAY_S


def compare_with_search(days: Days, folder: Path, options: argparse.Namespace) -> None:
    """Print processor seconds and ndcg of a search and of a refit, day by day."""
    folders = {name: folder / name for name in ("searched", "refitted")}
    recipes = {}
    for name, own in folders.items():
        own.mkdir()
        recipes[name] = write_recipe(own, options)
    days.write_before(0, folders["refitted"])
    print(f"search of day 0: {train(recipes['refitted']):.0f} s, {live(recipes['refitted']).header['best_class']}")
    seconds: dict[str, list[float]] = {name: [] for name in folders}
    scores: dict[str, list[ByUser]] = {name: [] for name in folders}
    for day in range(1, days.count + 1):
        for name, recipe in recipes.items():
            days.write_before(day, recipe.parent)
            seconds[name].append(train(recipe, *(["--refit"] if name == "refitted" else [])))
            scores[name].append(ndcg(live(recipe).model, days.of(day)))
        told = "; ".join(
            f"{name} {seconds[name][-1]:.1f} s, ndcg {np.mean(list(scores[name][-1].values())):.4f}, "
            f"{live(recipes[name]).header['best_class']}"
            for name in folders
        )
        print(f"day {day}, {len(scores['searched'][-1])} users: {told}", flush=True)
    print(f"ndcg, searched -> refitted: {difference(scores['searched'], scores['refitted'])}")
    print(f"a search takes {sum(seconds['searched']) / sum(seconds['refitted']):.1f} times a refit")


def task_of(recipe: Path) -> prepare.Task:
    loaded = load_recipe(recipe, {}, settings=Settings())
    data = fetch.load(loaded, Settings(), {}, Progress())
    return prepare.make_task(loaded, data, prepare.split_data(loaded, data), Settings())


def fill(kept: Vectors, side: str, ids: list[str], vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """`vectors`, with those of the live model for the ids that are still there."""
    place = {name: row for row, name in enumerate(kept[f"{side}_ids"])}
    rows = np.array([place.get(name, -1) for name in ids])
    filled = vectors.copy()
    filled[rows >= 0] = kept[side][rows[rows >= 0]]
    return filled


def learn(
    task: prepare.Task, params: Mapping[str, Any], epochs: int, seed: int, start: Vectors | None = None
) -> tuple[Any, float]:
    """iALS after so many epochs, from random vectors or from those of `start`, and its processor seconds."""
    matrix, began = task.matrix(dict(params)), time.process_time()
    trained = Builder(seed, task.builder.threads).build(IALS, matrix, dict(params), {})
    trained.start_learning()
    core = trained.trainer.core_trainer
    if start is not None:
        core.user = fill(start, "user", task.data.interactions.user_ids, core.user)
        core.item = fill(start, "item", task.data.interactions.item_ids, core.item)
        if trained.has_mean:
            core.user_feature_weight = start["mean"]
    for _ in range(epochs):
        trained.run_epoch()
    return trained, time.process_time() - began


def vectors_of(task: prepare.Task, trained: Any) -> Vectors:
    core = trained.trainer.core_trainer
    return {
        "user_ids": task.data.interactions.user_ids,
        "item_ids": task.data.interactions.item_ids,
        "user": core.user.copy(),
        "item": core.item.copy(),
        "mean": core.user_feature_weight.copy() if trained.has_mean else None,
    }


def compare_starts(days: Days, recipe: Path, n_seeds: int) -> None:
    """Print how iALS from the vectors of the day before compares with iALS from random ones, over the seeds."""
    params, epochs = STARTED, EPOCHS
    tasks = []
    for day in (days.count - 1, days.count):
        days.write_before(day, recipe.parent)
        tasks.append(task_of(recipe))
    before, now = tasks
    matrix, judged = now.matrix(dict(params)), days.of(days.count)
    shares = sorted({max(1, epochs // part) for part in (8, 4, 2, 1)})
    scores: dict[str, list[ByUser]] = {"cold": [], **{f"warm {count}": [] for count in shares}}
    seconds = dict.fromkeys(scores, 0.0)
    for seed in range(n_seeds):
        old, _ = learn(before, params, epochs, seed)
        start = vectors_of(before, old)
        ways = {"cold": (epochs, None), **{f"warm {count}": (count, start) for count in shares}}
        for name, (count, vectors) in ways.items():
            trained, taken = learn(now, params, count, seed, vectors)
            seconds[name] += taken
            ids = now.data.interactions
            model = assemble(
                to_scorer(trained, IALS), user_ids=ids.user_ids, item_ids=ids.item_ids, X=matrix, features=None
            )
            scores[name].append(ndcg(model, judged))
    print(f"iALS {json.dumps(params)}, {epochs} epochs, {n_seeds} seeds")
    for name, of_seeds in scores.items():
        worst = min(mean(new) - mean(old) for old, new in zip(scores["cold"], of_seeds, strict=True))
        ratio = seconds[name] / seconds["cold"]
        print(f"{name}: {difference(scores['cold'], of_seeds)}, worst seed {worst:+.4f}, {ratio:.2f} of the time")


def mean(scores: ByUser) -> float:
    return float(np.mean(list(scores.values())))


def search_weights_again(task: prepare.Task, trial: TrialRecord) -> TrialRecord:
    """The blend `trial` with the weights that suit its parts on the holdout of `task`."""
    objective, seed = task.objective, task.loaded.recipe.training.split.seed
    scorers = [
        objective.scorer(
            refit_winner(task.builder, part, objective.decayed(part.params), objective.features, objective.times), part
        )
        for part in trial.parts
    ]
    weights = WeightSearch(objective.evaluators.full.sample(SAMPLE_USERS, seed), scorers, task).best()
    kept = [(part, weight / 10) for part, weight in zip(trial.parts, weights, strict=True) if weight]
    params = {**trial.params, "weights": {part.algorithm: weight for part, weight in kept}}
    return replace(trial, params=params, parts=tuple(part for part, _ in kept))


def compare_weights(days: Days, recipe: Path) -> None:
    """Print ndcg on each next day of a blend with the weights of one search, and with weights of every day."""
    days.write_before(0, recipe.parent)
    train(recipe)
    header = live(recipe).header
    if header["best_class"] != BLEND:
        sys.exit(f"{header['best_class']} won and not a blend: give other --algorithms or more --trials")
    scores: dict[str, list[ByUser]] = {"kept": [], "searched again": []}
    searching = 0.0
    for day in range(1, days.count + 1):
        days.write_before(day, recipe.parent)
        task = task_of(recipe)
        trial = replace(trainable(task, header), score=0.0)
        began = time.process_time()
        blends = {"kept": trial, "searched again": search_weights_again(task, trial)}
        searching += time.process_time() - began
        for name, blend in blends.items():
            final = train_final(task, SearchResult([blend], 0.0, 0))
            scores[name].append(ndcg(final.model, days.of(day)))
        told = "; ".join(
            f"{name} {blend.params['weights']}, ndcg {mean(scores[name][-1]):.4f}" for name, blend in blends.items()
        )
        print(f"day {day}, {len(scores['kept'][-1])} users: {told}", flush=True)
    print(f"kept -> searched again: {difference(scores['kept'], scores['searched again'])}")
    refitting = train(recipe, "--refit")
    print(f"training the parts and searching takes {searching / days.count:.1f} s, a refit {refitting:.1f} s")


def compare_generated(rows: int, trials: int, folder: Path) -> None:
    """Print processor seconds of a search of few trials and of its refit, on generated rows."""
    generate(folder / "data", rows)
    recipe = folder / "scale.yaml"
    text = {
        "name": "scale",
        "source": {"type": "parquet", "path": "data"},
        "schema": {"user_column": "user_id", "item_column": "item_id", "time_column": "ts", "time_unit": "s"},
        "training": {
            "algorithms": ["IALS"],
            "n_trials": trials,
            "recency": "off",
            "split": {"scheme": "time_user", "heldout_ratio": 0.1, "test_user_ratio": 0.02},
        },
        "output": {"path": "scale.svc"},
    }
    recipe.write_text(json.dumps(text), encoding="utf-8")
    searched = train(recipe)
    score = live(recipe).header["best_score"]
    refitted = train(recipe, "--refit")
    full = refitted + FULL_TRIALS * (searched - refitted) / trials
    print(f"{rows:,} rows: a search of {trials} trials {searched:.0f} s, a refit {refitted:.0f} s")
    print(f"scores on the holdout: {score:.5f} and {live(recipe).header['best_score']:.5f}")
    print(f"{FULL_TRIALS} trials would take {full:.0f} s, {full / refitted:.1f} times a refit")
    print(f"the final model takes {share_of_final_model(recipe):.0%} of a refit, on the clock")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("ratings", type=Path, nargs="?")
    parser.add_argument("--user", default="user_id", help="column of user ids")
    parser.add_argument("--item", default="item_id", help="column of item ids")
    parser.add_argument("--time", default="ts", help="column of times in seconds since 1970")
    parser.add_argument("--days", type=int, default=5)
    parser.add_argument("--algorithms", nargs="+", default=["IALS", "RP3beta", "Transitions", "Blend"])
    parser.add_argument("--trials", type=int, default=FULL_TRIALS)
    parser.add_argument("--starts", action="store_true", help="start iALS from the vectors of the day before")
    parser.add_argument("--weights", action="store_true", help="search the weights of a blend again each day")
    parser.add_argument("--seeds", type=int, default=20, help="of --starts")
    parser.add_argument("--rows", type=int, help="generate so many rows instead")
    options = parser.parse_args()
    os.environ["SVC_LOG_FORMAT"] = "json"
    os.environ.setdefault(KEY, f"benchmark:{os.urandom(32).hex()}")
    logs.configure(Settings(log_format="json", log_level="error"))
    print("\n".join(origin()), flush=True)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        if options.rows is not None:
            compare_generated(options.rows, options.trials, folder)
            return
        if options.ratings is None:
            parser.error("give a table of ratings, or --rows")
        days = Days(options)
        if options.starts:
            compare_starts(days, write_recipe(folder, options), options.seeds)
        elif options.weights:
            compare_weights(days, write_recipe(folder, options))
        else:
            compare_with_search(days, folder, options)


if __name__ == "__main__":
    main()

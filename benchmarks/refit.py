"""What does a refit cost and lose, and how does iALS start from earlier vectors?"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import svc
from benchmarks.common import origin
from benchmarks.scale import generate
from svc import logs
from svc.asking.offer import Offer
from svc.asking.plan import known_user
from svc.model.ids import IdTable
from svc.model.model import Model
from svc.progress import Progress
from svc.recipe.algorithms import BLEND
from svc.recipe.load import load_recipe
from svc.settings import Settings
from svc.training.data import fetch
from svc.training.final_model import train_final
from svc.training.fitting.export import assemble, to_scorer
from svc.training.fitting.train import train_trial
from svc.training.fitting.trial import TrialRecord
from svc.training.fitting.warm_start import WarmStart
from svc.training.judging.incumbent import trainable
from svc.training.judging.intervals import interval
from svc.training.judging.search_result import SearchResult
from svc.training.judging.task import Task, split_data
from svc.training.search import prepare
from svc.training.search.blend_search import WeightSearch
from svc.training.search.prepare import SearchTask

CUTOFF, DAY_S, FULL_TRIALS, SEED = 20, 86_400, 40, 42
KEY = "SVC_SIGNING_KEYS"
ByUser = dict[str, float]


def write_recipe(folder: Path, options: argparse.Namespace, seed: int = SEED) -> Path:
    """A recipe over kept.csv in the folder, whose search draws by `seed`."""
    recipe = {
        "name": "fresh",
        "source": {"type": "csv", "path": "kept.csv", "dtype": {"user": "str", "item": "str"}},
        "schema": {"user_column": "user", "item_column": "item", "time_column": "time", "time_unit": "s"},
        "training": {
            "algorithms": options.algorithms,
            "n_trials": options.trials,
            "cutoff": CUTOFF,
            "split": {"scheme": "time_global", "seed": seed},
        },
        "output": {"path": "fresh.svc"},
    }
    path = folder / "fresh.yaml"
    path.write_text(json.dumps(recipe), encoding="utf-8")
    return path


def run_training(recipe: Path, *flags: str) -> resource.struct_rusage:
    """What one `svc train` used with all processes that it started; its events are in events.jsonl."""
    command = [sys.executable, "-m", "svc", "train", recipe.name, *flags]
    with (recipe.parent / "events.jsonl").open("wb") as file:
        process = subprocess.Popen(command, cwd=recipe.parent, stderr=file)
        _, status, used = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"svc train ended with status {status}: {(recipe.parent / 'events.jsonl').read_text()[-1000:]}")
    return used


def train(recipe: Path, *flags: str) -> float:
    """Processor seconds of one `svc train`."""
    used = run_training(recipe, *flags)
    return used.ru_utime + used.ru_stime


def share_of_final_model(recipe: Path) -> float:
    """The share of the seconds of the last training from its first event to its last that its final model took."""
    lines = (recipe.parent / "events.jsonl").read_text(encoding="utf-8").splitlines()
    moments = {told["event"]: datetime.fromisoformat(told["timestamp"]) for told in map(json.loads, lines)}
    final = moments["final_model_trained"] - moments["training_final_model"]
    return final / (moments["train_done"] - moments["training_started"])


def clock_seconds(recipe: Path) -> float:
    """The seconds from the first event of the last training to its last."""
    lines = (recipe.parent / "events.jsonl").read_text(encoding="utf-8").splitlines()
    first, last = (datetime.fromisoformat(json.loads(line)["timestamp"]) for line in (lines[0], lines[-1]))
    return (last - first).total_seconds()


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
            ranking = model.rank([known_user(Offer(model=model), row, limit=CUTOFF)])[0].items.tolist()
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

    def write_before(self, day: float, folder: Path) -> None:
        kept = self._table[self._table["time"] < self._start(day)]
        kept.to_csv(folder / "kept.csv", index=False)

    def of(self, day: int) -> pd.DataFrame:
        first = self._start(day)
        return self._table[(self._table["time"] >= first) & (self._table["time"] < first + DAY_S)]

    def _start(self, day: float) -> float:
        return self._end - (self.count - day + 1) * DAY_S


def compare_with_search(days: Days, folder: Path, options: argparse.Namespace) -> None:
    """Print processor seconds and ndcg of searches and of refits, day by day, and of searches of different seeds."""
    recipes: dict[str, list[Path]] = {"searched": [], "refitted": []}
    for seed in range(SEED, SEED + options.searches):
        for name, paths in recipes.items():
            own = folder / f"{name}-{seed}"
            own.mkdir()
            paths.append(write_recipe(own, options, seed))
        days.write_before(0, recipes["refitted"][-1].parent)
        taken = train(recipes["refitted"][-1])
        print(f"seed {seed}, search of day 0: {taken:.0f} s, {live(recipes['refitted'][-1]).header['best_class']}")
    seconds: dict[str, list[float]] = {name: [] for name in recipes}
    scores: dict[str, list[list[ByUser]]] = {name: [[] for _ in paths] for name, paths in recipes.items()}
    for day in range(1, days.count + 1):
        told = []
        for name, paths in recipes.items():
            for recipe, of_seed in zip(paths, scores[name], strict=True):
                days.write_before(day, recipe.parent)
                seconds[name].append(train(recipe, *(["--refit"] if name == "refitted" else [])))
                of_seed.append(ndcg(live(recipe).model, days.of(day)))
            of_day = " ".join(f"{mean(of_seed[-1]):.4f}" for of_seed in scores[name])
            told.append(f"{name} {np.mean(seconds[name][-len(paths) :]):.1f} s, ndcg {of_day}")
        print(f"day {day}, {len(scores['searched'][0][-1])} users: {'; '.join(told)}", flush=True)
    searched, refitted = scores["searched"], scores["refitted"]
    for seed, (first, second) in enumerate(zip(searched, refitted, strict=True), start=SEED):
        print(f"seed {seed}, searched -> refitted: {difference(first, second)}")
    for seed, (first, second) in enumerate(pairwise(searched), start=SEED):
        print(f"searches, seed {seed} -> seed {seed + 1}: {difference(first, second)}")
    print(f"means over seeds, searched -> refitted: {difference(over_seeds(searched), over_seeds(refitted))}")
    print(f"a search takes {sum(seconds['searched']) / sum(seconds['refitted']):.1f} times a refit")


def over_seeds(scores: list[list[ByUser]]) -> list[ByUser]:
    """For each day the mean of each user over the seeds."""
    return [
        {user: float(np.mean([of_seed[user] for of_seed in of_day])) for user in of_day[0]}
        for of_day in zip(*scores, strict=True)
    ]


def task_of(recipe: Path) -> SearchTask:
    loaded = load_recipe(recipe, {}, settings=Settings())
    data = fetch.load(loaded, Settings(), {}, Progress())
    loaded, parts = split_data(loaded, data)
    return prepare.make_task(loaded, data, parts, Settings())


def mean(scores: ByUser) -> float:
    return float(np.mean(list(scores.values())))


def search_weights_again(task: SearchTask, trial: TrialRecord) -> TrialRecord:
    """The blend `trial` with the weights that suit its parts on the holdout of `task`."""
    holdout = task.holdout
    trained = [train_trial(task.builder, part, holdout.train, holdout.features, holdout.times) for part in trial.parts]
    scorers = [
        task.objective.quick_scores(scorer, part.params)(part.recency)
        for scorer, part in zip(trained, trial.parts, strict=True)
    ]
    weights = WeightSearch(holdout.evaluators.sample, scorers, task).best()
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
    live_file = recipe.with_suffix(".svc").read_bytes()
    cold = train(recipe, "--refit", "--cold")
    recipe.with_suffix(".svc").write_bytes(live_file)
    used = run_training(recipe, "--refit")
    refitted = used.ru_utime + used.ru_stime
    full = refitted + FULL_TRIALS * (searched - refitted) / trials
    print(f"{rows:,} rows: a search of {trials} trials {searched:.0f} s, a refit {refitted:.0f} s, --cold {cold:.0f} s")
    print(f"peak memory of the refit: {used.ru_maxrss / 2**20:.2f} GiB, on the clock {clock_seconds(recipe):.0f} s")
    print(f"scores on the holdout: {score:.5f} and {live(recipe).header['best_score']:.5f}")
    print(f"{FULL_TRIALS} trials would take {full:.0f} s, {full / refitted:.1f} times a refit")
    print(f"the final model takes {share_of_final_model(recipe):.0%} of a refit, on the clock")


def refit(parser: argparse.ArgumentParser) -> None:
    """What does `svc train --refit` cost beside a search, and what does it lose?

        python -m benchmarks refit ratings.csv --user user_id --item item_id --time ts [--days 5] [--searches 2]
        python -m benchmarks refit ratings.csv --user user_id --item item_id --time ts --weights
        python -m benchmarks refit --rows 10000000 --trials 4

    The first form trains with the data before each of the last days of a table, in a process of its own: once with a
    search, and once with `--refit`, which takes the parameters of one search that is `--days` days old by the last
    day. ndcg@20 is that of the rankings over what each known user chooses on the next day and had not chosen before;
    seconds are processor seconds of a whole `svc train` with its workers. With `--searches` it does so for several
    seeds, and compares the searches of two seeds with each other: what a refit loses means something only beside what
    chance makes of a search.

    With `--weights` it searches once, for a winner that is a blend, and says whether a blend with its weights is worse
    on the next day than one whose weights are searched again on the data of each day, with the same parts.

    `--rows` generates rows (see scale.py) and trains iALS on them. A search of 40 trials is computed from one
    of few trials: the seconds of the refit, which reads, measures and trains the final model as a search does, and 40
    times what one trial took beside that.
    """
    parser.add_argument("ratings", type=Path, nargs="?")
    parser.add_argument("--user", default="user_id", help="column of user ids")
    parser.add_argument("--item", default="item_id", help="column of item ids")
    parser.add_argument("--time", default="ts", help="column of times in seconds since 1970")
    parser.add_argument("--days", type=int, default=5)
    parser.add_argument("--algorithms", nargs="+", default=["IALS", "RP3beta", "Transitions", "Blend"])
    parser.add_argument("--trials", type=int, default=FULL_TRIALS)
    parser.add_argument("--searches", type=int, default=1, help="searches of each day, of other seeds")
    parser.add_argument("--weights", action="store_true", help="search the weights of a blend again each day")
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
        if options.weights:
            compare_weights(days, write_recipe(folder, options))
        else:
            compare_with_search(days, folder, options)


IALS = "IALSRecommender"
HOURS = 24
STARTED: Sequence[tuple[Mapping[str, Any], int]] = (
    ({"n_components": 56, "alpha0": 0.1575, "reg": 0.00523}, 6),
    ({"n_components": 22, "alpha0": 0.0759, "reg": 0.00488, "mean_prior": True}, 4),
    ({"n_components": 64, "alpha0": 0.043, "reg": 0.012, "mean_prior": True}, 4),
)
"""Parameters and epochs of the iALS tried: what searches of film ratings found for three days."""


@dataclass(frozen=True, slots=True)
class Learned:
    """What an iALS has learned on the data of `task`, and the processor seconds that this took."""

    task: Task
    trained: Any
    seconds: float

    def start_for(self, task: Task) -> WarmStart:
        """Its vectors as the start on the data of `task`, as `--refit` takes those of the live model."""
        core, before, now = self.trained.trainer.core_trainer, self.task.data.interactions, task.data.interactions
        rows = [
            IdTable.from_ids(known).indices(ids)
            for known, ids in ((before.user_ids, now.user_ids), (before.item_ids, now.item_ids))
        ]
        mean = core.user_feature_weight[0] if self.trained.has_mean else None
        return WarmStart("", core.user, core.item, mean, *rows)

    def scores(self, judged: pd.DataFrame) -> ByUser:
        ids, scorer = self.task.data.interactions, to_scorer(self.trained, IALS)
        matrix = self.task.matrix({})
        return ndcg(
            assemble(scorer, user_ids=ids.user_ids, item_ids=ids.item_ids, X=matrix, features=None),
            judged,
        )


def learn(task: Task, params: Mapping[str, Any], epochs: int, seed: int, start: WarmStart | None = None) -> Learned:
    """iALS after so many epochs, from random vectors or from `start`."""
    matrix, began = task.matrix(dict(params)), time.process_time()
    trained = replace(task.builder, seed=seed).build(IALS, matrix, dict(params), {})
    trained.start_learning()
    if start is not None:
        start.place(trained)
    for _ in range(epochs):
        trained.run_epoch()
    return Learned(task, trained, time.process_time() - began)


def compare_starts(days: Days, recipe: Path, n_seeds: int) -> None:
    """Print how iALS from earlier vectors compares with iALS from random ones, over the seeds.

    The earlier vectors are those of the day before; or of a chain of refits, one an hour since then, each of which
    started from those of the one before.
    """
    tasks = []
    for hour in range(HOURS + 1):
        days.write_before(hour / HOURS, recipe.parent)
        tasks.append(task_of(recipe))
    judged = pd.concat([days.of(day) for day in range(1, days.count + 1)])
    for params, epochs in STARTED:
        shares = sorted({-(-epochs // 4), -(-epochs // 2)})
        scores: dict[str, list[list[ByUser]]] = {}
        seconds: dict[str, float] = {}
        for seed in range(n_seeds):
            ways = {"cold": learn(tasks[-1], params, epochs, seed)}
            before = learn(tasks[0], params, epochs, seed)
            for count in shares:
                ways[f"from the day before, {count}"] = learn(
                    tasks[-1], params, count, seed, before.start_for(tasks[-1])
                )
                last = before
                for task in tasks[1:]:
                    last = learn(task, params, count, seed, last.start_for(task))
                ways[f"last of a chain of {len(tasks) - 1}, {count}"] = last
            for name, learned in ways.items():
                scores.setdefault(name, []).append([learned.scores(judged)])
                seconds[name] = seconds.get(name, 0.0) + learned.seconds
        print(f"iALS {json.dumps(params)}, {epochs} epochs, {n_seeds} seeds")
        cold = over_seeds(scores["cold"])
        for name, of_seeds in scores.items():
            ratio = seconds[name] / seconds["cold"]
            print(f"{name}: {difference(cold, over_seeds(of_seeds))}, {ratio:.2f} of the time", flush=True)


def start(parser: argparse.ArgumentParser) -> None:
    """Is iALS that starts from the vectors of an earlier training as good as iALS that starts from random ones?

        python -m benchmarks refit start ratings.csv --user user_id --item item_id --time ts [--seeds 20]

    The earlier vectors are those of the day before, as in one `svc train --refit`; or those at the end of a chain of
    hourly refits since then, each of which started from the one before. Prints ndcg@20 over the `--days` that follow,
    after half and a quarter of the epochs, beside that of the full training from random vectors, and the share of its
    processor time. Intervals are those of the paired differences of users, for 95 of 100 draws of them; of each user
    the mean over the seeds counts.
    """
    parser.add_argument("ratings", type=Path)
    parser.add_argument("--user", default="user_id", help="column of user ids")
    parser.add_argument("--item", default="item_id", help="column of item ids")
    parser.add_argument("--time", default="ts", help="column of times in seconds since 1970")
    parser.add_argument("--days", type=int, default=7, help="the rankings are judged by so many last days")
    parser.add_argument("--seeds", type=int, default=20)
    options = parser.parse_args()
    options.algorithms, options.trials = ["IALS"], 1
    logs.configure(Settings(log_format="json", log_level="error"))
    print("\n".join(origin()), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        compare_starts(Days(options), write_recipe(Path(folder), options), options.seeds)


CASES = {"refit": refit, "start": start}

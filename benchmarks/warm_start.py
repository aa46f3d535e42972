"""Is iALS that starts from the vectors of an earlier training as good as iALS that starts from random ones?

    python -m benchmarks.warm_start ratings.csv --user user_id --item item_id --time ts [--seeds 20]

The earlier vectors are those of the day before, as in one `svc train --refit`; or those at the end of a chain of hourly
refits since then, each of which started from the one before. Prints ndcg@20 over the `--days` that follow, after half
and a quarter of the epochs, beside that of the full training from random vectors, and the share of its processor time.
Intervals are those of the paired differences of users, for 95 of 100 draws of them; of each user the mean over the
seeds counts.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.common import origin
from benchmarks.refit import ByUser, Days, difference, ndcg, over_seeds, task_of, write_recipe
from svc import logs
from svc.model.ids import IdTable
from svc.settings import Settings
from svc.training.fitting.export import assemble, to_scorer
from svc.training.fitting.train import Builder
from svc.training.fitting.warm_start import WarmStart
from svc.training.judging.task import Task

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
    trained = Builder(seed, task.builder.threads).build(IALS, matrix, dict(params), {})
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


def main() -> None:
    parser = argparse.ArgumentParser()
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


if __name__ == "__main__":
    main()

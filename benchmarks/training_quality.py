"""Is svc's search at least as good, and as fast, as irspack's own `tune` with the same budget?

    python -m benchmarks.training_quality ratings.csv [--trials 40]

`ratings.csv` has the columns user_id, item_id and ts (seconds). Both sides see the same split (time_user, half of
each user's items held out) and the same number of trials for each algorithm. Prints one line an algorithm and the
totals, in wall and in CPU seconds; the latter are disturbed less by neighbours on the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import time
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
from irspack import Evaluator
from irspack import recommenders as irspack_recommenders

from svc import logs
from svc.recipe.algorithms import DEFAULT_ALGORITHMS
from svc.recipe.schema import Cleansing, InteractionSchema
from svc.settings import Settings
from svc.training import interactions, split
from svc.training.algorithms import search_space
from svc.training.budget import plan_trials
from svc.training.evaluate import Evaluation
from svc.training.fit import Judge
from svc.training.objective import Builder, Threads, TrialObjective
from svc.training.progress import NullProgress
from svc.training.pruner import AlgorithmMedianPruner
from svc.training.sampler import AlgorithmSampler
from svc.training.search import Limits, Search, Talk
from svc.training.storage import locate, open_storage

CUTOFF, SEED = 20, 42


def load(path: Path) -> split.Split:
    frame = pd.read_csv(path, dtype={"user_id": "category", "item_id": "category"})
    schema = InteractionSchema(user_column="user_id", item_column="item_id", time_column="ts", time_unit="s")
    found = interactions.from_frame(frame, schema, Cleansing(), with_times=True)
    return split.split(found, split.SplitPlan("time_user", 0.5, 1.0, SEED))


def run_svc(data: split.Split, n_trials: int) -> tuple[float, dict[str, Any], dict[str, int]]:
    n_users, n_items = data.train.shape
    spaces = {name: search_space(name, n_users=n_users, n_items=n_items) for name in DEFAULT_ALGORITHMS}
    plan = plan_trials(DEFAULT_ALGORITHMS, n_trials, own={}, fixed=[name for name in spaces if not spaces[name]])
    storage = open_storage(locate("", Path()))
    sampler = AlgorithmSampler(plan, spaces, SEED)
    study = optuna.create_study(
        direction="maximize", storage=storage.backend, sampler=sampler, pruner=AlgorithmMedianPruner()
    )
    judge = Judge.of(Evaluation(data.heldout, offset=data.val_offset, cutoff=CUTOFF), "ndcg", SEED)
    objective = TrialObjective(Builder(SEED, Threads.choose(None, reproducible=True)), data.train, judge, {})
    search = Search(study, storage, sampler, plan, objective, Limits(), NullProgress(), Talk(trials=False))
    result = search.run()
    return result.seconds, result.best_per_algorithm, dict(plan.shares)


def run_irspack(data: split.Split, name: str, n_trials: int) -> tuple[float, float, float]:
    evaluator = Evaluator(data.heldout, offset=data.val_offset, cutoff=CUTOFF, target_metric="ndcg")
    cls = getattr(irspack_recommenders, name)
    begin, cpu = time.monotonic(), time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        _, trials = cls.tune(data.train, evaluator, n_trials=n_trials, tuning_random_seed=SEED)
    return time.monotonic() - begin, time.process_time() - cpu, -float(trials["value"].min())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("ratings", type=Path)
    parser.add_argument("--trials", type=int, default=40)
    options = parser.parse_args()
    logs.configure(Settings(log_format="json", log_level="error"))
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    data = load(options.ratings)
    cpu = time.process_time()
    seconds, best, shares = run_svc(data, options.trials)
    cpu = time.process_time() - cpu
    score = max(trial.score or 0.0 for trial in best.values())
    print(f"svc: best {score:.5f} in {seconds:.1f} s wall, {cpu:.1f} s CPU", flush=True)
    total, total_cpu, top = 0.0, 0.0, 0.0
    for name, share in shares.items():
        took, used, score = run_irspack(data, name, share)
        total, total_cpu, top = total + took, total_cpu + used, max(top, score)
        own = best[name].score if name in best else float("nan")
        print(f"{name:24} {share:3} trials  svc {own:.5f}  irspack {score:.5f} in {took:.1f} s", flush=True)
    print(f"irspack: best {top:.5f} in {total:.1f} s wall, {total_cpu:.1f} s CPU")


if __name__ == "__main__":
    main()

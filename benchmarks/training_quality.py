"""Is svc's search at least as good, and as fast, as irspack's own `tune` with the same budget?

    python -m benchmarks.training_quality ratings.csv --user user_id --item item_id --time ts [--scheme time_user]
    python -m benchmarks.training_quality train.csv --test test.csv [--algorithms IALS RP3beta Blend]
    python -m benchmarks.training_quality sessions.csv --order --user session_id --item item_id --time time [--repeats]

Both sides see the same split. Beside irspack every tuned algorithm has the same number of trials, and keeps them though
it may be clearly behind. Prints when svc's search reached each of its best scores, one line an algorithm, and totals in
seconds. `--no-tune` leaves irspack out, and the trials go where svc wants them.

With `--test` it follows the protocol of a public split: the search sees nothing but a holdout of the first file, its
winner is trained on the whole of that file, and recall@20 and ndcg@20 are means over all users of the second file.
recall divides by the number of test items, ndcg by the best that 20 places allow, as published results do. A file
that ends in .txt has one line a user: the user, then the items, with blanks between.

With `--order` it says what the order of histories gains in answers over HTTP: see order.py.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from irspack import Evaluator as IrspackEvaluator
from irspack import recommenders as irspack_recommenders
from scipy import sparse

from benchmarks.common import origin
from benchmarks.order import VARIANTS, compare_orders
from svc import logs
from svc.progress import Progress, State
from svc.recipe.algorithms import BLEND, DEFAULT_ALGORITHMS
from svc.recipe.load import load_recipe
from svc.settings import Settings
from svc.training.data import fetch
from svc.training.final_model import train_final
from svc.training.judging.evaluator import Evaluator
from svc.training.judging.rankers import ServedRanker
from svc.training.judging.search_result import SearchResult
from svc.training.judging.task import Task, split_data
from svc.training.search import prepare
from svc.training.search.blend_search import add_blend
from svc.training.search.prepare import SearchTask
from svc.training.search.storage import preflight

CUTOFF, SEED = 20, 42
ALL = (*DEFAULT_ALGORITHMS, "SLIMRecommender")


class Watch:
    """A display that keeps when the best score of a search rose, as (seconds, score and algorithm)."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.reached: list[tuple[float, str]] = []

    def show(self, state: State) -> None:
        best = state.note.partition(", best ")[2]
        if best and (not self.reached or best != self.reached[-1][1]):
            self.reached.append((time.monotonic() - self.began, best))

    def close(self) -> None:
        pass


def pairs(path: Path, user: str, item: str, more: list[str]) -> pd.DataFrame:
    """The columns that are used, ids as text."""
    if path.suffix == ".txt":
        lines = (line.split() for line in path.read_text(encoding="utf-8").splitlines())
        found = [(words[0], word) for words in lines for word in words[1:]]
        return pd.DataFrame(found, columns=[user, item])
    return pd.read_csv(path, usecols=[user, item, *more], dtype={user: str, item: str})


def recipe(folder: Path, options: argparse.Namespace) -> Any:
    """A recipe over a copy of the ratings."""
    more = [options.time] if options.time else []
    pairs(options.ratings, options.user, options.item, more).to_csv(folder / "ratings.csv", index=False)
    columns = {"user_column": options.user, "item_column": options.item}
    if options.time:
        columns |= {"time_column": options.time, "time_unit": "s"}
    text = {
        "name": "quality",
        "source": {"type": "csv", "path": "ratings.csv", "dtype": {options.user: "str", options.item: "str"}},
        "schema": columns,
        "training": {
            "algorithms": options.algorithms,
            "n_trials": options.trials,
            "cutoff": CUTOFF,
            "seed": SEED,
            "split": {"scheme": options.scheme, "heldout_ratio": options.heldout_ratio, "seed": SEED},
            **({"parallelism": options.workers} if options.workers else {}),
            **({} if options.no_tune or options.test else {"per_algorithm_trials": equal_shares(options)}),
        },
        "output": {"path": "quality.svc"},
    }
    (folder / "quality.yaml").write_text(json.dumps(text), encoding="utf-8")
    return load_recipe(folder / "quality.yaml", {}, settings=Settings())


def equal_shares(options: argparse.Namespace) -> dict[str, int]:
    tuned = [name for name in options.algorithms if not name.startswith(("Blend", "TopPop"))]
    return {name: max(1, options.trials // len(tuned)) for name in tuned}


def run_svc(folder: Path, options: argparse.Namespace) -> tuple[SearchTask, SearchResult, Watch]:
    loaded = recipe(folder, options)
    found = fetch.load(loaded, Settings(), {}, Progress())
    loaded, parts = split_data(loaded, found)
    task = prepare.make_task(loaded, found, parts, Settings())
    watch = Watch()
    location = preflight("", folder)
    search = prepare.open_search(task, location, "benchmark", Progress(watch), quiet=True, verbose=False)
    result = search.run()
    search.storage.close()
    if BLEND in loaded.recipe.training.algorithms:
        result = add_blend(task, result)
        watch.reached.append((time.monotonic() - watch.began, f"{result.best.score:.4f} ({result.best.algorithm})"))
    return task, result, watch


def run_irspack(task: Task, name: str, n_trials: int) -> tuple[float, float]:
    evaluator = IrspackEvaluator(task.split.heldout, offset=task.split.val_offset, cutoff=CUTOFF, target_metric="ndcg")
    cls = getattr(irspack_recommenders, name)
    begin = time.monotonic()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        _, trials = cls.tune(task.split.train, evaluator, n_trials=n_trials, tuning_random_seed=SEED)
    return time.monotonic() - begin, -float(trials["value"].min())


def held_out(task: Task, options: argparse.Namespace) -> sparse.csr_matrix:
    """The test file over the users and items of the training file, (users, items)."""
    frame = pairs(options.test, options.user, options.item, [])
    users, items = (
        pd.Index(ids).get_indexer(pd.Index(frame[column]))
        for ids, column in (
            (task.data.interactions.user_ids, options.user),
            (task.data.interactions.item_ids, options.item),
        )
    )
    known = (users >= 0) & (items >= 0)
    print(f"test: {known.sum():,} of {len(frame):,} pairs have a user and an item of the training file")
    shape = (len(task.data.interactions.user_ids), len(task.data.interactions.item_ids))
    matrix = sparse.csr_matrix((np.ones(int(known.sum()), np.float32), (users[known], items[known])), shape=shape)
    matrix.data[:] = 1.0
    return matrix


def public_split(task: Task, result: SearchResult, options: argparse.Namespace) -> Iterator[str]:
    """A line for the best of each algorithm: trained on the whole training file, scored on the test file."""
    test, rows = held_out(task, options), np.arange(len(task.data.interactions.user_ids))
    evaluator = Evaluator(test, offset=0, cutoff=CUTOFF)
    truths = [set(test.indices[test.indptr[row] : test.indptr[row + 1]].tolist()) for row in evaluator.evaluated_users]
    gains = 1 / np.log2(np.arange(2, CUTOFF + 2))
    for name, trial in result.best_per_algorithm.items():
        model = train_final(task, SearchResult([trial], 0.0, 0)).model
        columns = model.item_ids.indices(task.data.interactions.item_ids).astype(np.int64)
        ranker = ServedRanker(model, rows, columns, sparse.csr_matrix(test.shape))
        recall, ndcg = [], []
        for ranking, truth in zip(evaluator.rankings(ranker), truths, strict=True):
            hits = np.array([item in truth for item in ranking], dtype=np.float64)
            recall.append(hits.sum() / len(truth))
            ndcg.append(hits @ gains[: len(hits)] / gains[: len(truth)].sum())
        yield f"{name:24} test users {len(truths):,}  recall@20 {np.mean(recall):.5f}  ndcg@20 {np.mean(ndcg):.5f}"


def compare(task: SearchTask, best: dict[str, Any]) -> None:
    """irspack's `tune` with the trials that each algorithm had in svc's search."""
    total, top = 0.0, 0.0
    for name, share in task.plan.shares.items():
        took, score = run_irspack(task, name, share)
        total, top = total + took, max(top, score)
        own = best[name].score if name in best else float("nan")
        print(f"{name:24} {share:3} trials  svc {own:.5f}  irspack {score:.5f} in {took:.1f} s", flush=True)
    print(f"irspack: best {top:.5f} in {total:.1f} s")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("ratings", type=Path)
    parser.add_argument("--test", type=Path, help="the test file of a public split")
    parser.add_argument("--user", default="user_id", help="column of user ids")
    parser.add_argument("--item", default="item_id", help="column of item ids")
    parser.add_argument("--time", help="column of times in seconds, for the time schemes")
    parser.add_argument("--scheme", default="random", help="split of the search")
    parser.add_argument("--heldout-ratio", type=float, default=0.1)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--algorithms", nargs="+", default=list(ALL))
    parser.add_argument("--workers", type=int, help="worker processes of svc's search; by default all cores")
    parser.add_argument("--no-tune", action="store_true", help="without irspack's tune")
    parser.add_argument("--order", action="store_true", help="what does the order of histories gain?")
    parser.add_argument("--repeats", action="store_true", help="with --order: hidden items may be chosen again")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS), help="of --order")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    logs.configure(Settings(log_format="json", log_level="error"))
    print("\n".join(origin()))
    if options.order:
        compare_orders(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        task, result, watch = run_svc(Path(folder), options)
    for seconds, score in watch.reached:
        print(f"reached {score} after {seconds:.1f} s")
    best = result.best_per_algorithm
    print(f"svc: best {result.best.score:.5f} ({result.best.algorithm}) in {result.seconds:.1f} s")
    for name, trial in best.items():
        print(f"{name:24} svc {trial.score:.5f}  {json.dumps(trial.params)}", flush=True)
    if options.test is not None:
        for line in public_split(task, result, options):
            print(line, flush=True)
    elif not options.no_tune:
        compare(task, best)


if __name__ == "__main__":
    main()

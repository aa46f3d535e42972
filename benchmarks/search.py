"""Is the search good and fast, and do its figures hold?"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optuna
import pandas as pd
import yaml
from irspack import Evaluator as IrspackEvaluator
from irspack import recommenders as irspack_recommenders
from numpy.typing import NDArray
from scipy import sparse

from benchmarks.common import origin
from svc import logs
from svc.progress import Progress, State
from svc.recipe.algorithms import BLEND, DEFAULT_ALGORITHMS
from svc.recipe.load import load_recipe
from svc.settings import Settings
from svc.training.data import fetch
from svc.training.final_model import train_final
from svc.training.judging.evaluator import Evaluator
from svc.training.judging.intervals import Choice, interval, lead, paired_change
from svc.training.judging.rankers import ServedRanker
from svc.training.judging.search_result import SearchResult
from svc.training.judging.task import Task, split_data
from svc.training.search import budget, prepare
from svc.training.search.blend_search import add_blend
from svc.training.search.prepare import SearchTask
from svc.training.search.storage import locate, open_storage, preflight

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


def compare_with_irspack(task: SearchTask, best: dict[str, Any]) -> None:
    """irspack's `tune` with the trials that each algorithm had in svc's search."""
    total, top = 0.0, 0.0
    for name, share in task.plan.shares.items():
        took, score = run_irspack(task, name, share)
        total, top = total + took, max(top, score)
        own = best[name].score if name in best else float("nan")
        print(f"{name:24} {share:3} trials  svc {own:.5f}  irspack {score:.5f} in {took:.1f} s", flush=True)
    print(f"irspack: best {top:.5f} in {total:.1f} s")


def quality(parser: argparse.ArgumentParser) -> None:
    """Is svc's search at least as good, and as fast, as irspack's own `tune` with the same budget?

        python -m benchmarks search ratings.csv --user user_id --item item_id --time ts [--scheme time_user]
        python -m benchmarks search train.csv --test test.csv [--algorithms IALS RP3beta Blend]

    Both sides see the same split. Beside irspack every tuned algorithm has the same number of trials, and keeps them
    though it may be clearly behind. Prints when svc's search reached each of its best scores, one line an algorithm,
    and totals in seconds. `--no-tune` leaves irspack out, and the trials go where svc wants them.

    With `--test` it follows the protocol of a public split: the search sees nothing but a holdout of the first file,
    its winner is trained on the whole of that file, and recall@20 and ndcg@20 are means over all users of the second
    file. recall divides by the number of test items, ndcg by the best that 20 places allow, as published results do. A
    file that ends in .txt has one line a user: the user, then the items, with blanks between.
    """
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
    options = parser.parse_args()
    logs.configure(Settings(log_format="json", log_level="error"))
    print("\n".join(origin()))
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
        compare_with_irspack(task, best)


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


def run_version(svc: str, recipe: Path, trials: int) -> Run:
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


def race(parser: argparse.ArgumentParser) -> None:
    """When does the search of one version of svc reach the best score of another one, on the same recipe and machine?

        python -m benchmarks search race recipe.yaml old=/path/to/old/bin/svc new=svc [--trials 40]
        python -m benchmarks search race --generate sparse /tmp/sparse        # writes a data set and its recipe

    Runs `svc train` of each version in turn, reads `trial_done` from its log, and prints when each best score was
    reached, how long the search took, and when each version reached the final score of the first one: by the clock and
    in seconds of processor time of all its processes, which say more where other programs run. `--generate` makes data
    of other shapes than film ratings: `sparse` has 30,000 users with about four rows each over 8,000 items, `dense`
    3,000 users with about 120 over 1,500.
    """
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
        found = run_version(command, options.recipe, options.trials)
        goal = found.reached[-1][1] if goal is None else goal
        for at, score, algorithm in found.reached:
            print(f"{name:8} {score:.5f} after {at}  {algorithm}")
        reached = found.first(goal)
        when = "never" if reached is None else f"after {reached}"
        print(f"{name:8} {options.trials} trials in {found.spent}; {goal:.5f} reached {when}", flush=True)


def write_recipe(source: Path, storage: str, folder: Path) -> tuple[Path, str]:
    recipe = yaml.safe_load(source.read_text(encoding="utf-8"))
    recipe.setdefault("training", {})["storage_path"] = storage
    recipe["source"]["path"] = str((source.parent / recipe["source"]["path"]).absolute())
    path = folder / "shared.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return path, recipe["name"]


def with_processes(recipe: Path, name: str, storage: str, n_processes: int) -> str:
    run_id = uuid.uuid4().hex[:12]
    command = [sys.executable, "-m", "svc", "train", str(recipe), "--run-id", run_id, "--search-only", "--quiet"]
    begin = time.monotonic()
    processes = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(n_processes)]
    codes = [process.wait() for process in processes]
    seconds = time.monotonic() - begin
    opened = open_storage(locate(storage, recipe.parent))
    study = optuna.load_study(study_name=f"svc_{name}_{run_id}", storage=opened.backend)
    used = [trial for trial in study.get_trials(deepcopy=False) if budget.uses_budget(trial)]
    opened.close()
    distinct = {(trial.user_attrs[budget.ALGORITHM], str(sorted(trial.params.items()))) for trial in used}
    best = max(trial.value for trial in used if trial.value is not None)
    return (
        f"{n_processes} processes: {seconds:6.1f} s  {len(used)} trials, {len(used) - len(distinct)} twice, "
        f"best {best:.5f}, exit codes {codes}"
    )


def several_processes(parser: argparse.ArgumentParser) -> None:
    """What do four processes on one study gain over one, with the same budget?

        python -m benchmarks search processes recipe.yaml postgresql+psycopg://postgres@127.0.0.1/test

    The recipe's own `storage_path` is replaced by the given one. Prints wall seconds, the trials that used the budget,
    and how many trials had the parameters of an earlier one.
    """
    parser.add_argument("recipe", type=Path)
    parser.add_argument("storage")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 4])
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        recipe, name = write_recipe(options.recipe, options.storage, Path(folder))
        for n_processes in options.processes:
            print(with_processes(recipe, name, options.storage, n_processes), flush=True)


N_TRIALS, N_ALGORITHMS, N_EVERYBODY = 40, 6, 20_000


class Everybody(NamedTuple):
    """`scores`, (users, trials), of all users there are, whose means are the truth."""

    label: str
    scores: NDArray[np.float64]
    algorithms: list[str]


def equally_good(alike: float) -> Everybody:
    """Mostly zeros, as the scores of users are; moved so that all trials have the same mean."""
    rng = np.random.default_rng(1)
    drawn = rng.normal(size=(N_EVERYBODY, 1)) * alike**0.5
    drawn = drawn + rng.normal(size=(N_EVERYBODY, N_TRIALS)) * (1.0 - alike) ** 0.5
    scores = np.maximum(drawn - 0.8, 0.0)
    scores += 0.5 - scores.mean(axis=0)
    return Everybody(f"noise, {alike:.0%} alike", scores, [str(trial % N_ALGORITHMS) for trial in range(N_TRIALS)])


def outcomes(everybody: Everybody, n_users: int, n_searches: int) -> Iterator[tuple[bool, bool, bool, bool]]:
    """For each search whether the interval holds the truth, whether one that forgets the choice does, and whether the
    lead and a lead that forgets the choice are falsely called more than chance."""
    truth = everybody.scores.mean(axis=0)
    for seed in range(n_searches):
        rows = np.random.default_rng([seed, 7]).integers(0, len(everybody.scores), n_users)
        order = np.argsort(-everybody.scores[rows].mean(axis=0))
        scores = everybody.scores[rows][:, order]
        choice = Choice(scores, [everybody.algorithms[trial] for trial in order])
        low, high = interval(scores[:, 0], seed=seed, choice=choice)
        forgetful_low, forgetful_high = interval(scores[:, 0], seed=seed)
        is_worse = truth[order[0]] <= truth[order[choice.runner_up]] + 1e-12
        forgetful = paired_change(scores[:, 0], scores[:, choice.runner_up], seed=seed)
        yield (
            bool(low <= truth[order[0]] <= high),
            bool(forgetful_low <= truth[order[0]] <= forgetful_high),
            bool(is_worse and lead(choice, seed=seed).low > 0.0),
            bool(is_worse and forgetful.low > 0.0),
        )


def held_intervals(parser: argparse.ArgumentParser) -> None:
    """How often do the intervals of a chosen winner hold the truth, and is a lead called more than chance that is none?

        python -m benchmarks search intervals [--scores scores.npz] [--searches 300] [--users 100 500]

    Searches of 40 trials of 6 algorithms are simulated: the users are drawn, the trial with the highest mean wins, and
    its interval is compared with its mean over all users. Without `--scores` all trials are equally good, and alike in
    the given share of their scores. `--scores` takes the scores of real trials: an .npz file with `scores`, (users,
    trials), and `algorithms`, (trials,).
    """
    parser.add_argument("--scores", type=Path)
    parser.add_argument("--searches", type=int, default=300)
    parser.add_argument("--users", type=int, nargs="+", default=[100, 500])
    options = parser.parse_args()
    print(*origin(), sep="\n")
    if options.scores:
        stored = np.load(options.scores)
        worlds = [Everybody(options.scores.stem, stored["scores"], stored["algorithms"].tolist())]
    else:
        worlds = [equally_good(alike) for alike in (0.0, 0.6, 0.95)]
    print("| scores | users | interval holds | forgetful | false lead | forgetful |\n|---|---|---|---|---|---|")
    for everybody in worlds:
        for n_users in options.users:
            shares = np.mean(list(outcomes(everybody, n_users, options.searches)), axis=0)
            cells = " | ".join(f"{share:.1%}" for share in shares)
            print(f"| {everybody.label} | {n_users} | {cells} |", flush=True)


CASES = {
    "quality": quality,
    "race": race,
    "processes": several_processes,
    "intervals": held_intervals,
}

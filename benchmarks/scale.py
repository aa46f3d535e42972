"""How do time and memory of a training grow, and what does a sample of the users lose?"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse as sps
from fastprogress import fastprogress
from irspack.recommenders import IALSRecommender

from benchmarks.common import Shape, held_bytes, ids, interactions, origin, processes
from svc.model.model import Model
from svc.model.ranking.query import Query
from svc.training.data.user_sample import solve_users
from svc.training.fitting.export import assemble, to_scorer
from svc.training.judging.intervals import paired_change
from svc.training.judging.metrics import user_scores

PHASES = {
    "fetch": ("fetching_data", "data_fetched"),
    "cleanse": ("data_fetched", "data_cleansed"),
    "split": ("splitting_data", "split_done"),
    "search": ("search_started", "search_done"),
    "measure": ("search_done", "winner_measured"),
    "refit": ("training_final_model", "final_model_trained"),
    "write": ("final_model_trained", "artifact_written"),
}


FILE_ROWS = 5_000_000
FULL_ROWS, FULL_USERS, FULL_ITEMS = 100_000_000, 2_000_000, 200_000


def generate(folder: Path, rows: int) -> None:
    """About 20 rows a user, 50 with FULL_ROWS; activity of users and popularity of items have long tails."""
    rng = np.random.default_rng(1)
    full = rows >= FULL_ROWS
    n_users, n_items = (FULL_USERS, FULL_ITEMS) if full else (max(1000, rows // 20), max(1000, rows // 200))
    names = [pa.array([f"{letter}{i}" for i in range(n)]) for letter, n in (("u", n_users), ("i", n_items))]
    chances = [np.cumsum(rng.lognormal(0, 1, n_users)), np.cumsum(1.0 / np.arange(1, n_items + 1) ** 0.8)]
    folder.mkdir()
    for number, start in enumerate(range(0, rows, FILE_ROWS)):
        count = min(FILE_ROWS, rows - start)
        drawn = [np.searchsorted(chance, rng.random(count) * chance[-1]) for chance in chances]
        users, items = (
            known.take(pa.array(np.minimum(codes, len(known) - 1))) for known, codes in zip(names, drawn, strict=True)
        )
        times = pa.array(1_600_000_000 + rng.integers(0, 10**8, count))
        pq.write_table(pa.table({"user_id": users, "item_id": items, "ts": times}), folder / f"{number:03}.parquet")


def recipe(folder: Path, rows: int, sample_users: int | None) -> Path:
    found: dict[str, Any] = {
        "name": "scale",
        "source": {"type": "parquet", "path": str(folder / "data")},
        "schema": {"user_column": "user_id", "item_column": "item_id", "time_column": "ts", "time_unit": "s"},
        "training": {
            "algorithms": ["IALS"],
            "n_trials": 2,
            "split": {"scheme": "time_user", "heldout_ratio": 0.1, "test_user_ratio": 0.02},
        },
        "output": {"path": str(folder / "scale.svc")},
    }
    if rows >= FULL_ROWS:
        found["training"]["search_space"] = {"IALS": {"n_components": [64, 64]}}
    if sample_users is not None:
        found["training"]["sample_users"] = sample_users
    path = folder / "scale.yaml"
    path.write_text(json.dumps(found), encoding="utf-8")
    return path


def train(path: Path) -> None:
    """Body of the fresh process: train, and tell the moments of all events and the peak memory."""
    import structlog

    from svc.progress import Progress
    from svc.recipe.load import load_recipe
    from svc.settings import Settings
    from svc.training.run import TrainOptions
    from svc.training.run import train as run

    moments: dict[str, float] = {}

    def note(_logger: object, _method: str, record: MutableMapping[str, Any]) -> NoReturn:
        moments[str(record["event"])] = time.monotonic()
        raise structlog.DropEvent

    structlog.configure(processors=[note])
    begin = time.monotonic()
    settings = Settings()
    result = run(load_recipe(path, {}, settings=settings), TrainOptions("r", dev_unsigned=True), settings, Progress())
    seconds = {name: moments[end] - moments[start] for name, (start, end) in PHASES.items()}
    seconds["total"] = time.monotonic() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    size = path.with_suffix(".svc").stat().st_size
    print(json.dumps({"exit_code": result.exit_code, "seconds": seconds, "peak_bytes": peak, "artifact_bytes": size}))


def most_held(training: subprocess.Popen[str]) -> int:
    """The most bytes that a process and its descendants held at once, looked at each second until it ends."""
    most = 0
    while training.poll() is None:
        time.sleep(1.0)
        most = max(most, sum(map(held_bytes, processes(training.pid))))
    return most


def growth(parser: argparse.ArgumentParser) -> None:
    """How do time and memory of a training grow with its rows?

        python -m benchmarks scale --rows 1000000 3000000 10000000
        python -m benchmarks scale --full                          # 100 million
        python -m benchmarks scale --full --sample-users 200000    # trained on a tenth of the users

    Generates interactions with long tails (500,000 users and 50,000 items at 10 million rows, fewer in proportion;
    with --full 2 million users and 200,000 items), writes them as a folder of parquet files, and trains iALS on them
    in a fresh process; with --full of 64 dimensions. Prints seconds by phase and the peak memory: that of the process
    or, if it is more, the most that it and its workers held together at one moment, with what they share counted once.
    """
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 3_000_000, 10_000_000])
    parser.add_argument("--full", action="store_true", help="100 million rows")
    parser.add_argument("--sample-users", type=int, help="train on so many users, place the others exactly")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.train)
        return
    for rows in [FULL_ROWS] if options.full else options.rows:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            generate(folder / "data", rows)
            path = recipe(folder, rows, options.sample_users)
            command = [sys.executable, "-m", "benchmarks", "scale", "rows", "--train", str(path)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as training:
                together = most_held(training)
                found = json.loads(training.communicate()[0])
            seconds = found["seconds"]
            before = sum(seconds[phase] for phase in ("fetch", "cleanse", "split"))
            share = before / (seconds["search"] + seconds["refit"])
            peak, size = max(found["peak_bytes"], together) / 2**30, found["artifact_bytes"] / 2**20
            parts = "  ".join(f"{phase} {taken:.1f}" for phase, taken in seconds.items())
            print(
                f"{rows:>10,} rows  {parts} s  reading to split {share:.0%} of training  "
                f"peak {peak:.2f} GiB  artifact {size:.0f} MiB",
                flush=True,
            )


SMALL = Shape("small", 60_000, 10_000, 2_000_000, 64)
LARGE = Shape("large", 200_000, 20_000, 10_000_000, 64)
SHARES = (1.0, 0.5, 0.25, 0.1, 0.05)
CUTOFF, N_JUDGED = 20, 10_000
REGS = (1e-3, 3e-3, 1e-2, 3e-2)


def halves(whole: sps.csr_matrix) -> tuple[sps.csr_matrix, sps.csr_matrix]:
    """Four fifths to train on, and the fifth that decides."""
    pairs = whole.tocoo()
    held = np.random.default_rng(1).random(pairs.nnz) < 0.2
    train, late = (
        sps.csr_matrix((pairs.data[part], (pairs.row[part], pairs.col[part])), shape=whole.shape)
        for part in (~held, held)
    )
    return train, late


def trained(matrix: sps.csr_matrix, share: float, reg: float) -> Model:
    n_users = matrix.shape[0]
    rows = np.sort(np.random.default_rng(2).permutation(n_users)[: round(share * n_users)])
    recommender = IALSRecommender(matrix[rows], n_components=64, alpha0=0.1, reg=reg, train_epochs=8).learn()
    scorer = to_scorer(recommender, "IALSRecommender")
    solve_users(scorer, matrix)
    return assemble(scorer, user_ids=ids("u", n_users), item_ids=ids("i", matrix.shape[1]), X=matrix, features=None)


def ndcg(model: Model, users: np.ndarray, truth: sps.csr_matrix) -> np.ndarray:
    rankings = []
    for start in range(0, len(users), 256):
        queries = [Query(limit=CUTOFF, user=user) for user in users[start : start + 256].tolist()]
        rankings += [ranking.items.tolist() for ranking in model.rank(queries)]
    return user_scores(rankings, truth[users])["ndcg"]


def sample(parser: argparse.ArgumentParser) -> None:
    """What does training on a sample of the users cost in quality, when all others are placed exactly?

        python -m benchmarks scale sample              # 60,000 users × 10,000 items, 2 million interactions
        python -m benchmarks scale sample --full       # 200,000 users × 20,000 items, 10 million

    iALS of 64 dimensions on four fifths of everybody's interactions, once on all users and once on each share of them;
    ndcg@20 on the last fifth of 10,000 users, most of whom a small sample does not have, at the best of REGS for each
    share, as a search finds it. `change` is against training on everybody, with its 95% interval over users. Seconds
    are one training and placing.
    """
    parser.add_argument("--full", action="store_true")
    shape = LARGE if parser.parse_args().full else SMALL
    print("\n".join(origin()))
    fastprogress.NO_BAR = True
    train, truth = halves(interactions(shape))
    choosing = np.flatnonzero(np.diff(truth.indptr))
    users = np.sort(np.random.default_rng(3).permutation(choosing)[:N_JUDGED])
    print(f"{shape.n_users:,} users, {shape.n_items:,} items, {train.nnz:,} interactions to train on")
    whole = None
    for share in SHARES:
        best_scores, best, seconds = np.zeros(len(users)), REGS[0], 0.0
        for reg in REGS:
            began = time.perf_counter()
            model = trained(train, share, reg)
            seconds = time.perf_counter() - began
            judged = ndcg(model, users, truth)
            best_scores, best = (judged, reg) if judged.mean() > best_scores.mean() else (best_scores, best)
        whole = best_scores if whole is None else whole
        change = paired_change(best_scores, whole, seed=0, relative=True)
        print(
            f"{share:5.0%} of the users: ndcg@{CUTOFF} {best_scores.mean():.4f}, change {change.value:+.2%} "
            f"({change.low:+.2%} to {change.high:+.2%}), reg {best:g}, {seconds:.1f} s",
            flush=True,
        )


CASES = {"rows": growth, "sample": sample}

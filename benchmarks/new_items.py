"""How well are items without interactions placed?"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import stdtrit

from benchmarks.common import origin
from svc.cores import limit_blas_threads
from svc.progress import Progress
from svc.recipe.load import load_recipe
from svc.recipe.serving_schema import NewItems
from svc.recipe.training_schema import FeatureSide
from svc.settings import Settings
from svc.training.data import fetch
from svc.training.data.features import fit_side
from svc.training.fitting.algorithms.ials import MeanPriorIALSRecommender
from svc.training.fitting.export import ials_scorer
from svc.training.fitting.train import train_epochs
from svc.training.fitting.trial import TrialRecord
from svc.training.judging.coldstart import ranker_of_held
from svc.training.judging.evaluator import Evaluator
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


def ranked(parser: argparse.ArgumentParser) -> None:
    """What are new items in rankings worth, by `evaluation.new_items`, and do columns of chance show nothing?

        python -m benchmarks new_items ratings.csv movies.csv --texts genres --numbers year
        python -m benchmarks new_items --noise 20       # columns of chance on a generated shape, by 20 seeds

    The first measures, for each `serving.new_items.min_share`, what a training with `algorithms: [IALS]` would write,
    with the parameters that its search of 12 trials chose on the films of the documentation.

    With `--noise` a training on 1,000 users and 300 items of ten tastes has one column that says nothing: eight words
    of a thousand, or 64 normal numbers an item. `min_share` is 0.2, so that every page has new items. A seed counts as
    a gain where `recall` is above `popularity_recall` by more than the half-widths of both intervals, added in
    quadrature, which are those of independent means. Such a gain should be seen in at most one of twenty seeds.
    """
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


COMPONENTS, EPOCHS, SHARES = 32, 6, 10
REG, RIDGES = 0.05, (1_000.0, 10_000.0, 100_000.0, 1_000_000.0)
NOISE_RIDGE = 1_000.0


def draws(n_items: int, seed: int, count: int) -> list[NDArray[np.int64]]:
    """Return `count` disjoint tenths of the items."""
    order = np.random.default_rng(seed).permutation(n_items)
    return [np.sort(part) for part in np.array_split(order, SHARES)[:count]]


def encoded(table: pd.DataFrame, columns: Sequence[Mapping[str, Any]], items: Sequence[str]) -> sparse.csr_matrix:
    """Return the features of the items as a training encodes them, (items, places)."""
    declared = FeatureSide.model_validate(
        {"source": {"type": "csv", "path": "-"}, "id_column": "item", "columns": list(columns)}
    )
    return fit_side(table, declared, "item", items, Settings()).matrix


def ndcg(matrix: sparse.csr_matrix, features: sparse.csr_matrix, held: NDArray[np.int64], ridge: float) -> float:
    """Return ndcg of the held-out items, which a model of all other items scores from their features."""
    kept = np.setdiff1d(np.arange(matrix.shape[1]), held)
    recommender = MeanPriorIALSRecommender(
        matrix[:, kept].tocsr(),
        n_components=COMPONENTS,
        alpha0=500.0 / len(kept),
        reg=REG,
        random_seed=1,
        n_threads=1,
        item_features=features[kept],
        lambda_item_feature=ridge,
    )
    scorer = ials_scorer(train_epochs(recommender, EPOCHS))
    evaluator = Evaluator(matrix[:, held].tocsr(), offset=0, cutoff=CUTOFF)
    return evaluator.evaluate(ranker_of_held("item", scorer, features[held])).metrics["ndcg"]


def scored(
    matrix: sparse.csr_matrix, features: sparse.csr_matrix, parts: list[NDArray[np.int64]]
) -> tuple[NDArray[np.float64], list[float]]:
    """Return ndcg of each draw, (draws,), at the ridge that is best on the other draws, and the mean of each ridge."""
    scores = np.array([[ndcg(matrix, features, held, ridge) for held in parts] for ridge in RIDGES])
    others = scores.sum(axis=1, keepdims=True) - scores
    return scores[others.argmax(axis=0), np.arange(len(parts))], scores.mean(axis=1).tolist()


def interval(values: NDArray[np.float64]) -> str:
    reach = float(stdtrit(len(values) - 1, 0.975)) * float(values.std(ddof=1)) / len(values) ** 0.5
    return f"{values.mean():.4f} ({values.mean() - reach:.4f} to {values.mean() + reach:.4f})"


def compare(matrix: sparse.csr_matrix, table: pd.DataFrame, items: list[str], options: argparse.Namespace) -> None:
    plain = [{"name": name, "kind": "multi_label"} for name in options.labels]
    plain += [{"name": name, "kind": "numerical"} for name in options.numbers]
    split = [
        {"name": f"{name} ", "kind": "multi_label", "delimiter": " ", "min_frequency": 2} for name in options.texts[:1]
    ]
    numbers = [{"name": name, "kind": "numerical"} for name in options.numbers]
    texts = [{"name": name, "kind": "text"} for name in options.texts]
    table = table.assign(**{f"{name} ": table[name] for name in options.texts})
    sets = {
        "labels": plain,
        "labels and words as labels": [*plain, *split],
        "labels and first text": [*plain, *texts[:1]],
        "texts and numbers": [*texts, *numbers],
        "first text alone": texts[:1],
    }
    print(f"\n| features | places | by ridge | ndcg@{CUTOFF} | change by `labels` | by words as labels |")
    print("|---|---|---|---|---|---|")
    bases: list[NDArray[np.float64]] = []
    for name, columns in sets.items():
        features = encoded(table, columns, items)
        scores, means = scored(matrix, features, draws(matrix.shape[1], 0, options.draws))
        bases = [*bases, scores][:2]
        changes = " | ".join(interval(scores / base.mean() - base / base.mean()) for base in bases)
        by_ridge = ", ".join(f"{mean:.4f}" for mean in means)
        print(f"| {name} | {features.shape[1]:,} | {by_ridge} | {interval(scores)} | {changes} |", flush=True)


def features_of_chance(
    matrix: sparse.csr_matrix, table: pd.DataFrame, items: list[str], options: argparse.Namespace
) -> None:
    plain = [{"name": name, "kind": "multi_label"} for name in options.labels]
    plain += [{"name": name, "kind": "numerical"} for name in options.numbers]
    parts = draws(matrix.shape[1], 0, options.draws)
    features = encoded(table, plain, items)
    base = np.array([ndcg(matrix, features, held, NOISE_RIDGE) for held in parts])
    kinds: dict[str, dict[str, Any]] = {
        "words": {"kind": "text"},
        "vectors": {"kind": "vector", "dimensions": NOISE_DIMENSIONS},
    }
    gains = dict.fromkeys(kinds, 0)
    for seed in range(options.noise):
        rng = np.random.default_rng(seed)
        words = rng.integers(0, NOISE_VOCABULARY, (len(table), NOISE_WORDS))
        chance = {
            "words": [" ".join(f"w{word}" for word in row) for row in words.tolist()],
            "vectors": list(rng.normal(size=(len(table), NOISE_DIMENSIONS))),
        }
        for kind, column in kinds.items():
            own = encoded(table.assign(chance=pd.Series(chance[kind])), [*plain, {"name": "chance", **column}], items)
            change = np.array([ndcg(matrix, own, held, NOISE_RIDGE) for held in parts]) - base
            reach = float(stdtrit(len(change) - 1, 0.975)) * float(change.std(ddof=1)) / len(change) ** 0.5
            gains[kind] += bool(change.mean() - reach > 0)
            print(f"seed {seed}, {kind}: {interval(change)}", flush=True)
    print(f"\ngains of {options.noise} seeds: {gains}; at most one in twenty is expected")


def unseen(parser: argparse.ArgumentParser) -> None:
    """How well are unseen items scored from their labels, the words of their texts, and vectors?

        python -m benchmarks new_items unseen ratings.csv movies.csv --user user_id --item item_id \
            --labels genres --numbers year --texts title genres --draws 10
        python -m benchmarks new_items unseen ... --noise 20         # words and vectors of chance, by 20 seeds

    This is a ten-fold cross-validation over items for each set of columns. A tenth of the items is removed with all
    their rows, and ranked for every user from their features. The ridge of a draw is the one that is best on the other
    draws. `labels` are the labels and numbers. `labels and words as labels` adds the first text as a `multi_label`
    column that is split at blanks, the best alternative to `kind: text`. ndcg@20 is the mean of the draws with its 95%
    interval (Student's t). The gains over these two sets are computed draw by draw.

    `--noise` adds a random column to the labels: eight words an item out of a thousand, or vectors of 64 numbers. A
    seed counts as a gain if the interval of the draws lies above zero. At most one of twenty seeds should do so.
    """
    parser.add_argument("interactions")
    parser.add_argument("items")
    parser.add_argument("--user", default="user_id")
    parser.add_argument("--item", default="item_id")
    parser.add_argument("--labels", nargs="*", default=[], help="multi_label columns, split at |")
    parser.add_argument("--numbers", nargs="*", default=[])
    parser.add_argument("--texts", nargs="+", default=[], help="text columns, the most telling first")
    parser.add_argument("--draws", type=int, default=SHARES)
    parser.add_argument(
        "--noise", type=int, default=0, help="number of seeds of random columns, instead of the comparison"
    )
    options = parser.parse_args()
    limit_blas_threads(1)
    rows = pd.read_csv(options.interactions, usecols=[options.user, options.item], dtype="category").dropna()
    items = list(rows[options.item].cat.categories)
    pairs = (rows[options.user].cat.codes, rows[options.item].cat.codes)
    matrix = sparse.csr_matrix((np.ones(len(rows), dtype=np.float32), pairs))
    matrix.data[:] = 1.0
    table = pd.read_csv(options.items, dtype={options.item: str}).rename(columns={options.item: "item"})
    print("\n".join(origin()))
    (features_of_chance if options.noise else compare)(matrix, table, items, options)


CASES = {"ranked": ranked, "unseen": unseen}

"""How well are unseen items scored from their labels, the words of their texts, and vectors?

    python -m benchmarks.cold_items ratings.csv movies.csv --user user_id --item item_id \\
        --labels genres --numbers year --texts title genres --draws 10
    python -m benchmarks.cold_items ... --noise 20         # words and vectors of chance, by 20 seeds

This is a ten-fold cross-validation over items for each set of columns. A tenth of the items is removed with all their
rows, and ranked for every user from their features. The ridge of a draw is the one that is best on the other draws.
`labels` are the labels and numbers. `labels and words as labels` adds the first text as a `multi_label` column that is
split at blanks, the best alternative to `kind: text`. ndcg@20 is the mean of the draws with its 95% interval
(Student's t). The gains over these two sets are computed draw by draw.

`--noise` adds a random column to the labels: eight words an item out of a thousand, or vectors of 64 numbers. A seed
counts as a gain if the interval of the draws lies above zero. At most one of twenty seeds should do so.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import stdtrit

from benchmarks.common import origin
from svc.cores import limit_blas_threads
from svc.recipe.training_schema import FeatureSide
from svc.settings import Settings
from svc.training.data.features import fit_side
from svc.training.fitting.algorithms.ials import MeanPriorIALSRecommender
from svc.training.fitting.export import ials_scorer
from svc.training.fitting.train import train_epochs
from svc.training.judging.coldstart import ranker_of_held
from svc.training.judging.evaluator import Evaluator

COMPONENTS, EPOCHS, CUTOFF, SHARES = 32, 6, 20, 10
REG, RIDGES = 0.05, (1_000.0, 10_000.0, 100_000.0, 1_000_000.0)
NOISE_WORDS, NOISE_VOCABULARY, NOISE_DIMENSIONS, NOISE_RIDGE = 8, 1_000, 64, 1_000.0


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


def noise(matrix: sparse.csr_matrix, table: pd.DataFrame, items: list[str], options: argparse.Namespace) -> None:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
    (noise if options.noise else compare)(matrix, table, items, options)


if __name__ == "__main__":
    main()

"""Does a score mean the same for known users, for seeds, and for features alone?

    python -m benchmarks.score_scale

Users of generated tastes; the features of a user are the groups of items that it likes. A fifth of everybody's
interactions is held out. Some users are kept out of training altogether and scored twice: from their other
interactions as seeds, and from features alone. For each way, all pairs of a user and an item it has not interacted
with are put in bands of their score, and the share of held-out interactions in a band is printed: where two ways give
the same share for the same band, a score means the same in both.
"""

from __future__ import annotations

import argparse
from itertools import pairwise

import numpy as np
import scipy.sparse as sps
from fastprogress import fastprogress
from irspack.recommenders import IALSRecommender

from benchmarks.common import ids, origin
from svc.cores import limit_blas_threads
from svc.model.model import Model
from svc.model.ranking.query import NO_ITEMS, Query
from svc.training.fitting.export import assemble, to_scorer

N_WARM, N_COLD, N_ITEMS, N_GROUPS, PER_USER = 5_000, 1_000, 1_500, 12, 30
BANDS = (-np.inf, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, np.inf)


def generated(rng: np.random.Generator) -> tuple[sps.csr_matrix, np.ndarray]:
    """Interactions, (users, items), and features, (users, groups + 1)."""
    group = rng.integers(0, N_GROUPS, N_ITEMS)
    popularity = rng.permutation(np.arange(1, N_ITEMS + 1) ** -0.7)
    likes = rng.random((N_WARM + N_COLD, N_GROUPS)) < 0.25
    weights = popularity * (0.15 + 3.0 * likes[:, group])
    weights /= weights.sum(axis=1, keepdims=True)
    matrix = rng.random(weights.shape) < 1 - np.exp(-PER_USER * weights)
    features = np.column_stack([likes, np.ones(len(likes))])
    return sps.csr_matrix(matrix.astype(np.float64)), features


def scores(model: Model, queries: list[Query]) -> np.ndarray:
    """All scores, (queries, items); minus infinity for items that are left out."""
    found = np.full((len(queries), N_ITEMS), -np.inf)
    for row, ranking in zip(found, model.rank(queries), strict=True):
        row[ranking.items] = ranking.scores
    return found


def shares(found: np.ndarray, held_out: sps.csr_matrix) -> list[tuple[int, float]]:
    """Pairs in each band, and the share of them that was held out."""
    truth = held_out.toarray() > 0
    scored = found > -np.inf
    result = []
    for low, high in pairwise(BANDS):
        inside = scored & (found >= low) & (found < high)
        result.append((int(inside.sum()), float(truth[inside].mean()) if inside.any() else float("nan")))
    return result


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    limit_blas_threads(1)
    fastprogress.NO_BAR = True
    rng = np.random.default_rng(0)
    matrix, features = generated(rng)
    hidden = matrix.copy()
    hidden.data = (rng.random(matrix.nnz) < 0.2).astype(np.float64)
    known = matrix - hidden
    for part in (hidden, known):
        part.eliminate_zeros()
    train = known[:N_WARM]
    recommender = IALSRecommender(
        train,
        n_components=32,
        alpha0=0.1,
        reg=0.005,
        train_epochs=10,
        user_features=sps.csr_matrix(features[:N_WARM]),
        lambda_user_feature=10.0,
    ).learn()
    model = assemble(
        to_scorer(recommender, "IALSRecommender"),
        user_ids=ids("u", N_WARM),
        item_ids=ids("i", N_ITEMS),
        X=train,
        features=None,
    )
    seeds = [known[row].indices.astype(np.int32) for row in range(N_WARM, N_WARM + N_COLD)]
    vectors = features[N_WARM:]
    ways = {
        "known users": [Query(limit=N_ITEMS, user=user) for user in range(N_COLD)],
        "seeds": [Query(limit=N_ITEMS, seeds=row) for row in seeds],
        "seeds and features": [
            Query(limit=N_ITEMS, seeds=s, user_features=f) for s, f in zip(seeds, vectors, strict=True)
        ],
        "features alone": [
            Query(limit=N_ITEMS, user_features=f, exclude=s if len(s) else NO_ITEMS)
            for s, f in zip(seeds, vectors, strict=True)
        ],
    }
    print("\n".join(origin()))
    print(f"\n{'score':<14}" + "".join(f"{name:>24}" for name in ways) + "   (share held out, pairs)")
    truths = {name: hidden[:N_COLD] if name == "known users" else hidden[N_WARM:] for name in ways}
    table = [shares(scores(model, queries), truths[name]) for name, queries in ways.items()]
    for number, (low, high) in enumerate(pairwise(BANDS)):
        cells = "".join(f"{share:12.3f} {pairs:>11,}" for pairs, share in (column[number] for column in table))
        print(f"{low:5.2f} – {high:5.2f} {cells}")


if __name__ == "__main__":
    main()

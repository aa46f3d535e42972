"""What does training on a sample of the users cost in quality, when all others are placed exactly?

    python -m benchmarks user_sample              # 60,000 users × 10,000 items, 2 million interactions
    python -m benchmarks user_sample --full       # 200,000 users × 20,000 items, 10 million

iALS of 64 dimensions on four fifths of everybody's interactions, once on all users and once on each share of them;
ndcg@20 on the last fifth of 10,000 users, most of whom a small sample does not have, at the best of REGS for each
share, as a search finds it. `change` is against training on everybody, with its 95% interval over users. Seconds are
one training and placing.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import scipy.sparse as sps
from fastprogress import fastprogress
from irspack.recommenders import IALSRecommender

from benchmarks.common import Shape, ids, interactions, origin
from svc.model.model import Model
from svc.model.ranking.query import Query
from svc.training.data.user_sample import solve_users
from svc.training.fitting.export import assemble, to_scorer
from svc.training.judging.intervals import paired_change
from svc.training.judging.metrics import user_scores

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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


if __name__ == "__main__":
    main()

"""What does diversity add to a page of 20 items, chosen from 100 candidates? Without HTTP, one thread.

    python -m benchmarks diversity          # every kind of similarity; a few seconds

`arranging` is what `svc.model.ranking.rerank.rerank` and the similarities of the candidates take; `ranking` is the same
user's ranking without diversity, over all items. Milliseconds of the processor, medians of interleaved rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.common import origin
from benchmarks.filters import N_USERS, factors, ials, neighbours
from svc.cores import limit_blas_threads
from svc.model.history import History
from svc.model.ranking.query import Query
from svc.model.ranking.rerank import Candidates, Rules, rerank
from svc.model.recommenders.base import Scorer
from svc.model.recommenders.dense_weights import DenseWeightsScorer
from svc.model.recommenders.factor_index import FactorIndex
from svc.model.recommenders.factors import SVDScorer

LIMIT, POOL, DIVERSITY, ROUNDS = 20, 100, 0.3, 200
DENSE_ITEMS = 5_000


def svd(rng: np.random.Generator) -> Scorer:
    return SVDScorer(factors(rng, N_USERS), FactorIndex.build(factors(rng, 41_000)))


def dense(rng: np.random.Generator) -> Scorer:
    return DenseWeightsScorer(rng.standard_normal((DENSE_ITEMS, DENSE_ITEMS), dtype=np.float32))


def history(n_items: int, rng: np.random.Generator) -> History:
    seen = np.sort(rng.choice(n_items, (N_USERS, 50)), axis=1).astype(np.int32)
    return History(np.arange(0, seen.size + 1, 50, dtype=np.int32), seen.ravel())


def processor_ms(call: Callable[[], Any]) -> float:
    began = time.process_time()
    call()
    return (time.process_time() - began) * 1000


def enough() -> Candidates:
    raise AssertionError("the candidates suffice for a page")


def measure(scorer: Scorer, rng: np.random.Generator) -> tuple[float, float]:
    """(arranging, ranking) in milliseconds."""
    scorer.ready()
    known, rules = history(scorer.n_items, rng), Rules(diversity=DIVERSITY)
    arranging, ranking = [], []
    for user in range(ROUNDS):
        (pool,) = scorer.rank([Query(limit=POOL, user=user)], known)
        candidates = Candidates(pool.items, pool.scores, False, enough)
        arranging.append(processor_ms(partial(rerank, candidates, rules, LIMIT, scorer.similar, np.empty(0))))
        ranking.append(processor_ms(partial(scorer.rank, [Query(limit=LIMIT, user=user)], known)))
    return statistics.median(arranging), statistics.median(ranking)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print("\n".join(origin()))
    rng = np.random.default_rng(5)
    print(f"{LIMIT} items of {POOL} candidates      arranging  ranking   ratio")
    limit_blas_threads(1)
    for name, make in (("ials", ials), ("svd", svd), ("neighbours", neighbours), ("dense weights", dense)):
        arranging, ranking = measure(make(rng), rng)
        print(f"{name:32} {arranging:8.2f} {ranking:8.2f} {(arranging + ranking) / ranking:7.1f}", flush=True)


if __name__ == "__main__":
    main()

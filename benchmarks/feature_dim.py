"""What do the encoded places of features cost, in training, in the artifact, in memory and in a request?

    python -m benchmarks.feature_dim                       # 0, 30, 300 and 3,000 places on either side
    python -m benchmarks.feature_dim --places 30 20000

iALS with 128 components on 20,000 users, 20,000 items and 500,000 interactions; ten places of each user and item are
other than zero. Each row is a fresh process, one thread. `training` is irspack's alone, `peak` the most memory of the
process that trains; `weights` are stored in the artifact; `derived` is what the server computes from them at load, in
`ready`. `one` and `batch` are the microseconds of a cold start from features alone, for one user and in a batch of 256.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import resource
import subprocess
import sys
import time
from statistics import median
from typing import Any

from benchmarks.common import Shape, ids, interactions, origin, side_by_side

SHAPE = Shape("features", 20_000, 20_000, 500_000, 128)
ACTIVE = 10
PLACES = (0, 30, 300, 3_000)
MB = 1e6


def measure(places: int) -> dict[str, Any]:
    """Body of the fresh process."""
    import numpy as np
    import scipy.sparse as sps
    from irspack import IALSRecommender

    from svc.cores import limit_blas_threads
    from svc.model.ranking.query import Query
    from svc.training.fitting.export import assemble, to_scorer

    limit_blas_threads(1)
    random = np.random.default_rng(0)
    matrix = interactions(SHAPE)
    features: dict[str, Any] = {}
    for side, count in (("user", SHAPE.n_users), ("item", SHAPE.n_items)) if places else ():
        rows, columns = np.repeat(np.arange(count), ACTIVE), random.integers(0, places, count * ACTIVE)
        table = sps.csr_matrix((np.ones(count * ACTIVE, np.float32), (rows, columns)), shape=(count, places))
        features |= {f"{side}_features": table, f"lambda_{side}_feature": 10.0}
    began = time.perf_counter()
    options: dict[str, Any] = {"n_components": SHAPE.components, "alpha0": 0.05, "reg": 0.002, "train_epochs": 4}
    with contextlib.redirect_stdout(io.StringIO()):  # a bar of progress that would not be turned off
        recommender = IALSRecommender(matrix, n_threads=1, **options, **features).learn()
    trained_s = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    scorer, users, items = to_scorer(recommender, "IALSRecommender"), ids("u", SHAPE.n_users), ids("i", SHAPE.n_items)
    model = assemble(scorer, user_ids=users, item_ids=items, X=matrix, features=None)
    began = time.perf_counter()
    model.ready()
    figures = {"training": trained_s, "peak": peak, "ready": time.perf_counter() - began}
    figures["weights"] = sum(size for name, size in model.parts().items() if name.endswith("_weights"))
    least_squares = vars(model.scorer)["least_squares"]
    derived = [value for name, value in vars(least_squares).items() if name in {"_prior", "_user_map", "_item_map"}]
    figures["derived"] = sum(value.nbytes for value in derived if value is not None)
    if places:
        vectors = np.zeros((256, places))
        vectors[np.repeat(np.arange(256), ACTIVE), random.integers(0, places, 256 * ACTIVE)] = 1.0
        queries = [Query(limit=10, user_features=vector) for vector in vectors]
        calls = {"one": lambda i: model.rank(queries[i % 256 : i % 256 + 1]), "batch": lambda _: model.rank(queries)}
        times = side_by_side(calls, 100)
        figures |= {"one": times["one"] * 1e6, "batch": times["batch"] / 256 * 1e6}
    return figures


def report(places: int, rounds: int) -> None:
    command = [sys.executable, "-m", "benchmarks.feature_dim", "--measure", str(places)]
    runs = [json.loads(subprocess.check_output(command, text=True)) for _ in range(rounds)]
    medians = {name: median(run[name] for run in runs) for name in runs[0]}
    cells = [
        f"{places:,}",
        f"{medians['training']:.1f}",
        f"{medians['peak'] / 2**30:.2f}",
        f"{medians['weights'] / MB:.1f}",
        f"{medians['derived'] / MB:.1f}",
        f"{medians['ready']:.2f}",
        f"{medians['one']:.0f}" if places else "",
        f"{medians['batch']:.0f}" if places else "",
    ]
    print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--places", type=int, nargs="+", default=list(PLACES), help="encoded places of either side")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure is not None:
        print(json.dumps(measure(options.measure)))
        return
    print("\n".join(origin()))
    print("\n| places | training s | peak GiB | weights MB | derived MB | ready s | one µs | batch µs a user |")
    print("|---|---|---|---|---|---|---|---|")
    for places in options.places:
        report(places, options.rounds)


if __name__ == "__main__":
    main()

"""What do encoded features cost?"""

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

import numpy as np
from scipy import sparse

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
    command = [sys.executable, "-m", "benchmarks", "features", "few", "--measure", str(places)]
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


def few_features(parser: argparse.ArgumentParser) -> None:
    """What do the encoded places of features cost, in training, in the artifact, in memory and in a request?

        python -m benchmarks features                       # 0, 30, 300 and 3,000 places on either side
        python -m benchmarks features --places 30 20000

    iALS with 128 components on 20,000 users, 20,000 items and 500,000 interactions; ten places of each user and item
    are other than zero. Each row is a fresh process, one thread. `training` is irspack's alone, `peak` the most memory
    of the process that trains; `weights` are stored in the artifact; `derived` is what the server computes from them
    at load, in `ready`. `one` and `batch` are the microseconds of a cold start from features alone, for one user and
    in a batch of 256.
    """
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


WORDS_OF_AN_ITEM, RIDGE, EQUAL_PLACES, EQUAL_ROWS, N_TEXTS = 10, 10.0, 5_000, 20_000, 10_000
GIB = 2.0**30


def texts_like(rows: int, places: int, seed: int = 0) -> sparse.csr_matrix:
    """Features as of texts: words by Zipf's law, rows of length one, and the constant."""
    rng = np.random.default_rng(seed)
    words = (
        np.minimum((places ** rng.random((rows, WORDS_OF_AN_ITEM), dtype=np.float32)).astype(np.int32), places - 1) - 1
    )
    words.sort(axis=1)
    columns = np.concatenate([words, np.full((rows, 1), places - 1, np.int32)], axis=1).ravel()
    del words
    row = np.append(np.full(WORDS_OF_AN_ITEM, WORDS_OF_AN_ITEM**-0.5, np.float32), np.float32(1))
    indptr = np.arange(rows + 1, dtype=np.int32) * (WORDS_OF_AN_ITEM + 1)
    return sparse.csr_matrix((np.tile(row, rows), columns, indptr), shape=(rows, places))


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB


def solve(rows: int, places: int, components: int) -> dict[str, float]:
    from svc.training.fitting.algorithms.ials import solve_ridge

    features = texts_like(rows, places)
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((rows, components), dtype=np.float32)
    weights = rng.uniform(1, 20, rows)
    before = peak()
    began = time.perf_counter()
    solve_ridge(features, vectors, weights, RIDGE, np.zeros((places, components), dtype=np.float32))
    return {"before": before, "peak": peak(), "seconds": time.perf_counter() - began}


def epoch(rows: int, places: int, components: int) -> dict[str, float]:
    from svc.training.fitting.algorithms.ials import MeanPriorIALSRecommender

    rng = np.random.default_rng(1)
    users = rng.integers(0, rows // 20, 3 * rows).astype(np.int32)
    items = np.repeat(np.arange(rows, dtype=np.int32), 3)
    matrix = sparse.csr_matrix((np.ones(3 * rows, np.float32), (users, items)), shape=(rows // 20, rows))
    options: dict[str, Any] = {"n_components": components, "alpha0": 0.05, "reg": 0.01, "n_threads": 1}
    features = texts_like(rows, places)
    recommender = MeanPriorIALSRecommender(matrix, item_features=features, lambda_item_feature=RIDGE, **options)
    del matrix, users, items, features
    recommender.start_learning()
    before, began = peak(), time.perf_counter()
    recommender.run_epoch()
    return {"before": before, "peak": peak(), "seconds": time.perf_counter() - began}


def equal(_rows: int, _places: int, components: int) -> dict[str, float]:
    from svc.training.fitting.algorithms.ials import solve_ridge

    features = texts_like(EQUAL_ROWS, EQUAL_PLACES)
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((EQUAL_ROWS, components), dtype=np.float32)
    weights = rng.uniform(1, 20, EQUAL_ROWS)
    began = time.perf_counter()
    start = np.zeros((EQUAL_PLACES, components), dtype=np.float32)
    found = solve_ridge(features, vectors, weights, RIDGE, start)
    iterative = time.perf_counter() - began
    began = time.perf_counter()
    scaled = features.astype(np.float64).multiply(weights[:, np.newaxis]).tocsr()
    gram = (scaled.T @ features.astype(np.float64)).toarray() + RIDGE * np.eye(EQUAL_PLACES)
    exact = np.linalg.solve(gram, scaled.T @ vectors)
    users = rng.standard_normal((100, components)) / components**0.5
    difference = np.abs((features @ (found - exact)) @ users.T).max()
    return {"difference": float(difference), "seconds": iterative, "dense": time.perf_counter() - began}


def texts(rows: int, places: int, components: int) -> dict[str, float]:
    from svc.model.coldstart import LeastSquares
    from svc.model.columns.text_column import TextColumn
    from svc.model.features import SideEncoder
    from svc.model.ids import IdTable

    rng = np.random.default_rng(1)
    vocabulary = IdTable.from_ids([f"word{number}" for number in range(places - 1)])
    counts = np.full(places - 1, 5, dtype=np.int32)
    column = TextColumn("title", vocabulary, counts, n_items=rows, max_words=places, analyzer="word")
    encoder = SideEncoder((column,))
    weights = rng.standard_normal((places, components), dtype=np.float32)
    least_squares = LeastSquares(
        alpha0=0.05, reg=0.01, nu=1.0, confidence=1.0, target_weight=1.0, n_users=rows, n_items=rows,
        user_weights=None, item_weights=weights,
    )  # fmt: skip
    gram = np.eye(components)
    least_squares.ready(gram, gram)
    drawn = rng.integers(0, places + 200, (N_TEXTS, WORDS_OF_AN_ITEM))
    described = [{"title": " ".join(f"Word{number}" for number in row)} for row in drawn.tolist()]
    encoder.encode_sparse(described[0])
    durations: dict[str, list[float]] = {"encoded": [], "placed": []}
    for _ in range(5):
        began = time.process_time()
        encoded = [encoder.encode_sparse(features)[0] for features in described]
        durations["encoded"].append(time.process_time() - began)
        least_squares.items_from_features(encoded)
        durations["placed"].append(time.process_time() - began)
    return {name: median(seconds) for name, seconds in durations.items()}


PARTS = {"solve": solve, "epoch": epoch, "equal": equal, "texts": texts}


def measured(part: str, options: argparse.Namespace) -> dict[str, Any]:
    sizes = [f"--{name}={getattr(options, name)}" for name in ("rows", "places", "components")]
    command = [sys.executable, "-m", "benchmarks", "features", "many", "--measure", part, *sizes]
    found: dict[str, Any] = json.loads(subprocess.check_output(command, text=True))
    return found


def many_features(parser: argparse.ArgumentParser) -> None:
    """What do many features cost: the iterative solve for their weights, and placing items by their texts?

        python -m benchmarks features many                          # 32,768 places, a million rows, 64 components
        python -m benchmarks features many --rows 100000 --places 8192

    Each part is a fresh process with one BLAS thread. `solve`: peak memory (GiB) and time of one solve from zero,
    beside the memory of its arguments (features and vectors). `epoch`: peak memory of one epoch of iALS on as many
    items, with three interactions each. `equal`: the largest difference in scores between the iterative and a dense
    solve in double precision, at 5,000 places. `texts`: seconds of one core in which 10,000 texts of ten words are
    encoded, and in which they are encoded and placed by the model.
    """
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--places", type=int, default=32_768)
    parser.add_argument("--components", type=int, default=64)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--measure", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure is not None:
        from svc.cores import limit_blas_threads

        limit_blas_threads(1)
        print(json.dumps(PARTS[options.measure](options.rows, options.places, options.components)))
        return
    print("\n".join(origin()))
    print(f"\n{options.rows:,} rows, {options.places:,} places, {options.components} components")
    for part in options.parts:
        found = measured(part, options)
        print(f"{part}: " + ", ".join(f"{name} {value:.3g}" for name, value in found.items()), flush=True)


CASES = {"few": few_features, "many": many_features}

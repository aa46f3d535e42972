"""How fast are rankings without HTTP, and what does a blend cost?"""

from __future__ import annotations

import argparse
import time
import tracemalloc
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sps
from fastprogress import fastprogress
from irspack.recommenders import (
    CosineKNNRecommender,
    DenseSLIMRecommender,
    IALSRecommender,
    RP3betaRecommender,
    TopPopRecommender,
)
from scipy import sparse

from benchmarks.common import SHAPES, Shape, csv_interactions, ids, interactions, origin, side_by_side
from svc.cores import limit_blas_threads
from svc.model.coldstart import LeastSquares
from svc.model.history import History
from svc.model.model import Model
from svc.model.ranking.query import Query
from svc.model.recommenders.base import Scorer, profile
from svc.model.recommenders.blend import BlendScorer, FactorPart
from svc.model.recommenders.factor_index import FactorIndex
from svc.model.recommenders.factors import IALSScorer
from svc.model.recommenders.neighbours import NeighbourScorer
from svc.training.fitting.algorithms.ials import MeanPriorIALSRecommender
from svc.training.fitting.algorithms.item_weights import TransitionRP3betaRecommender
from svc.training.fitting.export import assemble, to_history, to_scorer
from svc.training.fitting.train import train_epochs

NORM_DEVIATION = 0.05


def wide_factors(matrix: sps.csr_matrix, components: int) -> IALSScorer:
    """User and item vectors of so many components for the users and items of `matrix`."""
    rng = np.random.default_rng(0)
    n_users, n_items = matrix.shape
    own = rng.standard_normal((n_items, components), dtype=np.float32)
    shared = matrix.T @ _directions(matrix @ own)
    items = _directions(_directions(own) + _directions(shared))
    items *= rng.normal(1, NORM_DEVIATION, (n_items, 1))
    least_squares = LeastSquares(
        alpha0=0.012,
        reg=0.012,
        nu=1.0,
        confidence=1.0,
        target_weight=1.0,
        n_users=n_users,
        n_items=n_items,
        user_weights=None,
        item_weights=None,
    )
    users = _directions(matrix @ items).astype(np.float32)
    return IALSScorer(users, FactorIndex.build(items.astype(np.float32)), least_squares)


def _directions(vectors: np.ndarray) -> np.ndarray:
    """The rows scaled to length 1; zero ones stay."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)


ONE_BY_ONE, BATCH, ROUNDS, CHECKED = 64, 256, 7, 50
MOST = 2.5


def queries(n_users: int, count: int, seed: int) -> list[Query]:
    return [Query(limit=LIMIT, user=int(user)) for user in np.random.default_rng(seed).integers(0, n_users, count)]


def one_by_one(scorer: Scorer, history: History) -> Callable[[int], Any]:
    return lambda number: [
        scorer.rank([query], history) for query in queries(len(history), ONE_BY_ONE, number + ROUNDS)
    ]


def batched(scorer: Scorer, history: History) -> Callable[[int], Any]:
    return lambda number: scorer.rank(queries(len(history), BATCH, number + ROUNDS), history)


def agree(blend: BlendScorer, history: History) -> int:
    """For how many of CHECKED users the ranking is that of brute force."""
    assert blend.factors is not None, "iALS is the first part"
    items = np.empty(blend.factors.index.factors.shape)
    items[blend.factors.index.columns] = blend.factors.index.factors
    n_equal = 0
    for query in queries(len(history), CHECKED, 1):
        own, other = (
            items @ blend.factors.users[query.user].astype(np.float64),
            blend.sums[0].totals(*profile(query, history)),
        )
        scores = blend.weights[0] * own / own.std() + blend.weights[1] * other / other.std()
        scores[history.items(query.user)] = -np.inf
        order = np.lexsort((np.arange(len(scores)), -scores))[:LIMIT]
        n_equal += blend.rank([query], history)[0].items.tolist() == order.tolist()
    return n_equal


def trained_ials(matrix: sparse.csr_matrix, components: int) -> IALSScorer:
    recommender = MeanPriorIALSRecommender(matrix, n_components=components, alpha0=0.012, reg=0.012)
    scorer = to_scorer(train_epochs(recommender, 6), "IALSRecommender")
    assert isinstance(scorer, IALSScorer)
    return scorer


def with_rp3beta(factors: FactorPart, matrix: sparse.csr_matrix, history: History, top_k: int = 500) -> BlendScorer:
    """The blend of a factor model with RP3beta, which is trained here."""
    rp3beta = TransitionRP3betaRecommender(matrix, top_k=top_k, beta=0.0, normalize_weight=True).learn()
    neighbours = to_scorer(rp3beta, "RP3betaRecommender")
    assert isinstance(neighbours, NeighbourScorer)
    return BlendScorer.of(factors, [neighbours], (0.7, 0.3), history)


def numpy_alone(blend: BlendScorer) -> BlendScorer:
    """The same blend without rounded vectors."""
    assert blend.factors is not None, "iALS is the first part"
    other, other.factors = copy(blend), copy(blend.factors)
    other.factors.index = copy(blend.factors.index)
    other.ready()  # a copy has the stored arrays alone
    other.factors.index.layout = replace(other.factors.index.layout, rounded=None)
    return other


def blend(parser: argparse.ArgumentParser) -> None:
    """What does a request of a blend cost beside its slower part alone?

        python -m benchmarks scoring blend [--components 128] [--top-k 500]
        python -m benchmarks scoring blend --shape d       # 680 components, made without training

    iALS and RP3beta at shape (b), 30,000 users and 41,000 items: processor microseconds a known user, one by one and
    in batches of 256, other users in each round. The blend must take at most 2.5 times as long as the slower part. A
    first round compares its rankings with brute force over all items. `numpy` is the blend without numkong, which is
    another one where the norms hardly differ and the extra `fast` is installed.
    """
    parser.add_argument("--components", type=int, default=128)
    parser.add_argument("--top-k", type=int, default=500)
    parser.add_argument("--shape", choices=("b", "d"), default="b")
    options = parser.parse_args()
    print("\n".join(origin()))
    limit_blas_threads(1)
    shape = SHAPES[options.shape]
    matrix = interactions(shape)
    is_wide, history = options.shape == "d", to_history(matrix)
    ials = wide_factors(matrix, shape.components) if is_wide else trained_ials(matrix, options.components)
    blend = with_rp3beta(ials, matrix, history, options.top_k)
    print(f"rankings equal to brute force: {agree(blend, history)} of {CHECKED}")
    scorers = {"iALS": ials, "RP3beta": blend.sums[0], "blend": blend, "numpy": numpy_alone(blend)}
    for name, call, count in (("one by one", one_by_one, ONE_BY_ONE), ("batches of 256", batched, BATCH)):
        seconds = side_by_side(
            {part: call(scorer, history) for part, scorer in scorers.items()}, ROUNDS, clock=time.thread_time
        )
        micros = {part: taken / count * 1e6 for part, taken in seconds.items()}
        ratio = micros["blend"] / max(micros["iALS"], micros["RP3beta"])
        shown = ", ".join(f"{part} {value:.0f}" for part, value in micros.items())
        print(f"{name}: µs a user {shown}; the blend {ratio:.2f} times the slower part (at most {MOST})")


LIMIT = 10
BATCHES = (1, 16, 64, 256)
N_FEATURES = 30
MANY_ITEMS = 200_000
"""From here on fewer rounds are run, and item-to-item weights are left out: they would take an hour to train."""
COLD_SHAPES = (Shape("1,000 items", 5_000, 1_000, 100_000, 64), Shape("50,000 items", 20_000, 50_000, 500_000, 64))


def train(shape: Shape, matrix: sps.csr_matrix, **features: Any) -> Any:
    return IALSRecommender(
        matrix, n_components=shape.components, alpha0=0.05, reg=0.002, train_epochs=4, n_threads=1, **features
    ).learn()


def exported(name: str, recommender: Any, matrix: sps.csr_matrix) -> Model:
    users, items = matrix.shape
    return assemble(
        to_scorer(recommender, name), user_ids=ids("u", users), item_ids=ids("i", items), X=matrix, features=None
    )


def top_of(scores: np.ndarray) -> np.ndarray:
    """The LIMIT best columns of each row, by falling score."""
    kept = np.argpartition(scores, -LIMIT, axis=1)[:, -LIMIT:]
    order = np.argsort(-np.take_along_axis(scores, kept, axis=1), axis=1)
    return np.take_along_axis(kept, order, axis=1)


def svc_call(model: Model) -> Callable[[np.ndarray], Any]:
    return lambda chosen: model.rank([Query(limit=LIMIT, user=user) for user in chosen.tolist()])


def numpy_call(recommender: Any, matrix: sps.csr_matrix) -> Callable[[np.ndarray], np.ndarray]:
    users, items = recommender.get_user_embedding().copy(), recommender.get_item_embedding().copy()

    def call(chosen: np.ndarray) -> np.ndarray:
        scores = users[chosen] @ items.T
        scores[matrix[chosen].nonzero()] = -np.inf
        return top_of(scores)

    return call


def implicit_call(recommender: Any, matrix: sps.csr_matrix) -> Callable[[np.ndarray], np.ndarray] | None:
    try:
        from implicit.cpu.als import AlternatingLeastSquares
    except ImportError:
        return None
    model = AlternatingLeastSquares(factors=recommender.n_components, num_threads=1)
    model.user_factors = recommender.get_user_embedding().copy()
    model.item_factors = recommender.get_item_embedding().copy()
    seen = matrix.astype(np.float32)

    def call(chosen: np.ndarray) -> np.ndarray:
        if len(chosen) == 1:
            return model.recommend(int(chosen[0]), seen[chosen[0]], N=LIMIT)[0][np.newaxis]
        return model.recommend(chosen, seen[chosen], N=LIMIT)[0]

    return call


def known_users(shape: Shape, matrix: sps.csr_matrix, rounds: int) -> None:
    """Random known users, their history left out."""
    recommender = train(shape, matrix)
    model = exported("IALSRecommender", recommender, matrix)
    calls = {
        "svc": svc_call(model),
        "irspack": lambda chosen: top_of(recommender.get_score_remove_seen(chosen)),
        "numpy": numpy_call(recommender, matrix),
    }
    implicit = implicit_call(recommender, matrix)
    if implicit is not None:
        calls["implicit"] = implicit
    size = f"{matrix.shape[0]:,} × {matrix.shape[1]:,}, {matrix.nnz:,} interactions, {shape.components} components"
    print(f"\nknown users, iALS, shape ({shape.name}): {size}")
    _compare_batches(calls, shape.n_users, rounds)
    if implicit is not None:
        chosen = np.arange(200)
        ours = [ranking.items.tolist() for ranking in calls["svc"](chosen)]
        same = sum(a == b for a, b in zip(ours, implicit(chosen).tolist(), strict=True))
        print(f"same items in the same order as implicit: {same} of {len(chosen)} users")
    _memory(model, matrix.shape[0])


def _compare_batches(calls: dict[str, Callable[[np.ndarray], Any]], n_users: int, rounds: int) -> None:
    """Print the microseconds that each call needs for a user, in batches of each size, and the ratios to svc."""
    print("users  " + "".join(f"{name:>12}" for name in calls) + "   svc against each other")
    for size in BATCHES:
        batches = np.random.default_rng(size).integers(0, n_users, (rounds + 1, size))
        times = side_by_side({name: _on(batches, call) for name, call in calls.items()}, rounds)
        print(_row(str(size), times, size))


def _on(batches: np.ndarray, call: Callable[[np.ndarray], Any]) -> Callable[[int], Any]:
    return lambda number: call(batches[number])


def _row(label: str, times: dict[str, float], users: int) -> str:
    mine = times["svc"]
    figures = "".join(f"{seconds / users * 1e6:12.1f}" for seconds in times.values())
    ratios = ", ".join(f"{name} {seconds / mine:.1f}×" for name, seconds in times.items() if name != "svc")
    return f"{label:<7}{figures}   {ratios}"


def _memory(model: Model, n_users: int) -> None:
    queries = [Query(limit=LIMIT, user=user % n_users) for user in range(256)]
    tracemalloc.start()
    model.rank(queries)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    parts = model.parts()
    print(f"most memory of a batch of 256: {peak / 2**20:.1f} MiB; payload {sum(parts.values()) / 2**20:.1f} MiB:")
    print("  " + ", ".join(f"{name} {size:,}" for name, size in parts.items()))


def item_weights(shape: Shape, matrix: sps.csr_matrix, rounds: int) -> None:
    """Models that add up item weights, beside irspack's `get_score_remove_seen` alone, without its top-k."""
    makers: list[tuple[type, dict[str, Any]]] = [
        (CosineKNNRecommender, {"top_k": 100, "n_threads": 1}),
        (RP3betaRecommender, {"top_k": 100, "n_threads": 1}),
        (TopPopRecommender, {}),
    ]
    if shape.n_items < 5_000:
        makers.append((DenseSLIMRecommender, {"reg": 50.0}))
    print(f"\nother families, one known user, shape ({shape.name})")
    for maker, parameters in makers:
        recommender = maker(matrix, **parameters).learn()
        model = exported(maker.__name__, recommender, matrix)
        batches = np.random.default_rng(1).integers(0, shape.n_users, (rounds + 1, 1))
        calls = {"svc": svc_call(model), "irspack": recommender.get_score_remove_seen}
        times = side_by_side({name: _on(batches, call) for name, call in calls.items()}, rounds)
        print(_row(f"{maker.__name__:<22}", times, 1))


def cold_starts(shape: Shape, rounds: int) -> None:
    """Features alone and seeds, beside a warm request and irspack's own calls."""
    rng = np.random.default_rng(4)
    matrix = interactions(shape)
    rows = {side: _feature_rows(n, rng) for side, n in (("user", shape.n_users), ("item", shape.n_items))}
    recommender = train(
        shape,
        matrix,
        user_features=sps.csr_matrix(rows["user"]),
        item_features=sps.csr_matrix(rows["item"]),
        lambda_user_feature=10.0,
        lambda_item_feature=10.0,
    )
    model = exported("IALSRecommender", recommender, matrix)
    print(f"\ncold starts, {shape.name}, {shape.components} components, {N_FEATURES} feature places; µs a user")
    print("users      warm  features  5 seeds   features/warm  seeds/warm   irspack: features  5 seeds")
    for size in (1, 256):
        users = rng.integers(0, shape.n_users, (rounds + 1, size))
        seeds = matrix.indices[rng.integers(0, matrix.nnz, (rounds + 1, size, 5))].astype(np.int32)
        features = rows["user"].astype(np.float64)
        times = side_by_side(
            {
                "warm": _ranked(model, [[Query(limit=LIMIT, user=int(u)) for u in row] for row in users]),
                "features": _ranked(
                    model, [[Query(limit=LIMIT, user_features=features[u]) for u in row] for row in users]
                ),
                "seeds": _ranked(model, [[Query(limit=LIMIT, seeds=s) for s in row] for row in seeds]),
                "irspack features": _on(
                    users,
                    lambda chosen: recommender.get_score_cold_user_from_features(sps.csr_matrix(rows["user"][chosen])),
                ),
                "irspack seeds": _on(
                    seeds, lambda chosen: recommender.get_score_cold_user(_histories(chosen, shape.n_items))
                ),
            },
            rounds,
        )
        warm, cold, seeded, theirs, theirs_seeded = (seconds / size * 1e6 for seconds in times.values())
        print(
            f"{size:<7}{warm:8.1f}{cold:10.1f}{seeded:9.1f}{cold / warm:16.2f}{seeded / warm:12.2f}"
            f"{theirs:20.1f}{theirs_seeded:9.1f}"
        )


def _ranked(model: Model, batches: list[list[Query]]) -> Callable[[int], Any]:
    return lambda number: model.rank(batches[number])


def _feature_rows(n: int, rng: np.random.Generator) -> np.ndarray:
    return np.column_stack([rng.random((n, N_FEATURES - 1)) < 0.15, np.ones(n)]).astype(np.float32)


def _histories(seeds: np.ndarray, n_items: int) -> sps.csr_matrix:
    users, size = seeds.shape
    return sps.csr_matrix(
        (np.ones(seeds.size), (np.repeat(np.arange(users), size), seeds.ravel())), shape=(users, n_items)
    )


def wide_blend(rounds: int) -> None:
    """Known users of a wide iALS, of it blended with RP3beta, and the bare products of their vectors with all items."""
    shape = SHAPES["d"]
    matrix = interactions(shape)
    factors = wide_factors(matrix, shape.components)
    factors.ready()
    history = to_history(matrix)
    blend = with_rp3beta(factors, matrix, history)
    items = factors.index.factors

    def ranked(scorer: Scorer) -> Callable[[np.ndarray], Any]:
        return lambda chosen: scorer.rank([Query(limit=LIMIT, user=user) for user in chosen.tolist()], history)

    calls = {"svc": ranked(blend), "iALS alone": ranked(factors), "numpy": lambda u: top_of(factors.users[u] @ items.T)}
    print(f"\nknown users, blend of iALS and RP3beta, shape (d): {shape.components} components, norms hardly differ")
    _compare_batches(calls, shape.n_users, rounds)


def families(parser: argparse.ArgumentParser) -> None:
    """How fast are rankings without HTTP, one thread each? Against irspack's own calls, implicit, and plain numpy.

        python -m benchmarks scoring            # shapes (a), (b) and (d), two minutes
        python -m benchmarks scoring --full     # also (c), a million items; several minutes and 4 GiB
        python -m benchmarks scoring --csv ratings.csv user_id item_id      # your own data instead

    Times are microseconds a user, medians of interleaved rounds. `numpy` is the matrix product and `argpartition`, the
    least that a full scan costs. implicit is compared where it is installed; it gets the same vectors.
    """
    parser.add_argument("--full", action="store_true", help="more rounds, and shape (c)")
    parser.add_argument("--csv", nargs=3, metavar=("FILE", "USER_COLUMN", "ITEM_COLUMN"), help="data of your own")
    options = parser.parse_args()
    rounds, shapes = (200, "abc") if options.full else (40, "ab")
    limit_blas_threads(1)
    fastprogress.NO_BAR = True
    print("\n".join(origin()))
    if options.csv:
        data = [csv_interactions(*options.csv)]
    else:
        data = [(SHAPES[name], interactions(SHAPES[name])) for name in shapes]
    for shape, matrix in data:
        known_users(shape, matrix, rounds if shape.n_items < MANY_ITEMS else 20)
    for shape, matrix in data:
        if shape.n_items < MANY_ITEMS:
            item_weights(shape, matrix, rounds)
    if not options.csv:
        wide_blend(min(rounds, 20))
    for shape in COLD_SHAPES:
        cold_starts(shape, rounds)


CASES = {"families": families, "blend": blend}

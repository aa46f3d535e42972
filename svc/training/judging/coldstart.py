"""Measure how well a trial that learned from features scores unseen users and items, from their features alone.

This is a ten-fold cross-validation, for users and for items if they have features. A tenth of the users or items is
removed from the data, the trial is trained on the rest, and the removed ones are scored from their features. Each user
or item is held out once, up to 50,000 of them.

- For held-out users, all items are ranked, and the ranking is compared with the user's history.
- For held-out items, these are ranked for each known user, and the ranking is compared with the user's choices of them.

The baselines are a random order and popularity. The popularity of a known item is its number of users. The popularity
of an unseen item is a mean over the known items that share a feature value with it (see `popularity_of_unseen`).

A fold of few items may contain a very popular one by chance, which then helps or hurts all users together. So the
intervals are computed over the ten folds (Student's t), not over users.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from svc import events, logs
from svc.errors import FeatureRidgeFailed
from svc.model.columns.feature_values import Encoded
from svc.model.history import History
from svc.model.ranking.query import NO_ITEMS, Query
from svc.model.recommenders.base import Scorer
from svc.model.recommenders.factor_index import FactorIndex
from svc.model.recommenders.factors import IALSScorer
from svc.recipe.algorithms import FEATURE_AWARE
from svc.training.data.features import FittedSide, SideName
from svc.training.data.weights import HALF_LIFE
from svc.training.fitting.train import train_trial
from svc.training.fitting.trial import TrialRecord
from svc.training.judging.evaluator import DIGITS, Evaluator, Ranker, Rankings, Rows
from svc.training.judging.intervals import mean_interval
from svc.training.judging.metrics import METRICS
from svc.training.judging.search_result import SearchResult
from svc.training.judging.task import Task

N_DRAWS = 10
"""Number of folds."""
MOST_IDS = 5000
"""Maximum number of users or items that are held out in one fold."""
MOST_SHARE_OF_SEARCH = 0.5
"""Largest work of the measurement as a share of the search's work. If it exceeds this and ALWAYS_ALLOWED_WORK, the
measurement is skipped.
"""
ALWAYS_ALLOWED_WORK = 2e11
"""Multiplications that are allowed however short the search was. They take about twenty seconds of one core."""
DEFAULT_COMPONENTS = 20
"""irspack's default for iALS, for a trial without this parameter."""
_AT_ONCE = 256
DIFFERENCES = frozenset({"lead_over_popularity", "known_change"})
"""Figures that are no scores but compare two of them."""

Measured = dict[str, dict[str, float]]
Figures = TypeVar("Figures")


def evaluate_cold_start(task: Task, trial: TrialRecord, result: SearchResult) -> dict[str, Any]:
    """Return the figures of `_evaluate_side` by side, for each of users and items that has features.

    `trial` is the trial that learned from features. The value of a skipped side is `{"skipped": reason}`. A side is
    skipped if the measurement would take too much work compared with the search, if no held-out user or item has an
    interaction, or if the feature weights of a fold cannot be solved for.
    """
    matrix = task.matrix({})
    sides: dict[str, Any] = {}
    for count, side in enumerate(task.features, start=1):
        # All sides share one allowance, so a later side counts with those before it.
        if is_too_much(count * training_work(trial, matrix), search_work(result, matrix)):
            sides[side] = TOO_MUCH
            continue
        sides[side] = measured = _evaluate_side(side, task, trial, matrix)
        if "model" in measured:
            metric = task.holdout.metric
            score, popularity_score = measured["model"][metric], measured["popularity"][metric]
            logs.emit(
                events.COLD_START_EVALUATED, side=side, metric=metric, score=score, popularity_score=popularity_score
            )
    return sides


TOO_MUCH = {"skipped": "ten trainings would take more than half of the work of the search"}


def is_too_much(work: float, work_of_search: float) -> bool:
    """Return whether trainings that take `work` in each fold would take too much work compared with the search.

    Work is counted in multiplications and not timed, so that a busy machine skips the same sides as an idle one.
    """
    return N_DRAWS * work > max(MOST_SHARE_OF_SEARCH * work_of_search, ALWAYS_ALLOWED_WORK)


def training_work(trial: TrialRecord, matrix: sparse.csr_matrix) -> float:
    """Return the approximate number of multiplications of one iALS training.

    With K components, each interaction adds a K × K product to two systems of equations in each epoch, and each user
    and item has a system to solve.
    """
    n = float(trial.params.get("n_components", DEFAULT_COMPONENTS))
    return float((trial.epochs or 1) * (2.0 * matrix.nnz * n**2 + sum(matrix.shape) * n**3))


def search_work(result: SearchResult, matrix: sparse.csr_matrix) -> float:
    """Return the approximate number of multiplications of all complete iALS trainings of the search."""
    return sum(training_work(trial, matrix) for trial in result.completed if trial.algorithm == FEATURE_AWARE)


def _evaluate_side(side: SideName, task: Task, winner: TrialRecord, matrix: sparse.csr_matrix) -> dict[str, Any]:
    """Return the figures of one side for the header, or `{"skipped": reason}`.

    - `n_draws` is the number of measured folds. `n_held` and `n_interactions` are the numbers of held-out users or
      items and of their interactions in these folds.
    - `cutoff` is that of the recipe, or the number of ranked items if that is less.
    - `model`, `popularity` and `random` have the means of METRICS over the folds.
    - `intervals` are those of the recipe's metric for these three, and for the lead of the model over popularity.
    """
    axis = 0 if side == "user" else 1
    training = task.loaded.recipe.training
    times = task.data.trained.latest() if HALF_LIFE in winner.params else None
    held_out = draws(matrix.shape[axis], training.split.seed, axis)
    measure = partial(_measure, side, task, winner=winner, matrix=matrix, times=times)
    counts, folds = measure_folds(held_out, measure, nothing="the held-out ids have no interactions")
    if not folds:
        return counts
    measured = [figures for _, figures in folds]
    return {
        **counts,
        "n_interactions": sum(int(evaluator.heldout.nnz) for evaluator, _ in folds),
        "cutoff": folds[-1][0].cutoff,
        **{name: _means([draw[name] for draw in measured]) for name in measured[0]},
        "intervals": _intervals(measured, training.metric),
    }


def measure_folds(
    held_out: Iterable[NDArray[np.int64]], measure: Callable[[int, NDArray[np.int64]], Figures | None], nothing: str
) -> tuple[dict[str, Any], list[Figures]]:
    """Return `n_draws` and `n_held` for the header, and the figures of each fold.

    `held_out` yields the held-out users or items of each fold. `measure(number, held)` returns the figures of a fold,
    or None if the fold cannot be measured. If no fold can be measured, return `{"skipped": nothing}` and no figures. If
    `measure` raises FeatureRidgeFailed for any fold, return another reason and no figures.
    """
    figures_of_folds, n_held = [], 0
    try:
        for number, held in enumerate(held_out):
            figures = measure(number, held)
            if figures is not None:
                figures_of_folds.append(figures)
                n_held += len(held)
    except FeatureRidgeFailed:
        return {"skipped": "the feature weights cannot be solved for without the held-out ids"}, []
    if not figures_of_folds:
        return {"skipped": nothing}, []
    return {"n_draws": len(figures_of_folds), "n_held": n_held}, figures_of_folds


def _measure(
    side: SideName,
    task: Task,
    number: int,
    held: NDArray[np.int64],
    *,
    winner: TrialRecord,
    matrix: sparse.csr_matrix,
    times: sparse.csr_matrix | None,
) -> tuple[Evaluator, Measured] | None:
    """Return the METRICS of the model, of popularity and of a random order, for fold `number` of `held` users or items.

    Return the evaluator too, or None alone if the held-out users or items have no interactions.
    """
    training = task.loaded.recipe.training
    truth = (matrix[held] if side == "user" else matrix[:, held]).tocsr()
    if not truth.nnz:
        return None
    cutoff = min(training.cutoff, truth.shape[1])
    evaluator = Evaluator(truth, offset=0, cutoff=cutoff, weighted=training.weighted_metric)
    rng = np.random.default_rng([training.split.seed + number, 11])
    keep = np.setdiff1d(np.arange(matrix.shape[0 if side == "user" else 1]), held)
    train, own_times = (
        None if whole is None else (whole[keep] if side == "user" else whole[:, keep]).tocsr()
        for whole in (matrix, times)
    )
    features = {
        name: matrix_of_side[keep] if name == side else matrix_of_side for name, matrix_of_side in task.features.items()
    }
    trained = train_trial(task.builder, winner, train, features, own_times)
    counts = popularity_of_unseen(side, train, task.data.sides[side], keep, held)
    # Ties in random order: in the order of columns, equally popular items would follow the file.
    order = np.lexsort((rng.random(len(counts)), -counts))
    rankers: dict[str, Ranker] = {
        "model": ranker_of_held(side, trained, task.features[side][held]),
        "popularity": lambda users, size: [order[:size].tolist()] * len(users),
        "random": lambda users, size: [rng.choice(len(counts), size, replace=False).tolist() for _ in users],
    }
    return evaluator, {name: evaluator.evaluate(ranker).metrics for name, ranker in rankers.items()}


def draws(n: int, seed: int, axis: int) -> Iterator[NDArray[np.int64]]:
    """Yield the numbers of the users or items of each fold, sorted, from a random division of all `n` into tenths.

    A fold has at most MOST_IDS of them. If `n` is 10 or less, there are n − 1 folds, but at least one. `axis` is 0 for
    users and 1 for items, and makes their divisions independent.
    """
    # The 5, like the numbers of other draws from this seed, keeps these draws independent of those.
    order = np.random.default_rng([seed, 5, axis]).permutation(n)[: N_DRAWS * MOST_IDS]
    for held in np.array_split(order, min(N_DRAWS, max(n - 1, 1))):
        yield np.sort(held)


def _means(draws: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: round(float(np.mean([draw[name] for draw in draws])), DIGITS) for name in METRICS}


def _intervals(measured: Sequence[Measured], metric: str) -> dict[str, list[float]]:
    scores = {name: np.asarray([draw[name][metric] for draw in measured]) for name in measured[0]}
    scores["lead_over_popularity"] = scores["model"] - scores["popularity"]
    return intervals_of_draws(scores)


def intervals_of_draws(scores: Mapping[str, NDArray[np.float64]]) -> dict[str, list[float]]:
    """Return the interval of the mean of each of `scores`, (folds,), rounded for the header.

    With fewer than two folds, there is no interval. Those of scores lie within 0 to 1, those of differences do not.
    """
    spans = {name: mean_interval(values) for name, values in scores.items() if len(values) > 1}
    bounds = {name: (-1.0, np.inf) if name in DIFFERENCES else (0.0, 1.0) for name in spans}
    return {name: [round(float(np.clip(end, *bounds[name])), DIGITS) for end in span] for name, span in spans.items()}


def ranker_of_held(side: SideName, served: Scorer, features: sparse.csr_matrix) -> Ranker:
    """Return a ranker of all items for held-out users, or of the held-out items for all users.

    `features` are those of the held-out users or items. For held-out users, the ranker ranks as a server does. For
    held-out items, it uses the trained user vectors, while a server solves for user vectors exactly.
    """
    assert isinstance(served, IALSScorer), "no other algorithm learns from features"
    nothing = History(np.zeros(1, np.int32), NO_ITEMS)
    served.ready()
    if side == "item":
        vectors = served.least_squares.items_from_features(encode_rows(features)).astype(np.float32)
        # The held-out items take the place of the catalogue, so that they are ranked among each other.
        served = IALSScorer(served.users, FactorIndex.build(vectors), served.least_squares)
        served.index.ready()

    def query(row: int, size: int) -> Query:
        if side == "item":
            return Query(size, user=row, include_seen=True)
        return Query(size, user_features=features[row].toarray()[0].astype(np.float64))

    def rank(users: Rows, size: int) -> Rankings:
        parts = [users[start : start + _AT_ONCE].tolist() for start in range(0, len(users), _AT_ONCE)]
        ranked = (served.rank([query(row, size) for row in part], nothing) for part in parts)
        return [ranking.items.tolist() for rankings in ranked for ranking in rankings]

    return rank


def encode_rows(features: sparse.csr_matrix) -> list[Encoded]:
    """Return the rows of `features` in the form that scorers accept."""
    return [Encoded(row.indices.astype(np.intp), row.data.astype(np.float64), features.shape[1]) for row in features]


def popularity_of_unseen(
    side: SideName,
    train: sparse.csr_matrix,
    fitted: FittedSide,
    keep: NDArray[np.int64],
    held: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Return the popularity of each candidate: of all items for held-out users, or of the `held` items.

    The popularity of a known item is its number of users in `train`. For each feature value of an unseen item, this is
    averaged over the known items with the value, and then over the values of the item. An item without a value in
    common with any known item gets the mean over all known items.

    `fitted` has the features of all items. `keep` are the items of the columns of `train`, and `held` the unseen items.
    All three are ignored for users.
    """
    counts = np.asarray((train != 0).sum(axis=0), dtype=np.float64).ravel()
    if side == "user":
        return counts
    on = shared_values(fitted, keep)
    n_sharing = np.asarray(on[keep].sum(axis=0)).ravel()
    chosen_values = on[:, n_sharing > 0]
    of_value = (chosen_values[keep].T @ counts) / n_sharing[n_sharing > 0]
    n_values = np.asarray(chosen_values[held].sum(axis=1)).ravel()
    return np.asarray(
        np.where(n_values > 0, (chosen_values[held] @ of_value) / np.maximum(n_values, 1.0), counts.mean())
    )


N_BINS = 10


def shared_values(fitted: FittedSide, trained: NDArray[np.int64]) -> sparse.csr_matrix:
    """Return a matrix, (items, feature values), with 1 where an item has a feature value, and 0 elsewhere.

    A feature value is a token, a word, or one of the N_BINS bins of a numerical column. The bins are cut by rank, so
    that each gets about as many of the `trained` items as any other. Items with the same number are in the same bin,
    by their mean rank. A missing number counts as the mean of the column, as for the model. Vector columns and the
    constant feature are left out.
    """
    blocks = [
        _bins(block, trained) if column.kind == "numerical" else block != 0
        for column, block in fitted.blocks()
        if column.width and column.kind != "vector"  # ids hardly ever share a vector
    ]
    if not blocks:
        return sparse.csr_matrix((fitted.matrix.shape[0], 0))
    return sparse.hstack(blocks, format="csr", dtype=np.float64)


def _bins(column: sparse.csr_matrix, trained: NDArray[np.int64]) -> sparse.csr_matrix:
    values = column.toarray().ravel()
    ordered = np.sort(values[trained])
    # Bins are cut by rank, not at quantiles of the values. If most items had the same number, several quantiles would
    # equal this number, and it would share its bin with all larger numbers.
    twice_rank = np.searchsorted(ordered, values, side="left") + np.searchsorted(ordered, values, side="right")
    places = np.minimum(twice_rank * N_BINS // (2 * len(ordered)), N_BINS - 1)
    rows = np.arange(len(values))
    return sparse.csr_matrix((np.ones(len(values)), (rows, places)), shape=(len(values), N_BINS))

"""Search for the best blend, a weighted sum of the scores of several models, after the search for single models.

The parts of a blend are the best trials of at most three algorithms, at most one of them a factor model. Each part is
trained again on the training part of the split. Then weights are compared by their scores on a sample of the validation
users. The best blend becomes a trial of the search and is scored on all validation users.

Popularity is an additional part. It is tried with several half-lives after the weights of the other parts are known,
and kept if it raises the score on the sample. With popularity, one other algorithm suffices for a blend.

If recency is searched, the best recency for all parts is found under the weights that are best at the lowest one. Two
blends are compared, each with its best weights: with the lowest and with this recency. The better one wins.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from svc import events, logs
from svc.errors import FeatureRidgeFailed
from svc.model.ranking import item_sets
from svc.model.recommenders.base import Scorer as ServedScorer
from svc.recipe.algorithms import BLEND, BLENDED, FACTORS, TOP_POP
from svc.training.data.weights import HALF_LIFE, NO_DECAY, POPULARITY_HALF_LIFE
from svc.training.fitting.export import build_blend
from svc.training.fitting.train import train_trial
from svc.training.fitting.trial import TrialRecord
from svc.training.judging.evaluator import Evaluator, Ranker, Rankings, Rows
from svc.training.judging.rankers import ScoreRanker, ScoresOfUsers, rank_ms
from svc.training.judging.recency import RecencySearch, choose
from svc.training.judging.search_result import SearchResult, by_score
from svc.training.judging.task import Task
from svc.training.search.objective import standardize_scores, weighted_sum
from svc.training.search.prepare import SearchTask

MOST_PARTS = 3
_USERS_AT_ONCE = 128
CANDIDATES = 100
"""Weights are compared on this many best items of each user and part, or on twice the cutoff if that is more."""
HALF_LIVES = (NO_DECAY, "3d", "14d", "60d")
"""The half-lives to try for popularity as a part of a blend."""
_STEPS = 10
"""The sum of the weights of a blend, so that one unit is a tenth."""
_COARSE = 2
"""The step of the coarse grid of weights, in tenths."""

Weights = tuple[int, ...]
"""The weight of each part in tenths, with sum 10. Popularity comes last, as one part for each half-life."""


def add_blend(task: SearchTask, result: SearchResult) -> SearchResult:
    """Return `result` with the best blend as one more trial, and with the model of the best trial as `trained`.

    `trained` is None if the split has test users, or if the search for a blend did not train the best trial.

    If no blend can be trained, if the time of the search is over, or if a ranking by the blend takes longer than the
    recipe allows, log an event and return `result` unchanged.
    """
    began = time.monotonic()
    limit = task.loaded.recipe.training.timeout_seconds
    chosen = candidates(result)
    popular = popularity(result, chosen, HALF_LIVES if task.loaded.recipe.blends_recent_popularity else (NO_DECAY,))
    if not chosen or len(chosen) + bool(popular) < 2:
        return _skip(result, "fewer than two algorithms that it can blend have a complete trial")
    if limit is not None and result.seconds >= limit:
        return _skip(result, "training.timeout_seconds is over")
    holdout = task.holdout
    try:
        trained = [
            train_trial(task.builder, trial, holdout.train, holdout.features, holdout.times)
            for trial in (*chosen, *popular)
        ]
    except FeatureRidgeFailed:
        return _skip(result, "a part cannot be trained a second time")
    parts = _BlendTrainer(task, [*chosen, *popular], trained)
    # The blend is no trial of the study, so it takes the next free number.
    number = 1 + max(trial.number for trial in result.trials)
    record = parts.best(number)
    blend = build_blend(parts.models_of(record), record)
    full, ranker = holdout.evaluators.full, holdout.ranker_of(blend, record)
    evaluation = full.evaluate(ranker)
    # Validation users only, because `ranker_of` has solved for the vectors of no others.
    metrics, needed_ms = evaluation.metrics, rank_ms(ranker.model, full.offset + full.evaluated_users)
    seconds = round(time.monotonic() - began, 3)
    record = replace(record, score=metrics[holdout.metric], metrics=metrics, seconds=seconds, rank_ms=needed_ms)
    logs.emit(
        events.BLEND_SEARCHED,
        weights=record.params["weights"],
        score=record.score,
        seconds=record.seconds,
        rank_ms=needed_ms,
    )
    most_ms = task.loaded.recipe.training.max_rank_ms
    if most_ms is not None and needed_ms > most_ms:
        return _skip(result, f"a ranking by it takes {needed_ms:g} ms, more than training.max_rank_ms")
    by_user = {**result.by_user, number: evaluation.scores[holdout.metric]}
    result = replace(result, trials=[*result.trials, record], by_user=by_user)
    is_best = result.best is record
    kept: list[ServedScorer] = [blend] if is_best else parts.models_of(result.best)
    if task.split.test is not None:  # the runner-up is trained next, and memory may be too small for both models
        kept = []
    return replace(result, trained=next(iter(kept), None), evaluation=evaluation if is_best else None)


class _BlendTrainer:
    """Finds the best weights and recency for given parts.

    `trials` are the parts: trials of different algorithms, then popularity once for each half-life. `trained` has the
    trained model of each.
    """

    def __init__(self, task: SearchTask, trials: Sequence[TrialRecord], trained: Sequence[ServedScorer]) -> None:
        self._task, self._holdout = task, task.holdout
        self._trials = trials
        self._trained = trained
        # The sample has at most 2,000 users. With 5,000 users and all items, a blend search on 12,000 sessions of 3,000
        # items took 15.2 instead of 7.5 s of processor time, for a score that differed by less than 0.0001.
        self._sample = self._holdout.evaluators.sample
        order = self._holdout.order
        self._values = (0.0,) if order is None else order.values(BLEND)
        self._histories = [
            task.objective.quick_scores(part, trial.params)
            for part, trial in zip(trained, trials, strict=True)
            if trial.algorithm != TOP_POP
        ]
        # Popularity reads no history, so neither a half-life of histories nor a recency changes its scores.
        self._popular = [task.objective.quick_scores(part, {})(0.0) for part in trained[len(self._histories) :]]

    def best(self, number: int) -> TrialRecord:
        """Return the blend that wins on the sample as a trial with this `number`, not yet scored on all users."""
        lowest = self._values[0]
        weights, by_user = self._best_weights(lowest)
        search = RecencySearch(self._values, lambda recency: self._ranker(recency, weights))
        recency = choose(search, self._holdout.evaluators).recency if len(self._values) > 1 else lowest
        if recency != lowest:
            others, scores = self._best_weights(recency)
            if scores.mean() > by_user.mean():
                return self._record(recency, others, number)
        return self._record(lowest, weights, number)

    def models_of(self, trial: TrialRecord) -> list[ServedScorer]:
        """Return the trained models of the parts of `trial`, a blend, or the model of `trial` if it is one of `trials`.

        Return nothing for other trials.
        """
        models = {_identity(part): trained for part, trained in zip(self._trials, self._trained, strict=True)}
        return [models[_identity(part)] for part in trial.parts or (trial,) if _identity(part) in models]

    def _best_weights(self, recency: float) -> tuple[Weights, NDArray[np.float64]]:
        """Return the best weights of all parts at `recency`, and their score for each user of the sample, (users,)."""
        search = WeightSearch(self._sample, self._scorers(recency), self._task, n_popular=len(self._popular))
        weights = search.best()
        return weights, search.by_user(weights)

    def _ranker(self, recency: float, weights: Weights) -> Ranker:
        """Return a ranker by the blended scores of the parts whose weight is above 0."""
        scorers, positions = self._scorers(recency), _with_weight(weights)
        shares = [weights[part] / _STEPS for part in positions]
        chosen = [scorers[part] for part in positions]
        return ScoreRanker(lambda rows: weighted_sum(standardize_scores(chosen, rows), shares), self._holdout.seen)

    def _scorers(self, recency: float) -> list[ScoresOfUsers]:
        """Return the scorers of all parts."""
        return [scores(recency) for scores in self._histories] + self._popular

    def _record(self, recency: float, tenths: Weights, number: int) -> TrialRecord:
        positions = _with_weight(tenths)
        parts = tuple(replace(self._trials[position], recency=recency) for position in positions)
        weights = {self._trials[position].algorithm: tenths[position] / _STEPS for position in positions}
        readings = [part.of_history for part in parts]
        # The header tells the half-life and scale of a blend as one value, if its parts agree.
        shared = {name: value for name, value in readings[0].items() if all(own.get(name) == value for own in readings)}
        params = {"weights": weights, **shared}
        return TrialRecord(number, BLEND, params, "complete", None, {}, None, 0.0, parts, recency)


def _identity(trial: TrialRecord) -> tuple[int, str | None]:
    """Return a key that identifies the trained model of a part.

    It includes the half-life, because one trial of popularity has a model for each half-life.
    """
    return trial.number, trial.params.get(POPULARITY_HALF_LIFE)


def _with_weight(weights: Weights) -> list[int]:
    """Return the positions of the parts with a weight other than 0."""
    return [position for position, weight in enumerate(weights) if weight]


def candidates(result: SearchResult) -> list[TrialRecord]:
    """Return the best trial of each of at most MOST_PARTS algorithms, best first, as parts of a blend.

    At most one is a factor model, and at most MOST_PARTS − 1 are not. Trials that scored 0 are left out. All have the
    half-life of the best trial, so that old interactions fade alike in all parts.
    """
    best: list[TrialRecord] = []
    for trial in by_score(result.completed):
        fits = trial.algorithm in BLENDED and trial.score and trial.algorithm not in [o.algorithm for o in best]
        if not fits or (best and trial.params.get(HALF_LIFE) != best[0].params.get(HALF_LIFE)):
            continue
        has_factors = any(other.algorithm in FACTORS for other in best)
        # One place is reserved for a factor model, because it also relates items that no user has in common.
        if trial.algorithm in FACTORS and has_factors:
            continue
        if trial.algorithm not in FACTORS and not has_factors and len(best) == MOST_PARTS - 1:
            continue
        best.append(trial)
    return best[:MOST_PARTS]


def popularity(result: SearchResult, chosen: Sequence[TrialRecord], half_lives: Sequence[str]) -> list[TrialRecord]:
    """Return the best popularity trial with the half-life of the `chosen` parts, copied for each of `half_lives`.

    In a copy, the half-life is the parameter POPULARITY_HALF_LIFE. Return nothing if no such trial scored above 0.
    """
    shared = {trial.params.get(HALF_LIFE) for trial in chosen}
    alike = (
        trial
        for trial in by_score(result.completed)
        if trial.algorithm == TOP_POP and trial.score and trial.params.get(HALF_LIFE) in shared
    )
    return [
        replace(trial, params={**trial.params, POPULARITY_HALF_LIFE: half_life})
        for trial in islice(alike, 1)
        for half_life in half_lives
    ]


def _skip(result: SearchResult, reason: str) -> SearchResult:
    logs.emit(events.ALGORITHM_SKIPPED, algorithm=BLEND, reason=reason)
    return result


class _Block(NamedTuple):
    """The candidates of some users: the items among which the weights of a blend are compared.

    - `columns`, (users, c), has the columns of each user's candidates in ascending order.
    - `counts`, (users,), is the number of candidates of each user. The rest of the row is padding.
    - `values`, (parts, users, c), has the score of each candidate by each part.
    """

    columns: NDArray[np.intp]
    counts: NDArray[np.intp]
    values: NDArray[np.float32]


class WeightSearch:
    """Searches the weights of a blend of `scorers` on `sample`: on a coarse grid first, then around the best weights.

    An item that ranks high in a blend almost always ranks high in one of its parts. So only the CANDIDATES best items
    of each part are kept for each user, and each part scores them only once for all weights.

    The last `n_popular` scorers are popularity with different half-lives. At most one of them gets a weight above 0.
    They are added after the best weights of the other parts have been found, also on the coarse grid first.
    """

    def __init__(self, sample: Evaluator, scorers: Sequence[ScoresOfUsers], task: Task, n_popular: int = 0) -> None:
        self._sample = sample
        self._scorers = scorers
        self._n_popular = n_popular
        self._metric = task.holdout.metric
        users, seen = sample.offset + sample.evaluated_users, task.holdout.seen
        parts = [users[begin : begin + _USERS_AT_ONCE] for begin in range(0, len(users), _USERS_AT_ONCE)]
        self._blocks = [self._block(rows, seen[rows]) for rows in parts]
        self._scores: dict[Weights, NDArray[np.float64]] = {}

    def best(self) -> Weights:
        """Score weights on the sample, and return those with the highest mean score."""
        n_others, rest = len(self._scorers) - self._n_popular, (0,) * self._n_popular
        # Two parts have only nine weights in tenths. Three have 63, of which the coarse grid tries 18.
        for weights in simplex(n_others, 1 if n_others == 2 else _COARSE):
            self._score(weights + rest)
        others = (_STEPS,) if n_others == 1 else self._climb(n_others)[:n_others]
        for share in range(_COARSE, _STEPS, _COARSE):
            for weights in self._with_popularity((*_scale(others, _STEPS - share), share, *rest[1:])):
                self._score(weights)
        return self._climb(len(self._scorers))

    def _climb(self, n_parts: int) -> Weights:
        """Return the best weights when only the first `n_parts` weights and the half-life of popularity may change.

        All neighbours of the best weights so far are scored, until a best one has no unscored neighbour.
        """
        while True:
            # Of equal weights the first one scored, which does not depend on chance.
            best = max(self._scores, key=self._score)
            around = [weights + best[n_parts:] for weights in _around(best[:n_parts])] + self._with_popularity(best)
            new = [weights for weights in around if weights not in self._scores and self._is_allowed(weights)]
            if not new:
                return best
            for weights in new:
                self._score(weights)

    def _with_popularity(self, weights: Weights) -> list[Weights]:
        """Return variants of `weights`, in which the weight of popularity moves to each half-life in turn."""
        n_others, most = len(weights) - self._n_popular, max(weights[len(weights) - self._n_popular :], default=0)
        half_lives = range(self._n_popular)
        return [
            weights[:n_others] + tuple(most if half_life == own else 0 for half_life in half_lives)
            for own in half_lives
        ]

    def _is_allowed(self, weights: Weights) -> bool:
        return sum(weight > 0 for weight in weights[len(weights) - self._n_popular :]) <= 1

    def by_user(self, weights: Weights) -> NDArray[np.float64]:
        """Return the score of each user of the sample, (users,), under `weights`."""
        if weights not in self._scores:
            shares = np.array(weights, dtype=np.float32) / np.float32(_STEPS)
            rankings = [ranking for block in self._blocks for ranking in self._rankings(block, shares)]
            self._scores[weights] = self._sample.by_user(rankings, self._metric)
        return self._scores[weights]

    def _score(self, weights: Weights) -> float:
        return float(self.by_user(weights).mean())

    def _rankings(self, block: _Block, shares: NDArray[np.float32]) -> Rankings:
        scores = np.tensordot(shares, block.values, axes=1)
        # Padding has the scores of no item, and must not come before an item with a negative score.
        scores[np.arange(scores.shape[1]) >= block.counts[:, np.newaxis]] = -np.inf
        # Only the best are sorted. Sorting all candidates and 5,000 instead of 2,000 users took twice the time of a
        # blend.
        best = np.argpartition(-scores, min(self._sample.cutoff, scores.shape[1]) - 1, axis=1)[:, : self._sample.cutoff]
        best.sort(axis=1)  # in order of columns, so that the stable sort below puts the first column first among ties
        order = np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1, kind="stable")
        ranked = np.take_along_axis(block.columns, np.take_along_axis(best, order, axis=1), axis=1).tolist()
        return [ranking[:count] for ranking, count in zip(ranked, block.counts.tolist(), strict=True)]

    def _block(self, users: Rows, seen: sparse.csr_matrix) -> _Block:
        """Return the candidates of `users`, without the items that they have `seen`."""
        parts, excluded = standardize_scores(self._scorers, users), seen.nonzero()
        wanted = np.zeros(parts[0].shape, dtype=np.bool_)
        for scores in parts:
            # A copy, because `parts` keep the scores from which `values` are made below.
            allowed = scores.copy()
            allowed[excluded] = -np.inf
            for row, own in zip(wanted, allowed, strict=True):
                row[item_sets.best(own, max(CANDIDATES, 2 * self._sample.cutoff))] = True
        rows, items = wanted.nonzero()
        counts = wanted.sum(axis=1)
        places = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        columns = np.zeros((len(users), int(counts.max(initial=0))), dtype=np.intp)
        columns[rows, places] = items
        values = np.zeros((len(parts), *columns.shape), dtype=np.float32)
        for part, scores in zip(values, parts, strict=True):
            part[rows, places] = scores[rows, items]
        return _Block(columns, counts, values)


def simplex(n_parts: int, step: int) -> Iterator[Weights]:
    """Yield all weights of `n_parts` parts in multiples of `step` tenths with at least two parts above zero."""
    for first in product(range(0, _STEPS + 1, step), repeat=n_parts - 1):
        weights = (*first, _STEPS - sum(first))
        if weights[-1] >= 0 and sum(weight > 0 for weight in weights) >= 2:
            yield weights


def _scale(weights: Weights, total: int) -> Weights:
    """Return `weights` scaled to whole tenths that add up to `total`.

    The largest remainders are rounded up.
    """
    # In whole numbers, because the tenths must add up exactly.
    floors = [weight * total // _STEPS for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda part: -(weights[part] * total % _STEPS))
    for part in by_remainder[: total - sum(floors)]:
        floors[part] += 1
    return tuple(floors)


def _around(weights: Weights) -> Iterator[Weights]:
    """Yield all weights that differ from `weights` in one tenth, moved from one part to another.

    At least two parts stay above zero.
    """
    for source, target in product(range(len(weights)), repeat=2):
        moved = list(weights)
        moved[source] -= 1
        moved[target] += 1
        if source != target and moved[source] >= 0 and sum(weight > 0 for weight in moved) >= 2:
            yield tuple(moved)

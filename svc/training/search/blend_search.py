"""The search for a blend, after that of its parts: which models, with which weights, on the same holdout.

The parts are the best trials of two or three algorithms, at most one of them a factor model. Each is trained once more
on what the search trained on; then weights cost an evaluation each, on a sample of the validation users. The score of
the blend, like that of any trial, comes from all of them. Where recency is searched, a blend has one for all of its
parts: weights are compared at that of the best part, and again at the one that suits the blend better.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from svc import events, logs
from svc.errors import FeatureRidgeFailed
from svc.recipe.algorithms import BLEND, BLENDED
from svc.training.algorithms.registry import Params
from svc.training.data.decay import HALF_LIFE
from svc.training.evaluation.evaluator import Evaluator, Rows, Scorer, Scores, scorer_of
from svc.training.search.blended import FACTORS, BlendedRecommender, standardized
from svc.training.search.fit import Fitted, fit_recency
from svc.training.search.objective import refit_winner
from svc.training.search.prepare import Task
from svc.training.search.recency import Weighing, choose
from svc.training.search.trials import SearchResult, TrialRecord, by_score

MOST_PARTS = 3
SAMPLE_USERS = 5_000
"""Weights are compared on at most so many validation users."""
CANDIDATES = 100
"""How many items of each user and part are kept to compare weights, or twice the cutoff if that is more."""
_STEPS = 10
_COARSE = 2

Weights = tuple[int, ...]
"""Weights in tenths; they add up to 10."""


def add_blend(task: Task, result: SearchResult) -> SearchResult:
    """`result` with the best blend as one more trial, or as it is, and an event, where there is nothing to blend."""
    began = time.monotonic()
    limit = task.loaded.recipe.training.timeout_seconds
    chosen = candidates(result)
    if len(chosen) < 2:
        return _skipped(result, "fewer than two algorithms that it can blend have a complete trial")
    if limit is not None and result.seconds >= limit:
        return _skipped(result, "training.timeout_seconds is over")
    objective = task.objective
    shared = {name: value for name, value in chosen[0].params.items() if name == HALF_LIFE}
    train = objective.decayed(shared)
    try:
        trained = [refit_winner(task.builder, trial, train, objective.features, objective.times) for trial in chosen]
    except FeatureRidgeFailed:
        return _skipped(result, "a part cannot be trained a second time")
    parts = _Parts(task, chosen, trained)
    weights = parts.weights_at(parts.first)
    if parts.values:
        found = parts.recency(weights)
        weights = weights if found == parts.first else parts.weights_at(found)
    number = 1 + max(trial.number for trial in result.trials)
    record, fitted = parts.evaluated(weights, number, shared)
    record = replace(record, seconds=round(time.monotonic() - began, 3))
    logs.emit(events.BLEND_SEARCHED, weights=record.params["weights"], score=record.score, seconds=record.seconds)
    by_user = result.by_user if fitted.by_user is None else {**result.by_user, number: fitted.by_user}
    result = replace(result, trials=[*result.trials, record], by_user=by_user)
    if task.split.test is not None:  # then the runner-up is trained first, and two models at once may not fit
        return result
    return replace(result, trained=parts.model_of(result.best))


class _Parts:
    """The parts of a blend: `trained` are the models of `trials`, each of another algorithm.

    `values` are the recencies that a blend may have, the same for all of its parts, and `first` is the one of its best
    part.
    """

    def __init__(self, task: Task, trials: Sequence[TrialRecord], trained: Sequence[Any]) -> None:
        self._task = task
        self._objective = task.objective
        self._trials = trials
        self._trained = trained
        self._sample = self._objective.evaluators.full.sample(SAMPLE_USERS, task.loaded.recipe.training.split.seed)
        order = self._objective.order
        self.values = () if order is None else order.values(BLEND)
        self.first = min(self.values, key=lambda value: abs(value - trials[0].recency), default=0.0)
        self._histories = [
            self._objective.scores_of_histories(part, trial.params)
            for part, trial in zip(trained, trials, strict=True)
            if self.values
        ]

    def weights_at(self, recency: float) -> Weights:
        """The best weights of all parts."""
        return _Search(self._sample, self._scorers(recency), self._task).best()

    def recency(self, weights: Weights) -> float:
        """The best recency of the blend with these weights."""
        objective = self._objective
        weighing = self._weighing(self._blend(weights, self._record(weights, 0, {})), weights)
        return choose(weighing, objective.evaluators.brief, objective.metric, objective.seen, lambda: None).recency

    def evaluated(self, weights: Weights, number: int, shared: Params) -> tuple[TrialRecord, Fitted]:
        """The trial of the blend with these weights and the parameters `shared` by its parts, judged on all users."""
        objective, record = self._objective, self._record(weights, number, shared)
        blend = self._blend(weights, record)
        if self.values:
            weighing = self._weighing(blend, weights)
            fitted = fit_recency(weighing, objective.evaluators, objective.seen, lambda: None, lambda _: None)
        else:
            evaluation = objective.evaluators.full.evaluate(blend.get_score, objective.seen)
            fitted = Fitted(evaluation.metrics, None, evaluation.by_user(objective.metric))
        score = fitted.metrics[objective.metric]
        return replace(record, score=score, metrics=fitted.metrics, recency=fitted.recency), fitted

    def model_of(self, trial: TrialRecord) -> Any:
        """The model of a blend of these parts, or of one of them; None for any other trial."""
        by_number = {part.number: trained for part, trained in zip(self._trials, self._trained, strict=True)}
        if trial.parts:
            return BlendedRecommender([by_number[part.number] for part in trial.parts], trial)
        return by_number.get(trial.number)

    def _record(self, weights: Weights, number: int, shared: Params) -> TrialRecord:
        kept = tuple(self._trials[place] for place in _kept(weights))
        found = {self._trials[place].algorithm: weights[place] / _STEPS for place in _kept(weights)}
        return TrialRecord(number, BLEND, {"weights": found, **shared}, "complete", None, {}, None, 0.0, kept)

    def _blend(self, weights: Weights, record: TrialRecord) -> BlendedRecommender:
        return BlendedRecommender([self._trained[place] for place in _kept(weights)], record)

    def _weighing(self, blend: BlendedRecommender, weights: Weights) -> Weighing:
        def at(recency: float) -> Scorer:
            return blend.by([self._histories[place].at(recency) for place in _kept(weights)])

        is_same_at_0 = not any(self._histories[place].learns_users for place in _kept(weights))
        return Weighing(self.values, at, blend.get_score, is_same_at_0)

    def _scorers(self, recency: float) -> list[Scorer]:
        if not recency:
            return [scorer_of(part) for part in self._trained]
        return [part.at(recency) for part in self._histories]


def _kept(weights: Weights) -> list[int]:
    """The places of the parts that count."""
    return [place for place, weight in enumerate(weights) if weight]


def candidates(result: SearchResult) -> list[TrialRecord]:
    """The best trials of at most MOST_PARTS algorithms, best first, one of factors at most.

    All have the half-life of the best: the history of a user is stored once, with one set of values.
    """
    found: list[TrialRecord] = []
    for trial in by_score(result.completed):
        fits = trial.algorithm in BLENDED and trial.score and trial.algorithm not in [o.algorithm for o in found]
        if not fits or (found and trial.params.get(HALF_LIFE) != found[0].params.get(HALF_LIFE)):
            continue
        has_factors = any(other.algorithm in FACTORS for other in found)
        # One place is reserved for a factor model: it generalizes where neighbour models cannot.
        if trial.algorithm in FACTORS and has_factors:
            continue
        if trial.algorithm not in FACTORS and not has_factors and len(found) == MOST_PARTS - 1:
            continue
        found.append(trial)
    return found[:MOST_PARTS]


def _skipped(result: SearchResult, reason: str) -> SearchResult:
    logs.emit(events.ALGORITHM_SKIPPED, algorithm=BLEND, reason=reason)
    return result


class _Block(NamedTuple):
    """Candidates of some users: entry c is the item columns[c] of the user rows[c], with values[p, c] by part p."""

    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    values: NDArray[np.float32]


class _Search:
    """Compares weights on `sample`: first coarsely, then around the best.

    What is best for a user by some weights is among the best by one part. So of each user only the CANDIDATES best
    items of each part are kept, and the parts are scored once.
    """

    def __init__(self, sample: Evaluator, scorers: Sequence[Scorer], task: Task) -> None:
        self._sample = sample
        self._scorers = scorers
        self._seen = task.objective.seen
        self._metric = task.objective.metric
        self._blocks: dict[int, _Block] = {}
        self._scores: dict[Weights, float] = {}

    def best(self) -> Weights:
        step = 1 if len(self._scorers) == 2 else _COARSE
        for weights in simplex(len(self._scorers), step):
            self._score(weights)
        while True:
            best = max(self._scores, key=self._score)
            new = [weights for weights in _around(best) if weights not in self._scores]
            if not new:
                return best
            for weights in new:
                self._score(weights)

    def _score(self, weights: Weights) -> float:
        if weights not in self._scores:
            shares = np.array(weights, dtype=np.float32) / _STEPS

            def scorer(rows: Rows) -> Scores:
                block = self._block(rows)
                scores = np.full((len(rows), self._seen.shape[1]), -np.inf, dtype=np.float32)
                scores[block.rows, block.columns] = shares @ block.values
                return scores

            self._scores[weights] = self._sample.metrics(scorer, self._seen)[self._metric]
        return self._scores[weights]

    def _block(self, users: Rows) -> _Block:
        """Of these users, who come together again for all weights."""
        first = int(users[0])
        if first not in self._blocks:
            parts = standardized(self._scorers, users)
            wanted = np.zeros(parts[0].shape, dtype=np.bool_)
            seen = self._seen[users]
            for scores in parts:
                ranked = scores.copy()
                ranked[seen.nonzero()] = -np.inf
                most = min(max(CANDIDATES, 2 * self._sample.cutoff), ranked.shape[1])
                best = np.argpartition(-ranked, most - 1, axis=1)[:, :most]
                np.put_along_axis(wanted, best, values=True, axis=1)
            rows, columns = wanted.nonzero()
            values = np.array([scores[rows, columns] for scores in parts])
            self._blocks[first] = _Block(rows, columns, values)
        return self._blocks[first]


def simplex(n_parts: int, step: int) -> Iterator[Weights]:
    """All weights in multiples of that step with at least two parts above zero."""
    for first in product(range(0, _STEPS + 1, step), repeat=n_parts - 1):
        weights = (*first, _STEPS - sum(first))
        if weights[-1] >= 0 and sum(weight > 0 for weight in weights) >= 2:
            yield weights


def _around(weights: Weights) -> Iterator[Weights]:
    """All weights reached by moving a tenth from one part to another, with at least two parts above zero."""
    for source, target in product(range(len(weights)), repeat=2):
        moved = list(weights)
        moved[source] -= 1
        moved[target] += 1
        if source != target and moved[source] >= 0 and sum(weight > 0 for weight in moved) >= 2:
            yield tuple(moved)

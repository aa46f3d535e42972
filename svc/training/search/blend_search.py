"""The search for a blend, after that of its parts: which models, with which weights, on the same holdout.

The parts are the best trials of two or three algorithms, at most one of them a factor model. Each is trained once more
on what the search trained on; then weights cost an evaluation each, on a sample of the validation users. The score of
the blend, like that of any trial, comes from all of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from svc import events, logs
from svc.errors import FeatureRidgeFailed
from svc.recipe.algorithms import BLEND, BLENDED
from svc.training.data.decay import HALF_LIFE
from svc.training.evaluation.evaluator import Evaluation, Rows, Scorer, Scores, scorer_of
from svc.training.search.blended import FACTORS, BlendedRecommender, standardized
from svc.training.search.objective import refit_winner
from svc.training.search.prepare import Task
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
    sample = objective.judge.full.sample(SAMPLE_USERS, task.loaded.recipe.training.split.seed)
    weights = _Search(sample, [scorer_of(part) for part in trained], task).best()
    kept = [place for place, weight in enumerate(weights) if weight]
    found = {chosen[place].algorithm: weights[place] / _STEPS for place in kept}
    parts = tuple(chosen[place] for place in kept)
    number = 1 + max(trial.number for trial in result.trials)
    record = TrialRecord(number, BLEND, {"weights": found, **shared}, "complete", None, {}, None, 0.0, parts)
    blend = BlendedRecommender([trained[place] for place in kept], record)
    judged = objective.judge.full.judge(blend.get_score, objective.seen)
    seconds = round(time.monotonic() - began, 3)
    record = replace(record, score=judged.metrics[objective.metric], metrics=judged.metrics, seconds=seconds)
    logs.emit(events.BLEND_SEARCHED, weights=found, score=record.score, seconds=record.seconds)
    by_user = {**result.by_user, number: judged.by_user(objective.metric)}
    return replace(result, trials=[*result.trials, record], by_user=by_user)


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

    def __init__(self, sample: Evaluation, scorers: Sequence[Scorer], task: Task) -> None:
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

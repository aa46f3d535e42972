"""The search for a blend, after that of its parts: which models, with which weights, on the same holdout.

The parts are the best trials of two or three algorithms, at most one of them a factor model. Each is trained once more
on what the search trained on; then weights cost an evaluation each, on a sample of the validation users. The score of
the blend, like that of any trial, comes from all of them.

Popularity is one part more. Once the weights of the others are known, it is tried with several half-lives, and stays
where it raises the score.

Where recency is searched, three blends are compared: without order, with one recency for all parts, and with that of
each part's own trial, each with the weights that suit it. Of those that chance cannot tell apart, the one with the
least order is taken.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from svc import events, logs
from svc.errors import FeatureRidgeFailed
from svc.model.recommenders.blend import BlendScorer
from svc.recipe.algorithms import BLEND, BLENDED, TOP_POP
from svc.training.algorithms.registry import Params
from svc.training.data.decay import HALF_LIFE, NO_DECAY, POPULARITY_HALF_LIFE
from svc.training.evaluation.evaluator import Evaluation, Evaluator, Ranker, Rows
from svc.training.evaluation.rank_cost import rank_ms_of
from svc.training.evaluation.recency import scorer_of
from svc.training.evaluation.score_ranker import Scorer, Scores
from svc.training.search.blended import FACTORS, BlendedRecommender, standardized, weighted
from svc.training.search.objective import refit_winner
from svc.training.search.prepare import Task
from svc.training.search.recency import Weighing, choose, is_gain
from svc.training.search.served import to_history, to_scorer
from svc.training.search.trials import SearchResult, TrialRecord, by_score

MOST_PARTS = 3
SAMPLE_USERS = 5_000
"""Weights are compared on at most so many validation users."""
CANDIDATES = 100
"""How many items of each user and part are kept to compare weights, or twice the cutoff if that is more."""
HALF_LIVES = (NO_DECAY, "3d", "14d", "60d")
"""What is tried of popularity as a part."""
_STEPS = 10
_COARSE = 2

Weights = tuple[int, ...]
"""Weights in tenths, those of popularity by half-life last; they add up to 10."""
Recencies = tuple[float, ...]
"""One for each part but popularity."""


def add_blend(task: Task, result: SearchResult) -> SearchResult:
    """Return `result` with the best blend as one more trial.

    If no blend can be made or served in time, log an event and return `result` as it is.
    """
    began = time.monotonic()
    limit = task.loaded.recipe.training.timeout_seconds
    chosen = candidates(result)
    popular = popularity(result, chosen, HALF_LIVES if task.loaded.recipe.blends_recent_popularity else (NO_DECAY,))
    if not chosen or len(chosen) + bool(popular) < 2:
        return _skipped(result, "fewer than two algorithms that it can blend have a complete trial")
    if limit is not None and result.seconds >= limit:
        return _skipped(result, "training.timeout_seconds is over")
    objective = task.objective
    shared = {name: value for name, value in chosen[0].params.items() if name == HALF_LIFE}
    train = objective.decayed(shared)
    try:
        trained = [
            refit_winner(task.builder, trial, train, objective.features, objective.times)
            for trial in (*chosen, *popular)
        ]
    except FeatureRidgeFailed:
        return _skipped(result, "a part cannot be trained a second time")
    parts = _Parts(task, [*chosen, *popular], trained)
    number = 1 + max(trial.number for trial in result.trials)
    record, evaluation = parts.best(number, shared)
    rank_ms = rank_ms_of(parts.served(record, train), train)
    record = replace(record, seconds=round(time.monotonic() - began, 3), rank_ms=rank_ms)
    logs.emit(
        events.BLEND_SEARCHED,
        weights=record.params["weights"],
        score=record.score,
        seconds=record.seconds,
        rank_ms=rank_ms,
    )
    most_ms = task.loaded.recipe.training.max_rank_ms
    if most_ms is not None and rank_ms > most_ms:
        return _skipped(result, f"a ranking by it takes {rank_ms:g} ms, more than training.max_rank_ms")
    by_user = {**result.by_user, number: evaluation.by_user(objective.metric)}
    result = replace(result, trials=[*result.trials, record], by_user=by_user)
    if task.split.test is not None:  # then the runner-up is trained first, and two models at once may not fit
        return result
    return replace(result, trained=parts.model_of(result.best))


class _Tried(NamedTuple):
    """A blend with `recencies` and `weights` of all parts, scored on all validation users."""

    recencies: Recencies
    weights: Weights
    evaluation: Evaluation

    @property
    def order(self) -> float:
        """The mean recency of the parts, by their weights in tenths: how much order counts."""
        return sum(weight * recency for weight, recency in zip(self.weights, self.recencies, strict=False))


class _Parts:
    """The parts of a blend: `trained` are the models of `trials`, each of another algorithm.

    The last ones are popularity, with a half-life each.
    """

    def __init__(self, task: Task, trials: Sequence[TrialRecord], trained: Sequence[Any]) -> None:
        self._task = task
        self._objective = task.objective
        self._trials = trials
        self._trained = trained
        self._sample = self._objective.evaluators.full.sample(SAMPLE_USERS, task.loaded.recipe.training.split.seed)
        order = self._objective.order
        self._values = () if order is None else order.values(BLEND)
        self._histories = [
            self._objective.scores_of_histories(part, trial.params)
            for part, trial in zip(trained, trials, strict=True)
            if trial.algorithm != TOP_POP
        ]
        self._popular = [scorer_of(part) for part in trained[len(self._histories) :]]
        self._weights_at: dict[Recencies, Weights] = {}

    def best(self, number: int, shared: Params) -> tuple[TrialRecord, Evaluation]:
        """Return the trial of the best blend and its evaluation on all validation users.

        `shared` are the parameters that its parts share.
        """
        tried = sorted(map(self._tried, self._candidates()), key=lambda blend: blend.order)
        metric = self._objective.metric
        best = max(tried, key=lambda blend: blend.evaluation.metrics[metric])
        chosen = next(blend for blend in tried if blend is best or not self._is_better(best, blend))
        return self._record(chosen, number, shared), chosen.evaluation

    def model_of(self, trial: TrialRecord) -> Any:
        """Return the model of a blend of these parts, or of a single part.

        Return None for any other trial.
        """
        models = {_identity(part): trained for part, trained in zip(self._trials, self._trained, strict=True)}
        if trial.parts:
            return BlendedRecommender([models[_identity(part)] for part in trial.parts], trial)
        return models.get(_identity(trial))

    def served(self, blend: TrialRecord, train: sparse.csr_matrix) -> BlendScorer:
        """Return the blend as it is served, with the users of the training on `train`."""
        scorer, history = to_scorer(self.model_of(blend), BLEND), to_history(train, with_values=True)
        assert isinstance(scorer, BlendScorer), "a trial with parts is a blend"
        scorer.measure(history)
        return scorer

    def _candidates(self) -> list[Recencies]:
        """Return the recencies to try.

        They are the lowest for all parts, the best one for all, and the best of each part by itself.
        """
        if len(self._values) < 2:
            return [self._alike(*(self._values or (0.0,)))]
        lowest, highest = self._values[0], self._values[-1]
        own = tuple(min(max(trial.recency, lowest), highest) for trial in self._trials[: len(self._histories)])
        return list(dict.fromkeys([self._alike(lowest), self._alike(self._shared(own)), own]))

    def _alike(self, recency: float) -> Recencies:
        return (recency,) * len(self._histories)

    def _shared(self, own: Recencies) -> float:
        """Return the best recency for all parts, with the weights that suit the `own` ones."""
        weights, objective = self._weights(own), self._objective
        weighing = Weighing(self._values, lambda recency: self._ranker(self._alike(recency), weights))
        return choose(weighing, objective.evaluators.brief, objective.metric, lambda: None).recency

    def _weights(self, recencies: Recencies) -> Weights:
        """Return the best weights of all parts at `recencies`."""
        if recencies not in self._weights_at:
            search = WeightSearch(self._sample, self._scorers(recencies), self._task, n_popular=len(self._popular))
            self._weights_at[recencies] = search.best()
        return self._weights_at[recencies]

    def _tried(self, recencies: Recencies) -> _Tried:
        weights, objective = self._weights(recencies), self._objective
        ranker = self._ranker(recencies, weights)
        return _Tried(recencies, weights, objective.evaluators.full.evaluate(ranker))

    def _is_better(self, first: _Tried, second: _Tried) -> bool:
        """Return whether `first` scores higher by more than chance."""
        metric = self._objective.metric
        return is_gain(first.evaluation.by_user(metric), second.evaluation.by_user(metric))

    def _ranker(self, recencies: Recencies, weights: Weights) -> Ranker:
        """Return the ranker of a blend of the parts with weight."""
        scorers, weighed = self._scorers(recencies), _weighed(weights)
        shares = [weights[part] / _STEPS for part in weighed]
        chosen = [scorers[part] for part in weighed]
        return self._objective.ranker(lambda rows: weighted(standardized(chosen, rows), shares))

    def _scorers(self, recencies: Recencies) -> list[Scorer]:
        """Return the scorers of all parts."""
        return [part.at(recency) for part, recency in zip(self._histories, recencies, strict=True)] + self._popular

    def _record(self, tried: _Tried, number: int, shared: Params) -> TrialRecord:
        weighed = _weighed(tried.weights)
        recencies = (*tried.recencies, *[0.0] * len(self._popular))
        parts = tuple(replace(self._trials[position], recency=recencies[position]) for position in weighed)
        weights = {self._trials[position].algorithm: tried.weights[position] / _STEPS for position in weighed}
        metrics = tried.evaluation.metrics
        return TrialRecord(
            number,
            BLEND,
            {"weights": weights, **shared},
            "complete",
            metrics[self._objective.metric],
            metrics,
            None,
            0.0,
            parts,
            max(part.recency for part in parts),
        )


def _identity(trial: TrialRecord) -> tuple[int, str | None]:
    """Return what tells the models apart: popularity has several of one trial."""
    return trial.number, trial.params.get(POPULARITY_HALF_LIFE)


def _weighed(weights: Weights) -> list[int]:
    """Return the positions of the parts with a weight other than 0."""
    return [position for position, weight in enumerate(weights) if weight]


def candidates(result: SearchResult) -> list[TrialRecord]:
    """Return the best trials of at most MOST_PARTS algorithms, best first.

    At most one is a factor model. All have the half-life of the best trial, because the history of a user is
    stored once, with one set of values.
    """
    best: list[TrialRecord] = []
    for trial in by_score(result.completed):
        fits = trial.algorithm in BLENDED and trial.score and trial.algorithm not in [o.algorithm for o in best]
        if not fits or (best and trial.params.get(HALF_LIFE) != best[0].params.get(HALF_LIFE)):
            continue
        has_factors = any(other.algorithm in FACTORS for other in best)
        # One place is reserved for a factor model: it generalizes where neighbour models cannot.
        if trial.algorithm in FACTORS and has_factors:
            continue
        if trial.algorithm not in FACTORS and not has_factors and len(best) == MOST_PARTS - 1:
            continue
        best.append(trial)
    return best[:MOST_PARTS]


def popularity(result: SearchResult, chosen: Sequence[TrialRecord], half_lives: Sequence[str]) -> list[TrialRecord]:
    """Return the best trial of popularity that goes with the `chosen` parts, once for each half-life."""
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


def _skipped(result: SearchResult, reason: str) -> SearchResult:
    logs.emit(events.ALGORITHM_SKIPPED, algorithm=BLEND, reason=reason)
    return result


class _Block(NamedTuple):
    """Candidates of some users: entry c is the item columns[c] of the user rows[c], with values[p, c] by part p."""

    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    values: NDArray[np.float32]


class WeightSearch:
    """Compares weights on `sample`: first coarsely, then around the best.

    The best items of a user under any weights are among the best of one part. So of each user only the CANDIDATES best
    items of each part are kept, and the parts are scored once.

    The last `n_popular` of the scorers are popularity with different half-lives, of which one may have a weight. They
    are tried beside the best weights of the others, coarsely first.
    """

    def __init__(self, sample: Evaluator, scorers: Sequence[Scorer], task: Task, n_popular: int = 0) -> None:
        self._sample = sample
        self._scorers = scorers
        self._ranker = task.objective.ranker
        self._n_popular = n_popular
        self._seen = task.objective.seen
        self._metric = task.objective.metric
        self._blocks: dict[int, _Block] = {}
        self._scores: dict[Weights, float] = {}

    def best(self) -> Weights:
        n_others, rest = len(self._scorers) - self._n_popular, (0,) * self._n_popular
        for weights in simplex(n_others, 1 if n_others == 2 else _COARSE):
            self._score(weights + rest)
        others = (_STEPS,) if n_others == 1 else self._climb(n_others)[:n_others]
        for share in range(_COARSE, _STEPS, _COARSE):
            for weights in self._with_popularity((*_scaled(others, _STEPS - share), share, *rest[1:])):
                self._score(weights)
        return self._climb(len(self._scorers))

    def _climb(self, n_parts: int) -> Weights:
        """Try the weights around the best ones, of the first `n_parts`, until none are better; return the best."""
        while True:
            best = max(self._scores, key=self._score)
            around = [weights + best[n_parts:] for weights in _around(best[:n_parts])] + self._with_popularity(best)
            new = [weights for weights in around if weights not in self._scores and self._is_allowed(weights)]
            if not new:
                return best
            for weights in new:
                self._score(weights)

    def _with_popularity(self, weights: Weights) -> list[Weights]:
        """Return `weights` with the weight of popularity at each half-life."""
        n_others, most = len(weights) - self._n_popular, max(weights[len(weights) - self._n_popular :], default=0)
        half_lives = range(self._n_popular)
        return [
            weights[:n_others] + tuple(most if half_life == own else 0 for half_life in half_lives)
            for own in half_lives
        ]

    def _is_allowed(self, weights: Weights) -> bool:
        return sum(weight > 0 for weight in weights[len(weights) - self._n_popular :]) <= 1

    def _score(self, weights: Weights) -> float:
        if weights not in self._scores:
            shares = np.array(weights, dtype=np.float32) / _STEPS

            def scorer(rows: Rows) -> Scores:
                block = self._block(rows)
                scores = np.full((len(rows), self._seen.shape[1]), -np.inf, dtype=np.float32)
                scores[block.rows, block.columns] = shares @ block.values
                return scores

            rankings = self._sample.rankings(self._ranker(scorer))
            self._scores[weights] = self._sample.score(rankings, self._metric)
        return self._scores[weights]

    def _block(self, users: Rows) -> _Block:
        """Return the candidates of `users`, kept for all weights."""
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
    """Yield all weights in multiples of `step` with at least two parts above zero."""
    for first in product(range(0, _STEPS + 1, step), repeat=n_parts - 1):
        weights = (*first, _STEPS - sum(first))
        if weights[-1] >= 0 and sum(weight > 0 for weight in weights) >= 2:
            yield weights


def _scaled(weights: Weights, total: int) -> Weights:
    """Return `weights` scaled to whole tenths that add up to `total`; what is left goes to the largest remainders."""
    floors = [weight * total // _STEPS for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda part: -(weights[part] * total % _STEPS))
    for part in by_remainder[: total - sum(floors)]:
        floors[part] += 1
    return tuple(floors)


def _around(weights: Weights) -> Iterator[Weights]:
    """Yield all weights one tenth away from `weights`.

    A tenth moves from one part to another. At least two parts stay above zero.
    """
    for source, target in product(range(len(weights)), repeat=2):
        moved = list(weights)
        moved[source] -= 1
        moved[target] += 1
        if source != target and moved[source] >= 0 and sum(weight > 0 for weight in moved) >= 2:
            yield tuple(moved)

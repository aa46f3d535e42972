"""Train one recommender: with early stopping while searching, for a known number of epochs afterwards.

irspack's `learn_with_optimizer` draws a progress bar on standard output, cannot be interrupted, and scores the best
state a second time; so its few lines are reimplemented here over the same irspack objects.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from svc.training.algorithms.registry import Epochs
from svc.training.evaluation.evaluator import Evaluation, Evaluator, Rankings, Scorer, scorer_of
from svc.training.search.recency import BEYOND_DOUBT, SAMPLE_USERS, Weighing, choose, is_gain
from svc.training.search.screening import SCREENING_STEP
from svc.training.search.warm_start import WarmStart

QUICK_USERS = 2_000
"""Screenings and epochs are judged on at most so many validation users, as judging costs more than an epoch; the score
of a trial always comes from all of them."""


@dataclass(frozen=True, slots=True)
class Evaluators:
    """How trials are scored: `full` on all validation users, `quick` at first and between epochs.

    `brief` compares values of recency, on some of the users of `quick`.
    """

    full: Evaluator
    quick: Evaluator
    brief: Evaluator
    metric: str

    @property
    def screened(self) -> NDArray[np.intp]:
        """The positions of the users of `quick` among those of `full`."""
        return np.searchsorted(self.full.evaluated_users, self.quick.evaluated_users)

    @classmethod
    def of(cls, evaluator: Evaluator, metric: str, seed: int) -> Evaluators:
        quick, brief = evaluator.sample(QUICK_USERS, seed), evaluator.sample(SAMPLE_USERS, seed)
        return cls(evaluator, quick, brief, metric)


@dataclass(frozen=True, slots=True)
class Fitted:
    """`metrics` of the best state, and `epochs` that led there (None for training without epochs).

    `by_user` are the (users,) scores of each judged user whose mean is the trial's score, at this `recency`. `rank_ms`
    are the milliseconds of a single ranking.
    """

    metrics: dict[str, float]
    epochs: int | None
    by_user: NDArray[np.float64] | None = None
    recency: float = 0.0
    rank_ms: float | None = None


class Stop(Exception):
    """Raised by a `check` to end a training: its time is over, or its score is too low to matter."""


def fit(
    recommender: Any,
    epochs: Epochs | None,
    evaluators: Evaluators,
    *,
    seen: sparse.csr_matrix,
    check: Callable[[], None],
    report: Callable[[int, float], None],
    weighing: Callable[[], Weighing] | None = None,
    finish: Callable[[Any], None] = lambda _: None,
) -> Fitted:
    """Train `recommender` and score it. `check` runs before each epoch, `report(epoch, score)` after each judgement.

    Without epochs the one report is that of the screening, where there are more validation users than that takes.
    Whatever these two raise ends the training. `finish` gets a recommender that was trained without epochs before it
    is scored. With `weighing`, of the trained model, its recency is chosen too.
    """
    check()
    is_sampled = evaluators.full is not evaluators.quick
    if epochs is None:
        recommender.learn()
        finish(recommender)
        check()
        scorer = scorer_of(recommender)
        if weighing is not None:
            return fit_recency(weighing(), evaluators, seen, check, lambda score: report(SCREENING_STEP, score))
        ranked = evaluators.quick.rankings(scorer, seen)
        if is_sampled:
            report(SCREENING_STEP, evaluators.quick.score(ranked, evaluators.metric))
        return _fitted(evaluators, scorer, seen, ranked, None)
    ranked, best_epoch = _fit_epochs(
        recommender, epochs, evaluators, seen=seen, check=check, report=report, keep=is_sampled or weighing is not None
    )
    if weighing is not None:
        recommender.load_state()
        return replace(fit_recency(weighing(), evaluators, seen, check, lambda _: None), epochs=best_epoch)
    if is_sampled:
        recommender.load_state()
    return _fitted(evaluators, scorer_of(recommender), seen, ranked, best_epoch)


def _fitted(
    evaluators: Evaluators, scorer: Scorer, seen: sparse.csr_matrix, ranked: Rankings, epochs: int | None
) -> Fitted:
    """What `scorer` is worth for all users, of whom those of `quick` have been `ranked` by it."""
    evaluation = evaluators.full.complete(scorer, seen, evaluators.quick, ranked)
    return Fitted(evaluation.metrics, epochs, evaluation.by_user(evaluators.metric))


def fit_recency(
    weighing: Weighing,
    evaluators: Evaluators,
    seen: sparse.csr_matrix,
    check: Callable[[], None],
    report: Callable[[float], None],
) -> Fitted:
    """Evaluate a trained model at the recency that suits it; `report` gets its score on the sample.

    The best value on the sample is taken if it is better than the lowest one on all users, by more than chance. Where
    the users of the screening leave no doubt of that, the lowest one is not evaluated on all.
    """
    chosen = choose(weighing, evaluators.brief, evaluators.metric, seen, check)
    if evaluators.full is not evaluators.quick:
        report(chosen.score)

    def evaluate(scorer: Scorer) -> Evaluation:
        check()
        return evaluators.full.evaluate(scorer, seen)

    metric, lowest = evaluators.metric, weighing.values[0]
    if chosen.recency == lowest:
        evaluation = evaluate(weighing.scorer(lowest))
        return Fitted(evaluation.metrics, None, evaluation.by_user(metric), lowest)
    evaluation = evaluate(weighing.at(chosen.recency))
    if evaluators.full is not evaluators.quick:
        check()
        screened = evaluation.by_user(metric)[evaluators.screened]
        others = [evaluators.quick.scores_of_users(scorer, seen, metric) for scorer in weighing.baselines()]
        if all(is_gain(screened, other, BEYOND_DOUBT) for other in others):
            return Fitted(evaluation.metrics, None, evaluation.by_user(metric), chosen.recency)
    baselines = [evaluate(scorer) for scorer in weighing.baselines()]
    if all(is_gain(evaluation.by_user(metric), baseline.by_user(metric)) for baseline in baselines):
        return Fitted(evaluation.metrics, None, evaluation.by_user(metric), chosen.recency)
    return Fitted(baselines[0].metrics, None, baselines[0].by_user(metric), lowest)


def _fit_epochs(
    recommender: Any,
    epochs: Epochs,
    evaluators: Evaluators,
    *,
    seen: sparse.csr_matrix,
    check: Callable[[], None],
    report: Callable[[int, float], None],
    keep: bool,
) -> tuple[Rankings, int]:
    """The rankings of the best epoch, and its number. With `keep` the recommender can go back to its state."""
    recommender.start_learning()
    best, best_score = Rankings(), -math.inf
    best_epoch, without_gain = 0, 0
    for epoch in range(1, epochs.most + 1):
        check()
        recommender.run_epoch()
        if epoch % epochs.every:
            continue
        ranked = evaluators.quick.rankings(scorer_of(recommender), seen)
        score = evaluators.quick.score(ranked, evaluators.metric)
        if score > best_score:
            best, best_score, best_epoch, without_gain = ranked, score, epoch, 0
            if keep:
                recommender.save_state()
        else:
            without_gain += 1
            if without_gain >= epochs.patience:
                break
        report(epoch, score)
    return best, best_epoch


def refit(recommender: Any, epochs: int | None, start: WarmStart | None = None) -> Any:
    """Train `recommender` for good, `epochs` times where it has epochs, and return it; less often from a `start`."""
    if epochs is None:
        return recommender.learn()
    recommender.start_learning()
    if start is not None:
        start.place(recommender)
        epochs = start.epochs(epochs)
    for _ in range(epochs):
        recommender.run_epoch()
    return recommender

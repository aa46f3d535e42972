"""Measure how reliable the scores of a search are: their intervals, the winner's lead, and scores by groups.

Intervals come from a bootstrap over the evaluated users. If a trial was chosen by its score on the same users, its
interval is corrected for that choice (see judging/intervals.py). This needs the scores for each user, which the search
keeps only for the trials of its process, up to a limit of memory. If another process trained the best trial of one of
the two best algorithms, that trial is trained again here. All other trials without scores for each user count as
independent.

If the split has test users, the lead is measured on them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svc import events, logs
from svc.errors import FeatureRidgeFailed
from svc.model.recommenders.base import Scorer
from svc.training.fitting.trial import TrialRecord
from svc.training.judging.evaluator import DIGITS, ModelEvaluation, Ranker
from svc.training.judging.intervals import CONFIDENCE, Change, Choice, interval, lead, plain_lead
from svc.training.judging.metrics import PER_USER, TrainingCounts, breakdown, mean_popularity
from svc.training.judging.rankers import ServedRanker
from svc.training.judging.search_result import SearchResult, by_score
from svc.training.judging.task import Task

Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class WinnerMeasurements:
    """Figures about the reliability of scores, for the header, and objects that later steps of a training need.

    - `evaluation` has fields for the block `evaluation` of the header.
    - `intervals` has the interval of the best trial of each algorithm, if the scores for each user are known.
    - `winner` ranks by the winner, trained on the training part of the split. It is None if this training failed.
    - `choice` is the table of trials with their scores for each user (see `Choice`). It is None if the winner's scores
      are missing.
    """

    evaluation: Mapping[str, Any] = field(default_factory=dict)
    intervals: Mapping[str, list[float]] = field(default_factory=dict)
    winner: ServedRanker | None = None
    choice: Choice | None = None


def measure_winner(task: Task, result: SearchResult) -> WinnerMeasurements:
    """Measure the reliability of the scores in `result`, and log the winner's interval and lead."""
    seed = task.loaded.recipe.training.split.seed
    winner, full, by_trial = result.best, task.holdout.evaluators.full, dict(result.by_user)
    # Before the winner is trained, because memory may be too small for both models.
    runner_up = _judge_runner_up(task, result, by_trial)
    trained = _train(task, winner) if result.trained is None else result.trained
    ranker = None if trained is None else task.holdout.ranker_of(trained, winner)
    judged = None
    if ranker is not None:
        judged = result.evaluation or full.evaluate(ranker)
        by_trial.setdefault(winner.number, judged.scores[task.holdout.metric])
    choice = _choice(result, by_trial)
    spans = dict(_spans(result, by_trial, choice, seed))
    evaluation: dict[str, Any] = {
        "n_scored_users": len(full.evaluated_users),
        "n_users": task.split.train.shape[0],
        "confidence": CONFIDENCE,
    }
    if choice is not None:
        evaluation["interval"] = spans[winner.algorithm]
        stretch = choice.stretch(seed=seed, confidence=CONFIDENCE)
        evaluation["chosen_among"] = {
            "trials": len(choice.algorithms),
            "unknown": choice.n_unknown,
            "stretch": round(stretch, DIGITS),
        }
    if ranker is not None and judged is not None:
        evaluation |= _popularity_and_breakdown(task, judged) | _winner_on_test(task, ranker, runner_up)
    if task.split.test is None and choice is not None:
        evaluation |= _lead(result, choice, seed)
    _emit(task, winner, evaluation)
    return WinnerMeasurements(evaluation, spans, ranker, choice)


def _choice(result: SearchResult, by_trial: Mapping[int, Scores]) -> Choice | None:
    """Return the complete trials as a `Choice`, or None if the winner's scores for each user are missing.

    `by_trial` has the scores for each user, (users,), by trial number.
    """
    if result.best.number not in by_trial:
        return None
    ranked = by_score(result.completed)
    trials = [trial for trial in ranked if trial.number in by_trial]
    # Equal parameters give equal scores, so a repeated trial is no further choice.
    n_unknown = len(_different(ranked) - _different(trials))
    scores = np.column_stack([by_trial[trial.number] for trial in trials])
    carried = 1.0 if result.reused is None else result.reused.stretch
    return Choice(scores, [trial.algorithm for trial in trials], n_unknown, carried=carried)


def _different(trials: Sequence[TrialRecord]) -> set[str]:
    """Return a key for each distinct pair of algorithm and parameters. The sampler may suggest the same pair twice."""
    return {json.dumps([trial.algorithm, trial.params], sort_keys=True) for trial in trials}


def _spans(
    result: SearchResult, by_trial: Mapping[int, Scores], choice: Choice | None, seed: int
) -> Iterator[tuple[str, list[float]]]:
    """Yield the interval of the best trial of each algorithm, as (algorithm, [low, high]).

    Trials whose scores for each user are missing are left out. Without a `choice`, all trials are left out. The
    winner's interval is corrected for the choice among all trials. The interval of another algorithm is corrected for
    the choice among the trials of that algorithm.
    """
    for name, trial in result.best_per_algorithm.items():
        if choice is not None and trial.number in by_trial:
            chosen = choice if trial.number == result.best.number else choice.among(name)
            yield name, _round_all(interval(by_trial[trial.number], seed=seed, choice=chosen))


def _train(task: Task, trial: TrialRecord) -> Scorer | None:
    """Train `trial` again on the training part of the split, or return None if feature weights cannot be solved for."""
    try:
        return task.train_on_split(trial)
    except FeatureRidgeFailed:
        return None


def _lead(result: SearchResult, choice: Choice, seed: int) -> dict[str, Any]:
    """Return the winner's lead over the best trial of the next algorithm on the validation users, for the header.

    Return nothing if there is no other algorithm, or if the scores of that trial for each user are missing.
    """
    names = list(result.best_per_algorithm)
    # `runner_up` is the best of the trials with scores for each user, which need not be the second-best algorithm.
    if len(names) < 2 or names[1] not in choice.algorithms or choice.algorithms[choice.runner_up] != names[1]:
        return {}
    return {"lead": _change_fields(names[1], lead(choice, seed=seed), "validation")}


def _change_fields(over: str, change: Change, users: str) -> dict[str, Any]:
    return {
        "over": over,
        "change": round(change.value, DIGITS),
        "interval": _round_all((change.low, change.high)),
        "more_than_chance": change.low > 0.0,
        "users": users,
    }


def _judge_runner_up(task: Task, result: SearchResult, by_trial: dict[int, Scores]) -> tuple[str, Scores] | None:
    """Return the second-best algorithm, and the scores of its best trial for each test user, (users,).

    If the scores of this trial for each validation user are missing in `by_trial`, add them. Return None if there is no
    other algorithm, if there are no test users, or if the trial cannot be trained again.
    """
    # Best first, so the second is the runner-up.
    trial = next(islice(result.best_per_algorithm.values(), 1, None), None)
    if trial is None or (task.split.test is None and trial.number in by_trial):
        return None
    trained = _train(task, trial)
    if trained is None:
        return None
    full, metric, ranker = task.holdout.evaluators.full, task.holdout.metric, task.holdout.ranker_of(trained, trial)
    if trial.number not in by_trial:
        by_trial[trial.number] = full.evaluate(ranker).scores[metric]
    if task.split.test is None:
        return None
    return trial.algorithm, full.of(task.split.test).evaluate(ranker).scores[metric]


def _winner_on_test(task: Task, ranker: Ranker, others: tuple[str, Scores] | None) -> dict[str, Any]:
    """Return the winner's scores on the test users, and its lead over the runner-up on them, if there is one.

    Return nothing without test users. The intervals need no correction, because no trial was chosen by scores on these
    users.
    """
    if task.split.test is None:
        return {}
    seed = task.loaded.recipe.training.split.seed
    evaluator = task.holdout.evaluators.full.of(task.split.test)
    evaluation = evaluator.evaluate(ranker)
    scores = evaluation.scores[task.holdout.metric]
    measured: dict[str, Any] = {
        "test": {
            **{name: evaluation.metrics[name] for name in PER_USER},
            "n_scored_users": len(evaluator.evaluated_users),
            "interval": _round_all(interval(scores, seed=seed)),
        }
    }
    if others is not None:
        name, runner_up = others
        measured["lead"] = _change_fields(name, plain_lead(scores, runner_up, seed=seed), "test")
    return measured


def _popularity_and_breakdown(task: Task, evaluation: ModelEvaluation) -> dict[str, Any]:
    """Return the mean popularity of held-out and of training items, and the winner's figures by groups."""
    train, full = task.split.train, task.holdout.evaluators.full
    popularity = np.bincount(train.indices, minlength=train.shape[1])
    means = {
        name: _round(mean_popularity(items, popularity))
        for name, items in (("held_out", full.heldout.indices), ("trained", train.indices))
    }
    evaluated = full.offset + full.evaluated_users
    met = (train[evaluated] != 0).astype(np.float32) if task.data.interactions.divides_rows else None
    training = TrainingCounts(np.diff(train.indptr)[evaluated], popularity, train.shape[0], met)
    rows = breakdown(evaluation.rankings, evaluation.truth, training, seed=task.loaded.recipe.training.split.seed)
    groups = [{name: _round(value) for name, value in row.items()} for row in rows]
    return {"mean_popularity": means, "breakdown": groups}


def _round(value: object) -> object:
    return round(value, DIGITS) if isinstance(value, float) else value


def _round_all(values: tuple[float, float]) -> list[float]:
    return [round(value, DIGITS) for value in values]


def _emit(task: Task, winner: TrialRecord, evaluation: Mapping[str, Any]) -> None:
    logs.emit(
        events.WINNER_MEASURED,
        best_class=winner.algorithm,
        metric=task.holdout.metric,
        score=winner.score,
        interval=evaluation.get("interval"),
        n_scored_users=evaluation["n_scored_users"],
        n_users=evaluation["n_users"],
        lead=evaluation.get("lead"),
        **({"test": evaluation["test"]} if "test" in evaluation else {}),
    )

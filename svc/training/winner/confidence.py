"""How certain the scores of a search are: intervals, the winner's lead, its metrics at other cutoffs and on test users.

Intervals come from a bootstrap over the users who were judged. The search keeps the scores of single users of its own
best trials. A best trial of another process is trained once more here, if time allows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svc import events, logs
from svc.errors import FeatureRidgeFailed
from svc.training.evaluation.breakdown import Known, as_rows, breakdown
from svc.training.evaluation.evaluator import Judged, Scorer
from svc.training.evaluation.intervals import CONFIDENCE, PER_USER, interval, intervals, paired_change
from svc.training.search.objective import refit_winner
from svc.training.search.prepare import Task
from svc.training.search.trials import SearchResult, TrialRecord

CUTOFFS = (5, 10, 20, 50)
MOST_SHARE_OF_SEARCH = 0.25
ALWAYS_ALLOWED_S = 10.0
"""Algorithms ranked third or lower are trained again only within this share of the search time, or these seconds."""
_DIGITS = 12

Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Certainty:
    """What is known of the scores beyond their values, as the header has it.

    `evaluation` joins the header's `evaluation`; `intervals` are those of the best trial of each algorithm. `winner`
    scores for the winner, `trained`, once more on what the search trained on; None where that was not possible.
    """

    evaluation: Mapping[str, Any] = field(default_factory=dict)
    intervals: Mapping[str, list[float]] = field(default_factory=dict)
    winner: Scorer | None = None
    trained: Any = None


def measure_certainty(task: Task, result: SearchResult) -> Certainty:
    """Measure it, and log the winner's interval and lead."""
    seed = task.loaded.recipe.training.split.seed
    scores = dict(_scores_of_users(task, result))
    spans = {name: _rounded(interval(found, seed=seed)) for name, found in scores.items()}
    winner = result.best
    judged = task.objective.judge.full.judged
    evaluation: dict[str, Any] = {
        "n_scored_users": len(judged),
        "n_users": task.split.train.shape[0],
        "confidence": CONFIDENCE,
    }
    if winner.algorithm in spans:
        evaluation["interval"] = spans[winner.algorithm]
    lead = _lead(result, scores, seed)
    if lead:
        evaluation["lead"] = lead
    trained = _train(task, winner)
    scorer = None if trained is None else task.objective.scorer(trained, winner)
    if scorer is not None:
        evaluation |= _winner_again(task, scorer)
        evaluation |= _by_recency(task, winner, trained)
    _emit(task, winner, evaluation)
    return Certainty(evaluation, spans, scorer, trained)


def _scores_of_users(task: Task, result: SearchResult) -> Iterator[tuple[str, Scores]]:
    """For each algorithm, best first, the per-user scores of its best trial."""
    allowed_s = max(MOST_SHARE_OF_SEARCH * result.seconds, ALWAYS_ALLOWED_S)
    began = time.monotonic()
    for place, (name, trial) in enumerate(result.best_per_algorithm.items()):
        kept = result.by_user.get(trial.number)
        if kept is None and place > 1 and time.monotonic() - began + trial.seconds > allowed_s:
            continue
        if kept is None:
            trained = _train(task, trial)
            if trained is None:
                continue
            scorer = task.objective.scorer(trained, trial)
            kept = task.objective.judge.full.judge(scorer, task.objective.seen).by_user(task.objective.metric)
        yield name, kept


def _train(task: Task, trial: TrialRecord) -> Any:
    """The model of `trial` on what the search trained on; None where it cannot be trained a second time."""
    try:
        inputs = task.objective
        return refit_winner(task.builder, trial, inputs.decayed(trial.params), inputs.features, inputs.times)
    except FeatureRidgeFailed:
        return None


def _lead(result: SearchResult, scores: Mapping[str, Scores], seed: int) -> dict[str, Any] | None:
    """The winner against the best of the next algorithm, user by user."""
    names = list(result.best_per_algorithm)
    if len(names) < 2 or not {names[0], names[1]} <= scores.keys():
        return None
    change = paired_change(scores[names[0]], scores[names[1]], seed=seed)
    return {
        "over": names[1],
        "change": round(change.value, _DIGITS),
        "interval": _rounded((change.low, change.high)),
        "more_than_chance": change.low > 0.0,
    }


def _winner_again(task: Task, scorer: Scorer) -> dict[str, Any]:
    """The winner, trained once more on what the search trained on: at CUTOFFS, and on users that no trial has seen."""
    seen, full = task.objective.seen, task.objective.judge.full
    cutoffs = [cutoff for cutoff in CUTOFFS if cutoff <= seen.shape[1]]
    found: dict[str, Any] = {}
    if cutoffs:
        found["cutoffs"] = {str(cutoff): at for cutoff, at in full.at_cutoffs(cutoffs, scorer, seen).items()}
    found["breakdown"] = _breakdown(task, full.judge(scorer, seen))
    if task.split.test is not None:
        seed = task.loaded.recipe.training.split.seed
        judge = full.of(task.split.test)
        judged = judge.judge(scorer, seen)
        found["test"] = {
            **{name: judged.metrics[name] for name in PER_USER},
            "n_scored_users": len(judge.judged),
            "interval": _rounded(interval(judged.by_user(task.objective.metric), seed=seed)),
        }
    return found


def _by_recency(task: Task, winner: TrialRecord, trained: Any) -> dict[str, Any]:
    """The winner's score at each recency that was tried, on the sample of users on which it was chosen."""
    objective, order = task.objective, task.objective.order
    values = () if order is None else order.values(winner.algorithm)
    if len(values) < 2:
        return {}
    sample = objective.judge.quick
    scorers = [objective.scorer(trained, replace(winner, recency=value)) for value in values]
    scores = np.stack([sample.judge(one, objective.seen).by_user(objective.metric) for one in scorers], axis=1)
    spans = intervals(scores, seed=task.loaded.recipe.training.split.seed)
    rows = [
        {"recency": value, "score": round(float(mean), _DIGITS), "interval": _rounded(span)}
        for value, mean, span in zip(values, scores.mean(axis=0), spans, strict=True)
    ]
    return {"recency": {"n_users": len(scores), "values": rows}}


def _breakdown(task: Task, judged: Judged) -> list[Mapping[str, Any]]:
    """The winner's figures by activity of the validation users and popularity of the items, as rows."""
    train, full = task.split.train, task.objective.judge.full
    lengths = np.diff(train.indptr)[full.offset + full.judged]
    known = Known(lengths, np.bincount(train.indices, minlength=train.shape[1]), train.shape[0])
    scores = breakdown(judged.rankings, judged.truth, known, seed=task.loaded.recipe.training.split.seed)
    return [{name: _shortened(value) for name, value in row.items()} for row in as_rows(scores)]


def _shortened(value: object) -> object:
    return round(value, _DIGITS) if isinstance(value, float) else value


def _rounded(values: tuple[float, float]) -> list[float]:
    return [round(value, _DIGITS) for value in values]


def _emit(task: Task, winner: TrialRecord, evaluation: Mapping[str, Any]) -> None:
    logs.emit(
        events.WINNER_MEASURED,
        best_class=winner.algorithm,
        metric=task.objective.metric,
        score=winner.score,
        interval=evaluation.get("interval"),
        n_scored_users=evaluation["n_scored_users"],
        n_users=evaluation["n_users"],
        lead=evaluation.get("lead"),
        **({"test": evaluation["test"]} if "test" in evaluation else {}),
    )

"""Whether a new model may go live: compared with the live one and with popularity, user by user.

Both sides of a comparison are judged by the same held-out users, and the interval of their relative difference is a
bootstrap over these users. Where the split sets no test users aside, the new model was chosen by the same users, and
the interval is corrected for that choice. A model may go live when the lower end of each interval reaches the recipe's
bound, and each guarded figure is not further below that of the live model than its guardrail allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from scipy import sparse

from svc import events, logs
from svc.artifact.keys import SigningKeys
from svc.errors import ArtifactError, TrainingError
from svc.recipe.promotion_schema import BASELINE, GUARDED, INCUMBENT, Promotion
from svc.settings import Settings
from svc.training.judging.baselines import ComparedModel, baseline, heldout, live_model
from svc.training.judging.choice import Choice
from svc.training.judging.evaluator import Evaluator, Rankings, Rows
from svc.training.judging.incumbent import Incumbent, counts
from svc.training.judging.intervals import paired_change
from svc.training.judging.rank_cost import rank_ms
from svc.training.judging.task import Task
from svc.training.promotion.refusal import warn_of_tight_bound

_DIGITS = 12
_TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The new model against another one, by the recipe's metric. `change` and its interval are relative.

    `coverage` has the share of the items that stand in some judged user's list, by the new model and by the other.
    """

    name: str
    candidate: float
    other: float
    change: float
    interval: tuple[float, float]
    n_users: int
    scored: Literal["live", "refitted"]
    coverage: tuple[float, float]

    def as_fields(self) -> dict[str, Any]:
        """As the header of the artifact has it."""
        return {
            "name": self.name,
            "candidate": _rounded(self.candidate),
            "other": _rounded(self.other),
            "change": _rounded(self.change),
            "interval": [_rounded(end) for end in self.interval],
            "n_users": self.n_users,
            "scored": self.scored,
        }


class ExcludingRanker(Protocol):
    """Ranks rows of a split, and can leave out more items."""

    def __call__(self, users: Rows, size: int) -> Rankings: ...
    def excluding(self, pairs: sparse.csr_matrix) -> ExcludingRanker: ...


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """The new model, trained on what the search trained on, and the trials that it was chosen from, where they are
    known: their scores are those of the validation users. `rank_ms` is that of the model that was trained on all."""

    ranker: ExcludingRanker
    rank_ms: float
    choice: Choice | None = None

    def choice_by(self, task: Task, evaluator: Evaluator) -> Choice | None:
        """The choice by the users of `evaluator`; None where they are test users, by whom nothing was chosen."""
        if self.choice is None or task.split.test is not None:
            return None
        return self.choice.of_users(
            np.flatnonzero(np.isin(task.holdout.evaluators.full.evaluated_users, evaluator.evaluated_users))
        )


def decide(
    task: Task, rules: Promotion, candidate: Candidate | None, keys: SigningKeys, settings: Settings
) -> dict[str, Any]:
    """The decision about the new model, as the header has it under `promotion`. Raises TrainingError without one."""
    if candidate is None:
        raise TrainingError(
            "the winner cannot be compared: training it a second time failed, because the system for its feature "
            "weights is singular. Raise min_frequency of the feature columns, so that rare values are left out."
        )
    comparisons: list[Comparison] = []
    guardrails: dict[str, dict[str, Any]] = {}
    live = live_model(task, keys, settings) if INCUMBENT in rules.against else None
    if live is not None:
        incumbent, compared = live
        comparisons.append(compare(task, candidate, compared, rules.confidence))
        guardrails = guarded(task, incumbent, comparisons[0], rules) | cost(candidate, incumbent, rules, settings)
    if BASELINE in rules.against:
        comparisons.append(compare(task, candidate, baseline(task), rules.confidence))
    decision = {
        "decision": "promoted" if _is_allowed(comparisons, guardrails, rules) else "refused",
        "mode": rules.mode,
        "metric": task.holdout.metric,
        "min_relative_change": rules.min_relative_change,
        "confidence": rules.confidence,
        "against": [comparison.as_fields() for comparison in comparisons],
        "guardrails": guardrails,
    }
    shown = ("decision", "mode", "metric", "against", "guardrails")
    logs.emit(events.PROMOTION_DECIDED, recipe=task.loaded.recipe.name, **{name: decision[name] for name in shown})
    warn_of_tight_bound(task.loaded.recipe, decision, rules, candidate.choice_by(task, heldout(task)))
    return decision


def compare(task: Task, candidate: Candidate, compared: ComparedModel, confidence: float) -> Comparison:
    """Evaluate the candidate and the compared model by the same users."""
    ranker = candidate.ranker if compared.excluded is None else candidate.ranker.excluding(compared.excluded)
    mine, other = compared.evaluator.evaluate(ranker), compared.evaluator.evaluate(compared.ranker)
    first, second = mine.by_user(task.holdout.metric), other.by_user(task.holdout.metric)
    seed = task.loaded.recipe.training.seed
    choice = candidate.choice_by(task, compared.evaluator)
    change = paired_change(first, second, seed=seed, confidence=confidence, relative=True, choice=choice)
    return Comparison(
        name=compared.name,
        candidate=float(first.mean()),
        other=float(second.mean()),
        change=change.value,
        interval=(change.low, change.high),
        n_users=len(first),
        scored=compared.scored,
        coverage=(mine.metrics["catalog_coverage"], other.metrics["catalog_coverage"]),
    )


def guarded(task: Task, incumbent: Incumbent, against: Comparison, rules: Promotion) -> dict[str, dict[str, Any]]:
    """Each guarded figure of both models, as the header has it. What the live model does not tell is left out."""
    now = counts(task.data.interactions)
    figures: dict[str, tuple[float, Any]] = {"catalog_coverage": against.coverage}
    figures |= {name: (now[name], incumbent.data_stats.get(name)) for name in ("n_users", "n_items")}
    guardrails = {}
    for name in GUARDED:
        guardrail = getattr(rules.guardrails, name)
        candidate, other = figures[name]
        if guardrail is None or not isinstance(other, int | float):
            continue
        change = (candidate - other) / max(other, _TINY)
        guardrails[name] = {
            "candidate": _rounded(candidate),
            "other": _rounded(other),
            "change": _rounded(change),
            "min_relative_change": guardrail.min_relative_change,
            "passed": change >= guardrail.min_relative_change,
        }
    return guardrails


def cost(candidate: Candidate, incumbent: Incumbent, rules: Promotion, settings: Settings) -> dict[str, dict[str, Any]]:
    """The time of a ranking of both models on this machine, as the header has it; empty where none is guarded.

    Left out too where this version of svc cannot answer with the live model.
    """
    guardrail = rules.guardrails.rank_ms
    if guardrail is None:
        return {}
    try:
        model = incumbent.model(settings)
    except ArtifactError:
        return {}
    other = rank_ms(model)
    change = (candidate.rank_ms - other) / max(other, _TINY)
    figures = {"candidate": candidate.rank_ms, "other": other, "change": _rounded(change)}
    bound = guardrail.max_relative_change
    return {"rank_ms": {**figures, "max_relative_change": bound, "passed": change <= bound}}


def _is_allowed(comparisons: list[Comparison], guardrails: Mapping[str, Mapping[str, Any]], rules: Promotion) -> bool:
    proven = all(comparison.interval[0] >= rules.min_relative_change for comparison in comparisons)
    return proven and all(guardrail["passed"] for guardrail in guardrails.values())


def _rounded(value: float) -> float:
    return value if isinstance(value, int) else round(value, _DIGITS)

"""Decide whether a new model may go live, by comparison with the live one and with popularity.

Both models of a comparison are evaluated on the same held-out users. The interval of their relative difference is a
bootstrap over these users. If the split has no test users, the new model won the search by its scores on the same
users, and the interval is corrected for that choice.

A model may go live if the lower end of each interval reaches the recipe's bound, and if no guarded figure has changed
from the live model's by more than its guardrail allows. Without a live model that can be compared, only popularity
counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from svc import events, logs
from svc.artifact.keys import SigningKeys
from svc.errors import ArtifactError, TrainingError
from svc.recipe.schema import BASELINE, INCUMBENT, Promotion
from svc.settings import Settings
from svc.training.judging.comparison import Candidate, ModelComparison, baseline, compare, live_model
from svc.training.judging.evaluator import DIGITS
from svc.training.judging.incumbent import Incumbent
from svc.training.judging.intervals import TINY, percent
from svc.training.judging.rankers import rank_ms
from svc.training.judging.task import Task


def decide(
    task: Task, rules: Promotion, candidate: Candidate | None, keys: SigningKeys, settings: Settings
) -> dict[str, Any]:
    """Compare a new model, the `candidate`, and return the header's block `promotion`. Log the decision.

    Raise TrainingError if `candidate` is None, and ArtifactReadError if there is a live model that cannot be read.
    """
    if candidate is None:
        raise TrainingError(
            "the winner cannot be compared: training it a second time failed, because the system for its feature "
            "weights is singular. Raise min_frequency of the feature columns, so that rare values are left out."
        )
    comparisons: list[ModelComparison] = []
    guardrails: dict[str, dict[str, Any]] = {}
    live = live_model(task, keys, settings) if INCUMBENT in rules.against else None
    if live is not None:
        incumbent, compared = live
        comparisons.append(compare(task, candidate, compared, rules.confidence))
        figures = _counts(task, incumbent, comparisons[0]) | _cost(candidate, incumbent, rules, settings)
        guardrails = check_guardrails(figures, rules)
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
        **({"candidate_with_order": True} if candidate.ordered else {}),
    }
    shown = ("decision", "mode", "metric", "against", "guardrails")
    logs.emit(events.PROMOTION_DECIDED, recipe=task.loaded.recipe.name, **{name: decision[name] for name in shown})
    warn_of_tight_bound(decision, rules)
    return decision


Figures = dict[str, tuple[float, float]]
"""The value of the new model and that of the live one for each guarded figure."""


def _counts(task: Task, incumbent: Incumbent, against: ModelComparison) -> Figures:
    """Return the coverage of both models, and the numbers of users and items of their data.

    `against` is the comparison with the live model.
    """
    now, live = task.data.interactions.counts, incumbent.header["data_stats"]
    counts: Figures = {name: (now[name], live[name]) for name in ("n_users", "n_items")}
    return {"catalog_coverage": against.coverage, **counts}


def _cost(candidate: Candidate, incumbent: Incumbent, rules: Promotion, settings: Settings) -> Figures:
    """Return the milliseconds of a ranking by both models on this machine.

    Return nothing without a guardrail `rank_ms`, or if this version of svc cannot load the live model.
    """
    if rules.guardrails.rank_ms is None:
        return {}
    try:
        return {"rank_ms": (candidate.rank_ms, rank_ms(incumbent.model(settings)))}
    except ArtifactError:
        return {}


def check_guardrails(figures: Figures, rules: Promotion) -> dict[str, dict[str, Any]]:
    """Return `figures` for the header, each with its change, the bound of the change and whether it passes.

    Figures without a guardrail in the recipe are left out.
    """
    guardrails = {}
    for name, (candidate, other) in figures.items():
        guardrail = getattr(rules.guardrails, name)
        if guardrail is None:
            continue
        # A live value of 0, such as no coverage, makes the change huge instead of ending the training.
        change = (candidate - other) / max(other, TINY)
        [(key, bound)] = guardrail.model_dump().items()
        guardrails[name] = {
            "candidate": round(candidate, DIGITS),
            "other": round(other, DIGITS),
            "change": round(change, DIGITS),
            key: bound,
            # A change equal to its bound passes, so that a bound of 0 means "not worse".
            "passed": change <= bound if key == "max_relative_change" else change >= bound,
        }
    return guardrails


def _is_allowed(
    comparisons: list[ModelComparison], guardrails: Mapping[str, Mapping[str, Any]], rules: Promotion
) -> bool:
    reach_bound = all(comparison.interval[0] >= rules.min_relative_change for comparison in comparisons)
    return reach_bound and all(guardrail["passed"] for guardrail in guardrails.values())


_OPPONENTS = {INCUMBENT: "the live {live}", BASELINE: "popularity"}
_GUARDED = {"catalog_coverage": "coverage", "n_users": "users", "n_items": "items", "rank_ms": "time of a ranking"}


def refusal(decision: Mapping[str, Any], recipe_file: Path, artifact: str, live: str | None) -> str:
    """Return the reasons of a refusal as one sentence, with the command that overrides it.

    `artifact` is the refused file. `live` is the live version, or None.
    """
    sha8 = artifact.rpartition(".")[0].rpartition(".")[2]
    stays = f"{live} stays live" if live else "no version is live"
    way_out = f"`svc promote {recipe_file} {sha8}` overrides"
    return f"{', '.join(_reasons(decision, live))}; {stays}; {way_out}"


def _reasons(decision: Mapping[str, Any], live: str | None) -> Iterator[str]:
    bound = decision["min_relative_change"]
    for comparison in decision["against"]:
        low, high = comparison["interval"]
        if low < bound:
            opponent = _OPPONENTS[comparison["name"]].format(live=live or "model")
            change = f"{decision['metric']} {percent(comparison['change'])} ({percent(low)} to {percent(high)})"
            yield f"{change} against {opponent}"
    for name, guardrail in decision["guardrails"].items():
        if not guardrail["passed"]:
            yield f"{_GUARDED[name]} {percent(guardrail['change'])}"


def warn_of_tight_bound(decision: Mapping[str, Any], rules: Promotion) -> None:
    """Warn if `min_relative_change` is so tight that a model equal to the live one would be refused.

    The check uses the interval of the comparison with the live model. Without one, there is no warning.
    """
    live = next((compared for compared in decision["against"] if compared["name"] == INCUMBENT), None)
    if live is None:
        return
    reach = live["change"] - live["interval"][0]
    # The reach is 0 for the same model, and above 1 for scores near 0.
    if not 0 < reach < 1 or rules.min_relative_change <= -reach:
        return
    message = (
        f"the interval against the live model reaches {reach:.1%} below the change, over {live['n_users']} judged "
        f"users: a model that is equal to the live one is refused; write {math.floor(-reach * 1000) / 1000:g} or less, "
        "or hold out more users"
    )
    logs.emit(events.RECIPE_WARNING, code="promotion_bound", field="promotion.min_relative_change", message=message)

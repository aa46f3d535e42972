"""Explain a refusal in one sentence, and warn of a bound that no model could pass."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from svc import events, logs
from svc.recipe.promotion_schema import INCUMBENT, Promotion
from svc.recipe.schema import Recipe
from svc.training.judging.intervals import Choice, paired_change

_OPPONENTS = {INCUMBENT: "the live {live}", "TopPop": "popularity"}
_GUARDED = {"catalog_coverage": "coverage", "n_users": "users", "n_items": "items", "rank_ms": "time of a ranking"}


def refusal(decision: Mapping[str, Any], recipe_file: Path, artifact: str, live: str | None) -> str:
    """Return the reasons of a refusal as one sentence. `artifact` is the refused file, `live` the live version."""
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
            change = f"{decision['metric']} {_percent(comparison['change'])} ({_percent(low)} to {_percent(high)})"
            yield f"{change} against {opponent}"
    for name, guardrail in decision["guardrails"].items():
        if not guardrail["passed"]:
            yield f"{_GUARDED[name]} {_percent(guardrail['change'])}"


class _Precision(NamedTuple):
    """The distance from the change of a comparison down to the lower end of its interval, and its number of users."""

    reach: float
    n_users: int
    compared_with: str


def warn_of_tight_bound(recipe: Recipe, decision: Mapping[str, Any], rules: Promotion, choice: Choice | None) -> None:
    """Warn if `min_relative_change` is so tight that a model equal to the live one would be refused.

    The check uses the interval of the comparison with the live model. A first run has no live model, and uses the
    interval of the winner's lead over the next algorithm. `choice` is the choice on the evaluated users, if known.
    """
    precision = _precision(recipe, decision, rules, choice)
    if precision is None or not 0 < precision.reach < 1:  # 0 for the same model, above 1 for scores near 0
        return
    if rules.min_relative_change <= -precision.reach:
        return
    message = (
        f"the interval against {precision.compared_with} reaches {precision.reach:.1%} below the change, over "
        f"{precision.n_users} judged users: a model that is equal to the live one is refused; "
        f"write {math.floor(-precision.reach * 1000) / 1000:g} or less, or hold out more users"
    )
    logs.emit(events.RECIPE_WARNING, code="promotion_bound", field="promotion.min_relative_change", message=message)


def _precision(
    recipe: Recipe, decision: Mapping[str, Any], rules: Promotion, choice: Choice | None
) -> _Precision | None:
    for comparison in decision["against"]:
        if comparison["name"] == INCUMBENT:
            reach = comparison["change"] - comparison["interval"][0]
            return _Precision(reach, comparison["n_users"], "the live model")
    if INCUMBENT not in rules.against or choice is None or len(set(choice.algorithms)) < 2:
        return None
    first, second = choice.scores[:, 0], choice.scores[:, choice.runner_up]
    seed, confidence = recipe.training.seed, rules.confidence
    change = paired_change(first, second, seed=seed, confidence=confidence, relative=True, choice=choice)
    return _Precision(change.value - change.low, len(first), "the next algorithm")


def _percent(change: float) -> str:
    return f"{change:+.1%}"

"""The promotion decision in the report: a sentence, each comparison with its interval, and the guardrails."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_SCORED = {
    "live": "as it is served: it was trained before all that is held out",
    "refitted": "its class and parameters, trained on the same data as the new model",
}
_OPPONENTS = {"incumbent": "the live model", "TopPop": "popularity"}


def decision_sentences(header: Mapping[str, Any]) -> list[str]:
    """Return the decision and the rule behind it, or nothing for a recipe without `promotion`."""
    promotion = header.get("promotion")
    if not promotion:
        return []
    promoted = promotion["decision"] == "promoted"
    verdict = "may go live" if promoted else "is refused"
    if promotion["mode"] == "report" and not promoted:
        verdict += "; the recipe only reports, so this does not keep it from going live"
    bound, share = f"{promotion['min_relative_change']:+.1%}", f"{promotion['confidence']:.0%}"
    lines = [
        f"The new model {verdict}.",
        f"Relative change of {promotion['metric']}, measured on the same held-out users; the lower end of each {share}"
        f" interval must reach {bound}.",
    ]
    if not promotion["against"]:
        lines.append("There was nothing to compare with.")
    return lines


def comparison_rows(header: Mapping[str, Any]) -> Iterable[Sequence[object]]:
    """Yield a row for each comparison: opponent, both scores, change, interval, users, how the opponent was scored."""
    for comparison in header["promotion"]["against"]:
        yield (
            _OPPONENTS.get(comparison["name"], comparison["name"]),
            comparison["candidate"],
            comparison["other"],
            percent(comparison["change"]),
            f"{percent(comparison['interval'][0])} to {percent(comparison['interval'][1])}",
            comparison["n_users"],
            _SCORED.get(comparison["scored"], comparison["scored"]),
        )


def guardrail_rows(header: Mapping[str, Any]) -> Iterable[Sequence[object]]:
    """Yield a row for each guardrail: both values, change, the bound of the change, and whether it passes."""
    for name, guardrail in header["promotion"]["guardrails"].items():
        passed = "passes" if guardrail["passed"] else "refuses the model"
        is_cost = "max_relative_change" in guardrail
        bound = guardrail["max_relative_change"] if is_cost else guardrail["min_relative_change"]
        allowed = f"{'at most' if is_cost else 'at least'} {percent(bound)}"
        yield name, guardrail["candidate"], guardrail["other"], percent(guardrail["change"]), allowed, passed


def percent(change: float) -> str:
    """Return a relative change as a percentage, or as words above a thousandfold."""
    return f"{change:+.1%}" if abs(change) < 1000 else "more than a thousandfold"

"""The promotion decision in the report: a sentence, each comparison with its interval, and the guardrails."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_SCORED = {
    "live": "as it is served: it was trained before all that is held out",
    "refitted": "its class and parameters, trained on the same data as the new model",
}
_OPPONENTS = {"incumbent": "the live model", "TopPop": "popularity"}


def decision_told(header: Mapping[str, Any]) -> str:
    """The decision in a sentence and the rule behind it, as HTML; "" for a recipe without `promotion`."""
    found = header.get("promotion")
    if not found:
        return ""
    promoted = found["decision"] == "promoted"
    verdict = "may go live" if promoted else "is refused"
    if found["mode"] == "report" and not promoted:
        verdict += "; the recipe only reports, so this does not keep it from going live"
    bound, share = f"{found['min_relative_change']:+.1%}", f"{found['confidence']:.0%}"
    lines = [
        f"The new model {verdict}.",
        f"Relative change of {found['metric']}, measured on the same held-out users; the lower end of each {share}"
        f" interval must reach {bound}.",
    ]
    if not found["against"]:
        lines.append("There was nothing to compare with.")
    style = "" if promoted else ' class="warn"'
    return "".join(f"<p{style if place == 0 else ''}>{html.escape(line)}</p>" for place, line in enumerate(lines))


def comparison_rows(header: Mapping[str, Any]) -> Iterable[Sequence[object]]:
    """One row per comparison: the opponent, both scores, change, interval, users, how the opponent was scored."""
    for one in header["promotion"]["against"]:
        yield (
            _OPPONENTS.get(one["name"], one["name"]),
            one["candidate"],
            one["other"],
            percent(one["change"]),
            f"{percent(one['interval'][0])} to {percent(one['interval'][1])}",
            one["n_users"],
            _SCORED.get(one["scored"], one["scored"]),
        )


def guardrail_rows(header: Mapping[str, Any]) -> Iterable[Sequence[object]]:
    """One row per guardrail: both values, change, the largest one that is allowed, and whether it passes."""
    for name, one in header["promotion"]["guardrails"].items():
        passed = "passes" if one["passed"] else "refuses the model"
        is_cost = "max_relative_change" in one
        bound = one["max_relative_change"] if is_cost else one["min_relative_change"]
        allowed = f"{'at most' if is_cost else 'at least'} {percent(bound)}"
        yield name, one["candidate"], one["other"], percent(one["change"]), allowed, passed


def percent(change: float) -> str:
    """A relative change; figures beyond a thousandfold say nothing but that."""
    return f"{change:+.1%}" if abs(change) < 1000 else "more than a thousandfold"

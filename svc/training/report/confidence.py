"""How certain the scores of a training are, in words: the headline, the winner's lead, and warnings about both."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

FEW_USERS = 200
"""With fewer users than this an interval is too short: few users hardly ever hold those whose scores are rare."""


def headline(header: Mapping[str, Any], metric: str) -> str:
    """The winner's score, as HTML: that of users by whom nothing was chosen, where there are such."""
    evaluation, test = header["evaluation"], header["evaluation"].get("test")
    score, lines = header["best_score"], []
    if test is not None:
        score = test[header["metric"]]
        lines.append(f"on {test['n_scored_users']:,} test users that no trial has seen")
        lines.append(f"{evaluation['confidence']:.0%} interval {span(test['interval'])}")
        lines.append(f"{header['best_score']:.4f} on the validation users, by whose scores it was chosen")
    if "interval" in evaluation:
        lines.append(f"{evaluation['confidence']:.0%} interval {span(evaluation['interval'])}{_chosen(evaluation)}")
    if "n_scored_users" in evaluation:
        lines.append(f"{evaluation['n_scored_users']:,} of {evaluation['n_users']:,} users were scored")
    large = f'<p class="score">{score:.4f} <small>{html.escape(metric)}</small></p>'
    return large + "".join(f"<p>{html.escape(line)}</p>" for line in lines)


def _chosen(evaluation: Mapping[str, Any]) -> str:
    """What the interval says of the choice; nothing for headers that were written before it was corrected for it."""
    among = evaluation.get("chosen_among")
    if among is None or among["trials"] + among["unknown"] < 2:
        return ""
    return (
        f", corrected for the choice among {among['trials'] + among['unknown']:,} trials; not corrected is that the"
        " search took parameters, epochs and weights of a blend from scores of the same users (split.test avoids it)"
    )


def lead_told(header: Mapping[str, Any], metric: str) -> str:
    """The winner's lead over the next algorithm in a sentence, as HTML; "" where there is no other."""
    lead = header["evaluation"].get("lead")
    if lead is None:
        return ""
    told = "more than chance" if lead["more_than_chance"] else "no more than chance: both are equally good here"
    users = {"test": " on the test users", "validation": ", corrected for the choice of both"}.get(
        lead.get("users"), ""
    )
    ahead = f"Ahead of {lead['over']} by {lead['change']:.4f} {metric}"
    if lead["change"] < 0.0:
        ahead = f"Behind {lead['over']} by {-lead['change']:.4f} {metric}"
    return f"<p>{html.escape(ahead)} (interval {span(lead['interval'])}){html.escape(users)}: {told}.</p>"


def popularity_told(header: Mapping[str, Any]) -> str:
    """How popular the held-out items are beside those that trained, as HTML; "" for headers that do not say it."""
    means = header["evaluation"].get("mean_popularity")
    if means is None:
        return ""
    return (
        f"<p>What is held out has items of {means['held_out']:,.1f} training users in the mean, what trained"
        f" {means['trained']:,.1f}. Data of another time may differ more: see split.scheme.</p>"
    )


def doubts(header: Mapping[str, Any]) -> list[str]:
    """Warnings about scores that say less than they seem to."""
    evaluation, warnings = header["evaluation"], []
    lead, test = evaluation.get("lead"), evaluation.get("test", {})
    if lead is not None and not lead["more_than_chance"]:
        warnings.append(f"The winner's lead over {lead['over']} may be chance.")
    n_users = test.get("n_scored_users", evaluation.get("n_scored_users", FEW_USERS))
    if n_users < FEW_USERS:
        warnings.append(f"Only {n_users} users were scored: with fewer than {FEW_USERS} the intervals are too narrow.")
    return warnings


def span(interval: Sequence[float]) -> str:
    """The two ends."""
    return f"{interval[0]:.4f} to {interval[1]:.4f}"

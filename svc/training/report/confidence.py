"""Texts about the certainty of scores: the headline, the winner's lead, and warnings about both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from svc.recipe.algorithms import short_name

FEW_USERS = 200
"""With fewer scored users an interval is too short, because users with rare scores are missing from the sample."""


class Headline(NamedTuple):
    """The winner's score, and sentences about its certainty."""

    score: float
    lines: Sequence[str]


def headline(header: Mapping[str, Any]) -> Headline:
    """Return the score on the test users, or the best score of the search without test users, and its certainty."""
    evaluation, test = header["evaluation"], header["evaluation"].get("test")
    score, lines = header["best_score"], []
    if test is not None:
        score = test[header["metric"]]
        lines.append(f"on {test['n_scored_users']:,} test users that no trial has seen")
        lines.append(f"{evaluation['confidence']:.0%} interval {span(test['interval'])}")
        lines.append(f"{header['best_score']:.4f} on the validation users, by whose scores it was chosen")
    if "interval" in evaluation:
        lines.append(f"{evaluation['confidence']:.0%} interval {span(evaluation['interval'])}{_correction(evaluation)}")
    if "n_scored_users" in evaluation:
        lines.append(f"{evaluation['n_scored_users']:,} of {evaluation['n_users']:,} users were scored")
    return Headline(score, lines)


def _correction(evaluation: Mapping[str, Any]) -> str:
    """Return the words about the interval's correction for the choice among trials.

    Return "" if there were fewer than two trials, or if the header is of an earlier version.
    """
    choice = evaluation.get("chosen_among")
    if choice is None or choice["trials"] + choice["unknown"] < 2:
        return ""
    return (
        f", corrected for the choice among {choice['trials'] + choice['unknown']:,} trials; not corrected is that the"
        " search took parameters, epochs and weights of a blend from scores of the same users (split.test avoids it)"
    )


def lead_sentences(header: Mapping[str, Any], metric: str) -> list[str]:
    """Return a sentence about the winner's lead over the next algorithm, or nothing without another algorithm."""
    lead = header["evaluation"].get("lead")
    if lead is None:
        return []
    verdict = "more than chance" if lead["more_than_chance"] else "no more than chance: both are equally good here"
    users = {"test": " on the test users", "validation": ", corrected for the choice of both"}.get(
        lead.get("users"), ""
    )
    rival = short_name(lead["over"])
    ahead = f"Ahead of {rival} by {lead['change']:.4f} {metric}"
    if lead["change"] < 0.0:
        ahead = f"Behind {rival} by {-lead['change']:.4f} {metric}"
    return [f"{ahead} (interval {span(lead['interval'])}){users}: {verdict}."]


def popularity_sentences(header: Mapping[str, Any]) -> list[str]:
    """Return the popularity of held-out and training items, or nothing for headers without these figures."""
    means = header["evaluation"].get("mean_popularity")
    if means is None:
        return []
    return [
        f"What is held out has items of {means['held_out']:,.1f} training users in the mean, what trained"
        f" {means['trained']:,.1f}. Data of another time may differ more: see split.scheme."
    ]


def warnings(header: Mapping[str, Any]) -> list[str]:
    """Return warnings to read before trusting the model or its scores."""
    texts, stats = [], header["data_stats"]
    if header["best_class"] == "TopPopRecommender":
        texts.append(
            "Popularity alone won: nobody gets personal recommendations. Look for more data or a longer search."
        )
    if stats["n_heldout_interactions"] < 1000:
        texts.append(f"Only {stats['n_heldout_interactions']} interactions were held out: scores are uncertain.")
    if header["tuning"]["failed"]:
        texts.append(f"{header['tuning']['failed']} trials failed; the log says why.")
    texts += doubts(header)
    by_rule = stats.get("dropped_by_where", 0) + stats.get("hidden_by_rule", 0)
    n_unusable = stats["drop_count"] - by_rule
    if n_unusable > 0.2 * max(stats["n_rows"] + n_unusable, 1):
        texts.append(f"Cleansing dropped {n_unusable:,} rows.")
    if stats.get("future_times"):
        texts.append(f"{stats['future_times']:,} rows have a time that is later than the start of the training.")
    return texts


def doubts(header: Mapping[str, Any]) -> list[str]:
    """Return warnings about a lead that may be chance and about intervals that are too narrow."""
    evaluation, texts = header["evaluation"], []
    lead, test = evaluation.get("lead"), evaluation.get("test", {})
    if lead is not None and not lead["more_than_chance"]:
        texts.append(f"The winner's lead over {lead['over']} may be chance.")
    n_users = test.get("n_scored_users", evaluation.get("n_scored_users", FEW_USERS))
    if n_users < FEW_USERS:
        texts.append(f"Only {n_users} users were scored: with fewer than {FEW_USERS} the intervals are too narrow.")
    return texts


def span(interval: Sequence[float]) -> str:
    """Return both ends of an interval as text, or "" for an empty sequence: the interval was not measured."""
    return f"{interval[0]:.4f} to {interval[1]:.4f}" if interval else ""

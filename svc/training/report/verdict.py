"""The verdict at the top of the report: the gain over popularity, and a weakness in the long tail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_BASELINE = "TopPopRecommender"
_WEAK = 0.5
"""The verdict names the tail if its score is below this share of the score among the most popular items."""


def verdict(header: Mapping[str, Any], metric: str) -> str:
    """Return the outcome in at most two sentences."""
    return " ".join(filter(None, (_beside_popularity(header, metric), _weakness(header))))


def _beside_popularity(header: Mapping[str, Any], metric: str) -> str:
    if header["best_class"] == _BASELINE:
        return "Popularity alone won: everybody is recommended the same items, without those that they chose."
    score = header["best_score"]
    popularity = header["tuning"]["best_per_algorithm"].get(_BASELINE, {}).get("score")
    if not popularity:
        return f"The best model scores {score:.3f} {metric}; without TopPop among the algorithms nothing is beside it."
    change = score / popularity - 1
    sentence = f"{abs(change):.1%} {'better' if change > 0 else 'worse'} than popularity"
    span = header["evaluation"].get("interval")
    if span:
        low, high = (end / popularity - 1 for end in span)
        sentence += f" ({low:.1%} to {high:.1%}, by the interval of its score)"
    return f"{sentence}: {score:.3f} against {popularity:.3f} {metric}."


def _weakness(header: Mapping[str, Any]) -> str:
    """Return a sentence about the long tail, or "" if its score is not low, or missing."""
    name = header["metric"]
    values = {
        row["part"]: row["value"]
        for row in header["evaluation"].get("breakdown", ())
        if row["group"] == "popularity" and row["metric"] == name
    }
    tail, head = values.get("tail"), values.get("head")
    if tail is None or not head or tail >= _WEAK * head:
        return ""
    return f"Weak in the long tail: {tail:.3f} among the rarest items against {head:.3f} among the most popular ones."

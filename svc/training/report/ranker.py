"""The learned order of pages in the report: whether it ships, its gain, and the features that move items."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def ranker_sentences(header: Mapping[str, Any], metric: str) -> str:
    """Return whether the ranker ships, with its cross-validated gain, or "" if none was evaluated."""
    ranker = header.get("ranker")
    if ranker is None:
        return ""
    gain, n_users = ranker["gain"], f"{ranker['n_users']:,}"
    judged = (
        f"On {n_users} validation users, each judged by weights that others fitted, it changes {metric} by"
        f" {gain['value']:+.4f} (95% interval {gain['low']:+.4f} to {gain['high']:+.4f})."
    )
    if ranker["ships"]:
        return f"The 50 best items of the winner are put in a learned order. {judged}"
    return f"A learned order is not better than the winner's by more than chance, so pages keep the latter. {judged}"


def ranker_groups(header: Mapping[str, Any]) -> Mapping[str, float]:
    """Return how far each group of features moves the items of a page, strongest first, or nothing without a ranker."""
    groups: Mapping[str, float] = header.get("ranker", {}).get("groups", {})
    return dict(sorted(groups.items(), key=lambda group: -group[1]))


def weight_rows(header: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """Yield name, group and weight of each feature, the largest absolute weight first."""
    features = header.get("ranker", {}).get("features", ())
    for feature in sorted(features, key=lambda feature: -abs(feature["weight"])):
        yield feature["name"], feature["group"], f"{feature['weight']:+.3f}"

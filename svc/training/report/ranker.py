"""The order of the first page in the report: whether it was learned, what it gains, and what moves items."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def ranker_sentences(header: Mapping[str, Any], metric: str) -> str:
    """Whether the ranker ships, and its gain on users that did not fit it; empty where none was judged."""
    told = header.get("ranker")
    if told is None:
        return ""
    gain, n_users = told["gain"], f"{told['n_users']:,}"
    judged = (
        f"On {n_users} validation users, each judged by weights that others fitted, it changes {metric} by"
        f" {gain['value']:+.4f} (95% interval {gain['low']:+.4f} to {gain['high']:+.4f})."
    )
    if told["ships"]:
        return f"The 50 best items of the winner are put in a learned order. {judged}"
    return f"A learned order is not better than the winner's by more than chance, so pages keep the latter. {judged}"


def ranker_groups(header: Mapping[str, Any]) -> Mapping[str, float]:
    """How far each group of features moves the items of a page, strongest first; empty where nothing ships."""
    groups: Mapping[str, float] = header.get("ranker", {}).get("groups", {})
    return dict(sorted(groups.items(), key=lambda group: -group[1]))


def weight_rows(header: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """Name, group and weight of each feature, the largest weight first."""
    features = header.get("ranker", {}).get("features", ())
    for feature in sorted(features, key=lambda feature: -abs(feature["weight"])):
        yield feature["name"], feature["group"], f"{feature['weight']:+.3f}"

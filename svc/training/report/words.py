"""Texts of the report: definitions of metrics, and whether the model uses the features of the recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_METRICS = {
    "ndcg": "how high the held-out items rank in the list: 1 when they are at its top, less with each place below",
    "map": "the precision of the list down to the place of each held-out item, averaged over these items",
    "recall": "the share of a user's held-out items that the list holds",
    "hit": "the share of users whose list holds at least one held-out item",
    "precision": "the share of the list that are held-out items",
    "catalog_coverage": "the share of all items that are in at least one user's list",
    "entropy": "how evenly items are recommended: higher is more even",
    "gini_index": "how unevenly items are recommended: 0 when all equally often, near 1 when all get the same few",
}


_PLAIN_NAMES = {
    "catalog_coverage": "share of the items that are recommended",
    "appeared_item": "items that are recommended to anybody",
    "gini_index": "inequality among items (Gini)",
    "entropy": "evenness among items (entropy)",
    "hit": "users with a hit",
}


def plain_name(metric: str) -> str:
    """Return the name of a metric on the page, in words if its usual name is specific to a library."""
    return _PLAIN_NAMES.get(metric, metric)


def definitions(header: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (name, definition) of each metric of the evaluation that has one, the search's metric first."""
    searched = str(header["metric"])
    names = [searched, *(name for name in _METRICS if name in header["evaluation"] and name != searched)]
    return [(plain_name(name), _METRICS[name]) for name in names if name in _METRICS]


def feature_sentences(header: Mapping[str, Any]) -> list[str]:
    """Return whether answers depend on the features of the recipe, or nothing for a recipe without features."""
    features = header.get("features")
    if not features:
        return []
    sides = [side for side in ("user", "item") if side in features]
    columns = "; ".join(f"{side}: {', '.join(features[side]['columns'])}" for side in sides)
    use = (
        "The model answers for users and items that training never saw from these features."
        if features.get("active")
        else "The model does not use these features: for users and items that training never saw it has no answer."
    )
    return [use, columns]

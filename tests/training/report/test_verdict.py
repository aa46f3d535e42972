"""The verdict at the top of the report."""

from __future__ import annotations

from typing import Any

import pytest

from svc.training.report.verdict import verdict

HEADER: dict[str, Any] = {
    "best_class": "IALSRecommender",
    "best_score": 0.1065,
    "metric": "ndcg",
    "tuning": {"best_per_algorithm": {"TopPopRecommender": {"score": 0.1}}},
    "evaluation": {
        "interval": [0.1047, 0.1084],
        "breakdown": [
            {"group": "popularity", "part": "head", "metric": "ndcg", "value": 0.283},
            {"group": "popularity", "part": "tail", "metric": "ndcg", "value": 0.002},
        ],
    },
}
BETTER = "6.5% better than popularity (4.7% to 8.4%, by the interval of its score): 0.106 against 0.100 ndcg@20."
WEAK = " Weak in the long tail: 0.002 among the rarest items against 0.283 among the most popular ones."


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, BETTER + WEAK),
        ({"evaluation": {}}, "6.5% better than popularity: 0.106 against 0.100 ndcg@20."),
        ({"best_score": 0.09, "evaluation": {}}, "10.0% worse than popularity: 0.090 against 0.100 ndcg@20."),
        ({"best_class": "TopPopRecommender"}, "Popularity alone won: everybody is recommended the same items"),
        ({"tuning": {"best_per_algorithm": {}}}, "without TopPop among the algorithms nothing is beside it."),
    ],
)
def test_the_verdict_compares_with_popularity_and_names_a_weak_tail(changes: dict[str, Any], expected: str) -> None:
    """Headers of earlier versions give a shorter verdict."""
    assert expected in verdict({**HEADER, **changes}, "ndcg@20")

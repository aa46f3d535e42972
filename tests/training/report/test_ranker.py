"""The learned order of the first page in the report."""

from __future__ import annotations

from typing import Any

from svc.training.report.ranker import ranker_groups, ranker_sentences, weight_rows

GAIN = {"value": 0.0123, "low": 0.0011, "high": 0.02}
SHIPS: dict[str, Any] = {
    "ranker": {
        "ships": True,
        "gain": GAIN,
        "n_users": 3152,
        "groups": {"scores": 0.2, "popularity": 1.1},
        "features": [
            {"name": "score", "group": "scores", "weight": 0.1},
            {"name": "popularity_7d", "group": "popularity", "weight": -1.26},
        ],
    }
}


def test_the_gain_has_its_interval_and_a_verdict() -> None:
    text = ranker_sentences(SHIPS, "ndcg@20")
    assert "are put in a learned order" in text
    assert "On 3,152 validation users" in text
    assert "ndcg@20 by +0.0123 (95% interval +0.0011 to +0.0200)" in text
    stays = {"ranker": {"ships": False, "gain": {**GAIN, "low": -0.001}, "n_users": 300}}
    assert "not better than the winner's by more than chance" in ranker_sentences(stays, "ndcg@20")
    assert (ranker_sentences({}, "ndcg@20"), ranker_groups(stays), list(weight_rows({}))) == ("", {}, [])


def test_the_strongest_groups_and_weights_come_first() -> None:
    assert list(ranker_groups(SHIPS).items()) == [("popularity", 1.1), ("scores", 0.2)]
    assert list(weight_rows(SHIPS)) == [("popularity_7d", "popularity", "-1.260"), ("score", "scores", "+0.100")]

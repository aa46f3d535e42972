"""The intervals, the lead and the test scores in the header."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from svc.artifact.keys import development_keys
from svc.artifact.store import read_verified
from svc.settings import Settings
from tests.training.test_run import Make, run, small_training


def test_the_header_has_intervals_lead_and_test_scores(make_recipe: Make, log: list[dict[str, Any]]) -> None:
    """The header also has the numbers of scored users and of all users."""
    split = {"scheme": "leave_one_out", "test_user_ratio": 0.5, "test": 0.25}
    training = small_training(algorithms=["CosineKNN", "TopPop"], split=split)
    result = run(make_recipe(training=training))
    assert result.artifact is not None
    head = read_verified(result.artifact, development_keys(), Settings())[1].header
    found = head["evaluation"]
    assert (found["n_scored_users"], found["n_users"], found["confidence"]) == (30, 80, 0.95)
    for name, best in head["tuning"]["best_per_algorithm"].items():
        low, high = best["interval"]
        assert low <= best["score"] <= high, name
    assert found["interval"] == head["tuning"]["best_per_algorithm"][head["best_class"]]["interval"]
    names = list(head["tuning"]["best_per_algorithm"])
    assert (found["lead"]["over"], found["lead"]["users"]) == (names[1], "test")
    assert found["lead"]["more_than_chance"] == (found["lead"]["interval"][0] > 0)
    among = found["chosen_among"]
    assert (among["trials"], among["unknown"]) == (head["tuning"]["completed"], 0)
    assert among["stretch"] > 1
    assert set(found["mean_popularity"]) == {"held_out", "trained"}
    assert {"cutoffs", "recency", "diversity"}.isdisjoint(found)
    assert found["test"]["n_scored_users"] == 10
    assert found["test"]["interval"][0] <= found["test"]["ndcg"] <= found["test"]["interval"][1]
    assert [record["event"] for record in log].count("winner_measured") == 1


def header_of(make_recipe: Make, report: Path | None = None, **changes: Any) -> dict[str, Any]:
    result = run(make_recipe(training=small_training(**changes)), report=report)
    assert result.artifact is not None
    head: dict[str, Any] = read_verified(result.artifact, development_keys(), Settings())[1].header
    return head


def test_without_test_users_the_lead_is_measured_on_validation_users(make_recipe: Make) -> None:
    """Both trials were chosen on these users."""
    head = header_of(make_recipe)
    scores = [best["score"] for best in head["tuning"]["best_per_algorithm"].values()]
    found = head["evaluation"]["lead"]
    assert found["users"] == "validation"
    assert found["change"] == pytest.approx(scores[0] - scores[1], abs=1e-9)
    assert found["interval"][0] <= found["change"] <= found["interval"][1]


def test_trials_of_another_process_count_as_unknown(make_recipe: Make) -> None:
    """A resumed search has no scores of users for earlier trials.

    The best trials are trained again and get the same scores. Unknown trials do not shorten the intervals.
    """
    first, second = (header_of(make_recipe, storage_path="s.db", n_trials=8)["evaluation"] for _ in range(2))
    assert first["chosen_among"]["unknown"] == 0
    assert second["chosen_among"]["unknown"] > 0
    counted = [found["chosen_among"]["trials"] + found["chosen_among"]["unknown"] for found in (first, second)]
    assert counted[0] == counted[1]
    assert second["interval"][0] <= first["interval"][0] + 1e-3
    assert second["interval"][1] == first["interval"][1]
    assert second["lead"]["change"] == first["lead"]["change"]
    same = ("ndcg", "breakdown", "n_scored_users")
    assert [first[name] for name in same] == [second[name] for name in same]

"""How sure the scores of a search are, as the header tells."""

from __future__ import annotations

from typing import Any

import pytest

from svc.artifact.keys import development_keys
from svc.artifact.store import read_verified
from svc.settings import Settings
from tests.training.test_run import Make, run, small_training


def test_the_header_says_how_sure_the_scores_are(make_recipe: Make, log: list[dict[str, Any]]) -> None:
    """Intervals, users scored of how many, the lead over the next algorithm, other cutoffs, and test users."""
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
    scores = [best["score"] for best in head["tuning"]["best_per_algorithm"].values()]
    assert found["lead"]["over"] == names[1]
    assert found["lead"]["change"] == pytest.approx(scores[0] - scores[1], abs=1e-9)
    assert found["lead"]["more_than_chance"] == (found["lead"]["interval"][0] > 0)
    assert list(found["cutoffs"]) == ["5", "10", "20"]
    assert found["cutoffs"]["5"]["ndcg"] == pytest.approx(head["best_score"], abs=1e-9)
    assert found["cutoffs"]["20"]["recall"] >= found["cutoffs"]["5"]["recall"]
    assert found["test"]["n_scored_users"] == 10
    assert found["test"]["interval"][0] <= found["test"]["ndcg"] <= found["test"]["interval"][1]
    assert [record["event"] for record in log].count("winner_measured") == 1


def test_scores_of_users_that_another_process_kept_are_measured_again(make_recipe: Make) -> None:
    """A resumed search has no scores of single users; the best are trained once more and agree."""
    loaded = make_recipe(training=small_training(storage_path="s.db"))
    heads = []
    for _ in range(2):
        result = run(loaded)
        assert result.artifact is not None
        heads.append(read_verified(result.artifact, development_keys(), Settings())[1].header)
    assert heads[0]["evaluation"] == heads[1]["evaluation"]

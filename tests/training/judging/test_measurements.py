"""The intervals, the lead and the test scores in the header."""

from __future__ import annotations

from typing import Any

import pytest

from svc.training.judging import measurements
from svc.training.judging.intervals import interval
from tests.training.runs import Log, Make, header, run, small_training


def test_the_header_has_intervals_lead_and_test_scores(make_recipe: Make, log: Log) -> None:
    """The header also has the numbers of scored users and of all users."""
    split = {"scheme": "leave_one_out", "test_user_ratio": 0.5, "test": 0.25}
    training = small_training(algorithms=["CosineKNN", "TopPop"], split=split)
    head = header(run(make_recipe(training=training)).artifact)
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
    (event,) = (record for record in log if record["event"] == "winner_measured")
    assert (event["best_class"], event["metric"]) == (head["best_class"], "ndcg")
    assert event["score"] == head["best_score"]
    for name in ("interval", "n_scored_users", "n_users", "lead", "test"):
        assert event[name] == found[name], name


def test_intervals_are_corrected_for_the_choice_of_a_trial(make_recipe: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The winner was chosen among all trials, and the best of another algorithm among the trials of this algorithm."""
    kept: list[measurements.WinnerMeasurements] = []
    measure = measurements.measure_winner

    def kept_too(*inputs: Any) -> measurements.WinnerMeasurements:
        kept.append(measure(*inputs))
        return kept[-1]

    monkeypatch.setattr(measurements, "measure_winner", kept_too)
    head = header(run(make_recipe(training=small_training(algorithms=["CosineKNN", "RP3beta"], n_trials=6))).artifact)
    (measured,) = kept
    assert measured.choice is not None
    assert len(measured.intervals) == 2
    for name, span in measured.intervals.items():
        choice = measured.choice if name == head["best_class"] else measured.choice.among(name)
        expected = interval(choice.scores[:, 0], seed=42, choice=choice)
        assert span == pytest.approx(expected, abs=1e-6), name
        assert choice.stretch(seed=42, confidence=0.95) > 1


@pytest.mark.parametrize("share", [{"test_user_ratio": 0.01}, {"test": 0.01}])
def test_a_lead_on_one_user_is_not_more_than_chance(make_recipe: Make, share: dict[str, float]) -> None:
    """Its interval begins at -1, because the scores of one user cannot vary."""
    split = {"scheme": "leave_one_out", "seed": 2, **share}
    training = small_training(algorithms=["CosineKNN", "TopPop"], cutoff=40, split=split)
    found = header(run(make_recipe(training=training)).artifact)["evaluation"]["lead"]
    assert 0 < found["change"] == found["interval"][1]
    assert found["interval"][0] <= -1
    assert found["more_than_chance"] is False


def test_trials_of_another_process_count_as_unknown(make_recipe: Make) -> None:
    """A resumed search has no scores of users for earlier trials.

    The best trials are trained again and get the same scores. Unknown trials do not shorten the intervals.
    Without test users, the lead is measured on the validation users, on whom both trials were chosen.
    """
    loaded = make_recipe(training=small_training(storage_path="s.db", n_trials=5))
    heads = [header(run(loaded).artifact) for _ in range(2)]
    first, second = (head["evaluation"] for head in heads)
    scores = [best["score"] for best in heads[0]["tuning"]["best_per_algorithm"].values()]
    lead = first["lead"]
    assert lead["users"] == "validation"
    assert lead["change"] == pytest.approx(scores[0] - scores[1], abs=1e-9)
    assert lead["interval"][0] <= lead["change"] <= lead["interval"][1]
    assert first["chosen_among"]["unknown"] == 0
    assert second["chosen_among"]["unknown"] > 0
    counted = [found["chosen_among"]["trials"] + found["chosen_among"]["unknown"] for found in (first, second)]
    assert counted[0] == counted[1]
    assert second["interval"][0] <= first["interval"][0] + 1e-3
    assert second["interval"][1] == first["interval"][1]
    assert second["lead"]["change"] == first["lead"]["change"]
    same = ("ndcg", "breakdown", "n_scored_users")
    assert [first[name] for name in same] == [second[name] for name in same]

"""The search of a blend: its parts, its weights, and the model that is served."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from svc.model.columns.feature_values import Encoded
from svc.model.load_model import rehearse
from svc.model.ranking.query import Query
from svc.training.data.times import usual_bounds
from svc.training.fitting.train import train_trial
from svc.training.fitting.trial import TrialRecord
from svc.training.judging import measurements
from svc.training.judging.search_result import SearchResult
from svc.training.search.blend_search import HALF_LIVES, _around, candidates, popularity, simplex
from tests.training.runs import BY_SCORE, Log, Make, features_of, opened, payload, run, training

TRAINING = training(algorithms=["IALS", "CosineKNN", "TopPop", "Blend"], n_trials=5)


def result(*scored: tuple[str, float]) -> SearchResult:
    trials = [
        TrialRecord(place, f"{name}Recommender", {}, "complete", score, {}, None, 1.0)
        for place, (name, score) in enumerate(scored)
    ]
    return SearchResult(trials, 1.0, 0)


@pytest.mark.parametrize(
    ("scored", "expected"),
    [
        ([("IALS", 0.3), ("TopPop", 0.4), ("CosineKNN", 0.2)], ["IALS", "CosineKNN"]),
        ([("IALS", 0.3), ("TruncatedSVD", 0.29), ("SLIM", 0.2), ("RP3beta", 0.1)], ["IALS", "SLIM", "RP3beta"]),
        ([("SLIM", 0.4), ("RP3beta", 0.3), ("CosineKNN", 0.25), ("IALS", 0.2)], ["SLIM", "RP3beta", "IALS"]),
        ([("SLIM", 0.4), ("BPRFM", 0.5)], ["SLIM"]),
        ([("SLIM", 0.4), ("IALS", 0.0)], ["SLIM"]),
    ],
)
def test_the_best_of_different_algorithms_are_blended(scored: list[tuple[str, float]], expected: list[str]) -> None:
    """The blend has at most one factor model and two others, all with scores above 0. Popularity is additional."""
    found = candidates(result(*scored))
    assert [trial.algorithm.removesuffix("Recommender") for trial in found] == expected


def test_popularity_is_a_part_with_each_half_life() -> None:
    """The part is the best popularity trial with the same time decay as the other parts.

    It is tried with each half-life.
    """
    scored = result(("IALS", 0.3), ("TopPop", 0.1), ("TopPop", 0.2), ("TopPop", 0.4))
    shared = [{}, {}, {}, {"half_life": "7d"}]
    trials = [replace(trial, params=params) for trial, params in zip(scored.trials, shared, strict=True)]
    found = popularity(replace(scored, trials=trials), trials[:1], HALF_LIVES)
    assert [trial.number for trial in found] == [2] * 4
    assert [trial.params["popularity_half_life"] for trial in found] == ["none", "3d", "14d", "60d"]
    assert popularity(result(("IALS", 0.3)), trials[:1], HALF_LIVES) == []


def drifting(path: Path) -> Path:
    """Write choices of two tastes, most of them among items released in the weeks before."""
    rng, lines = np.random.default_rng(8), ["user_id,item_id,ts"]
    for user in range(240):
        for day in np.sort(rng.uniform(0, 400, 14)):
            age = rng.exponential(30.0) if rng.random() < 0.7 else rng.uniform(0, day + 1)
            item = 2 * max(0, int((day - age) / 4)) + (user % 2 if rng.random() < 0.7 else rng.integers(2))
            lines.append(f"u{user},i{item},{int(day * 86_400)}")
    path.write_text("\n".join(dict.fromkeys(lines)), encoding="utf-8")
    return path


def test_recent_popularity_raises_the_score_of_a_blend_if_choices_follow_releases(
    make_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search finds the best half-life. The header, the served model and a refit contain it."""
    monkeypatch.setattr(BY_SCORE, blend_wins)
    ratings = drifting(tmp_path / "drifting.csv")
    split = {"scheme": "time_global", "heldout_ratio": 0.1}
    loaded = make_recipe(ratings=ratings, training={**TRAINING, "split": split})
    model, head = opened(run(loaded))
    assert head["best_score"] > 1.2 * max(
        trial["score"] for name, trial in head["tuning"]["best_per_algorithm"].items() if name != "BlendRecommender"
    )
    (part,) = (part for part in head["parts"] if part["class"] == "TopPopRecommender")
    assert part["params"]["popularity_half_life"] != "none"
    days = pd.read_csv(ratings).drop_duplicates(["user_id", "item_id"], keep="last")
    _, latest = usual_bounds(days["ts"].to_numpy())  # later rows count as if at this time
    ages = (days["ts"].clip(upper=latest) - latest) / 86_400 / float(part["params"]["popularity_half_life"][:-1])
    counts = np.exp2(ages).groupby(days["item_id"]).sum()[model.item_ids.all()].to_numpy()
    np.testing.assert_allclose(
        model.scorer.popularity.addends, part["weight"] * counts / counts.std(), rtol=1e-4, atol=1e-3
    )
    again, refitted = opened(run(loaded, refit=True))
    assert "reused_from" in refitted["tuning"]
    assert again.scorer.popularity.addends.tobytes() == model.scorer.popularity.addends.tobytes()


def test_blend_weights_sum_to_10_and_have_at_least_two_parts() -> None:
    assert (len(list(simplex(2, 1))), len(list(simplex(3, 2)))) == (9, 18)
    for weights in simplex(3, 2):
        assert sum(weights) == 10
        assert sum(weight > 0 for weight in weights) >= 2


def test_neighbouring_weights_differ_in_one_tenth() -> None:
    """A part may lose its last tenth, as long as two parts remain."""
    assert set(_around((9, 1, 0))) == {(8, 2, 0), (8, 1, 1), (9, 0, 1)}
    assert set(_around((9, 1))) == {(8, 2)}


def blend_wins(trials: list[TrialRecord]) -> list[TrialRecord]:
    return sorted(trials, key=lambda trial: (not trial.parts, -(trial.score or 0.0), trial.number))


def test_a_blend_is_searched_stored_by_parts_and_served(
    make_recipe: Make, monkeypatch: pytest.MonkeyPatch, log: Log
) -> None:
    """The header has weights and parts, and the payload each part once. A second run gives the same bytes."""
    monkeypatch.setattr(BY_SCORE, blend_wins)
    result = run(make_recipe(training=TRAINING))
    (model, head), encoded = opened(result), payload(result.artifact)
    rehearse(model)
    assert head["best_class"] == "BlendRecommender"
    weights = head["best_params"]["weights"]
    assert set(weights) == {"IALSRecommender", "CosineKNNRecommender", "TopPopRecommender"}
    assert sum(weights.values()) == pytest.approx(1.0)
    assert {part["class"]: part["weight"] for part in head["parts"]} == weights
    assert all(part["answers"] == "everything" and part["bytes"] > 0 for part in head["parts"])
    assert head["best_score"] > 0
    searched = next(record for record in log if record["event"] == "blend_searched")
    assert searched["weights"] == weights
    assert {"scorer.factors.users", "scorer.sums.0.weights", "scorer.deviations"} <= set(model.parts())
    assert payload(run(make_recipe(training=TRAINING)).artifact) == encoded
    related = model.rank([Query(limit=5, seeds=np.array([1, 3], dtype=np.int32))])
    assert len(related[0].items) == 5


def test_a_blend_with_features_answers_cold_starts_by_its_feature_aware_part(
    make_recipe: Make, items_csv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BY_SCORE, blend_wins)
    model, head = opened(run(make_recipe(training=TRAINING, features=features_of(items_csv))))
    rehearse(model)
    assert head["best_class"] == "BlendRecommender"
    assert head["features"]["active"] is True
    assert model.cold is None
    vector, _ = model.features.item.encode({"group": "odd"})
    query = Query(limit=5, seed_features=(Encoded.of(vector),))
    (expected,) = model.scorer.factors.rank([query], model.history)
    assert model.rank([query])[0].scores.tobytes() == expected.scores.tobytes()


def test_without_two_complete_parts_there_is_no_blend(make_recipe: Make, log: Log) -> None:
    """The search logs that it skips the blend, and continues."""
    _, head = opened(run(make_recipe(training={**TRAINING, "n_trials": 1})))
    assert head["best_class"] != "BlendRecommender"
    skipped = [record for record in log if record["event"] == "algorithm_skipped"]
    assert skipped[-1]["algorithm"] == "BlendRecommender"


@pytest.mark.parametrize("blend_is_best", [True, False])
def test_a_winner_that_was_trained_for_the_blend_is_not_trained_again(
    make_recipe: Make, monkeypatch: pytest.MonkeyPatch, blend_is_best: bool
) -> None:
    """The winner is the blend or one of its parts. A second training would give the same figures."""
    refitted: list[str] = []
    train_again, measure = train_trial, measurements.measure_winner

    def counted(builder: Any, trial: TrialRecord, *inputs: Any) -> Any:
        refitted.append(trial.algorithm)
        return train_again(builder, trial, *inputs)

    def measured_twice(task: Any, result: SearchResult) -> measurements.WinnerMeasurements:
        kept = measure(task, result)
        assert refitted == []
        again = measure(task, replace(result, trained=None, evaluation=None))
        assert refitted == [result.best.algorithm]
        assert (kept.evaluation, kept.intervals) == (again.evaluation, again.intervals)
        return kept

    monkeypatch.setattr("svc.training.judging.task.train_trial", counted)
    monkeypatch.setattr(measurements, "measure_winner", measured_twice)
    monkeypatch.setattr(BY_SCORE, blend_wins if blend_is_best else blend_loses)
    search = {**TRAINING, "algorithms": ["IALS", "CosineKNN", "Blend"], "n_trials": 2}
    _, head = opened(run(make_recipe(training=search)))
    assert (head["best_class"] == "BlendRecommender") == blend_is_best
    assert len(refitted) == 1


def blend_loses(trials: list[TrialRecord]) -> list[TrialRecord]:
    return sorted(trials, key=lambda trial: (bool(trial.parts), -(trial.score or 0.0), trial.number))


def test_a_blend_whose_ranking_takes_too_long_is_left_out(
    make_recipe: Make, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event has the reason. The best part of the blend wins."""
    monkeypatch.setattr("svc.training.search.blend_search.rank_ms", lambda *_: 7.5)
    _, head = opened(run(make_recipe(training={**TRAINING, "max_rank_ms": 7})))
    assert head["best_class"] in ("IALSRecommender", "CosineKNNRecommender")
    (skipped,) = (record for record in log if record["event"] == "algorithm_skipped")
    assert skipped["reason"] == "a ranking by it takes 7.5 ms, more than training.max_rank_ms"

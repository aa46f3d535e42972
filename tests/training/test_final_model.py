"""The final model of a finished search."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from svc.model.columns.feature_values import Encoded
from svc.model.load_model import check_features, rehearse
from svc.model.model import Model
from svc.model.ranking.query import Interaction, Query
from svc.training.fitting.trial import TrialRecord
from tests import planned
from tests.training.runs import BY_SCORE, Log, Make, features_of, opened, run, small_training


@pytest.mark.usefixtures("without_drawing")
def test_the_best_feature_aware_trial_answers_cold_starts_beside_another_winner(
    make_recipe: Make, items_csv: Path, monkeypatch: pytest.MonkeyPatch, log: Log, tmp_path: Path
) -> None:
    """Known users get the same answers as from the winner alone."""
    monkeypatch.setattr(BY_SCORE, last_first)
    alone, _ = opened(run(make_recipe(training=small_training(algorithms=["TopPop", "CosineKNN"], n_trials=2))))
    training = small_training(algorithms=["TopPop", "IALS", "CosineKNN"], n_trials=3)
    report = tmp_path / "report.html"
    result = run(make_recipe(training=training, features=features_of(items_csv)), report=report)
    model, head = opened(result)
    assert head["best_class"] == "CosineKNNRecommender"
    assert head["features"]["active"] is True
    assert [(part["class"], part["answers"]) for part in head["parts"]] == [
        ("CosineKNNRecommender", "known users"),
        ("IALSRecommender", "features and seeds"),
    ]
    assert all(part["bytes"] > 0 for part in head["parts"])
    assert "cold_start" in head["evaluation"]
    assert "new_items" not in head["evaluation"]
    assert next(record for record in log if record["event"] == "cold_start_part_trained")["score"] is not None
    check_features(model, head)
    rehearse(model)
    assert isinstance(model.scorer_of(Query(limit=5, user=3)), type(alone.scorer))
    described, _ = model.features.item.encode({"group": "odd", "size": 7})
    seeds = np.array([1, 4], dtype=np.int32)
    queries = [Query(limit=5, user=3), Query(limit=5, seed_features=(Encoded.of(described),)), Query(5, seeds=seeds)]
    known, cold, related = model.rank(queries)
    assert (known.items == alone.rank(queries[:1])[0].items).all()
    assert known.scores.tobytes() == alone.rank(queries[:1])[0].scores.tobytes()
    for query, ranking in zip(queries[1:], (cold, related), strict=True):
        (expected,) = model.cold.rank([query], model.history)
        assert ranking.scores.tobytes() == expected.scores.tobytes()
    assert "features and seeds" in report.read_text(encoding="utf-8")


def test_features_without_a_complete_trial_are_inactive_with_a_warning(
    make_recipe: Make, items_csv: Path, monkeypatch: pytest.MonkeyPatch, log: Log
) -> None:
    """The header agrees with the payload."""
    monkeypatch.setattr("svc.training.final_model.FEATURE_AWARE", "Nobody")
    training = small_training(algorithms=["TopPop", "IALS"], n_trials=2)
    monkeypatch.setattr(BY_SCORE, lambda trials: sorted(trials, key=lambda one: one.number))
    model, head = opened(run(make_recipe(training=training, features=features_of(items_csv))))
    assert head["best_class"] == "TopPopRecommender"
    assert head["features"]["active"] is False
    assert "parts" not in head
    assert "features_inactive" in [record["event"] for record in log]
    check_features(model, head)


@pytest.mark.parametrize("algorithms", [["IALS"], ["CosineKNN"], ["IALS", "CosineKNN", "Blend"]])
def test_means_and_deviations_of_users_are_trained_only_for_recipes_that_serve_users(
    make_recipe: Make, algorithms: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that loads such a model does not measure them.

    Factor models store none, because theirs have a closed form.
    """
    training = small_training(algorithms=algorithms, n_trials=len(algorithms))
    plain, _ = opened(run(make_recipe(training=training)))
    assert plain.user_moments is None
    model, _ = opened(run(make_recipe(training=training, serving={"users": True})))
    assert (model.user_moments is None) == (model.kind == "factors")
    plain.serve_users()
    monkeypatch.setattr("svc.model.recommenders.users.measured_moments", None)
    model.serve_users()
    prepared = [
        planned.users(one, item_id=one.item_ids.at(3), item_features=None, limit=9, order="lift")
        for one in (plain, model)
    ]
    (expected,), (ranking,) = (one.rank([asked.query]) for one, asked in zip((plain, model), prepared, strict=True))
    assert ranking.items.tolist() == expected.items.tolist()
    assert ranking.scores.tolist() == expected.scores.tolist()


def last_first(trials: list[TrialRecord]) -> list[TrialRecord]:
    """Reverse the order of trials, so that CosineKNN wins."""
    return sorted(trials, key=lambda trial: (trial.algorithm != "CosineKNNRecommender", trial.number))


def scores(model: Model, user_id: str | None, history: list[Interaction] | None = None) -> dict[int, float]:
    """Return the scores of all items for a user, or for a new user with the same history."""
    query = planned.recommend(model, user_id=user_id, user_features=None, limit=40, history=history or ()).query
    (ranking,) = model.rank([query])
    return dict(zip(ranking.items.tolist(), ranking.scores.tolist(), strict=True))


@pytest.mark.parametrize("algorithms", [["IALS"], ["IALS", "CosineKNN", "Blend"]], ids=["IALS", "Blend"])
def test_a_known_user_and_a_new_one_with_the_same_history_get_equal_scores(
    make_recipe: Make, algorithms: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores differ only by the rounding of stored vectors, also for parts of a blend."""
    monkeypatch.setattr(BY_SCORE, lambda trials: sorted(trials, key=lambda trial: not trial.parts))
    training = small_training(algorithms=algorithms, n_trials=2, recency="off")
    model, header = opened(run(make_recipe(training=training)))
    assert (model.kind == "blend") == ("Blend" in algorithms)
    assert "exact_users" not in header["evaluation"]
    for user in range(0, 80, 9):
        columns = model.history.items(model.user_ids.index(f"u{user}")).tolist()
        found = scores(model, f"u{user}")
        expected = scores(model, None, [Interaction(model.item_ids.at(column), 1.0) for column in columns])
        assert found.keys() == expected.keys()
        for item, score in found.items():
            assert score == pytest.approx(expected[item], rel=1e-4, abs=1e-6)

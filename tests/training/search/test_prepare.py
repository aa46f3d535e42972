"""Preparation of a search: studies that it refuses to continue, and self-weights in its search space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import FloatDistribution

from svc.training.fitting.algorithms.registry import search_space
from svc.training.search import prepare
from svc.training.search.prepare import SELF_WEIGHTS, with_self_weight
from tests.training.runs import SPLIT, Log, Make, last, run, training


def test_a_study_of_other_data_or_choices_is_not_continued(
    make_recipe: Make, make_ratings: Callable[..., Path], log: Log
) -> None:
    """Scores on other data or by other choices are not comparable. The message suggests another run id.

    The number of trials, the seed of the search and further algorithms do not change scores.
    """
    split, base = SPLIT, training("TopPop", storage_path="s.db")
    assert run(make_recipe(training=base), search_only=True).exit_code == 0
    for change in (
        {"algorithms": ["CosineKNN"]},
        {"metric": "map"},
        {"cutoff": 6},
        {"recency": 0.5},
        {"repeats": True},
        {"split": {**split, "seed": 7}},
        {"split": {**split, "heldout_ratio": 0.4}},
        {"split": {**split, "test": 0.2}},
    ):
        assert run(make_recipe(training={**base, **change}), search_only=True).exit_code == 4, change
        assert "cannot be compared: choose another --run-id" in last(log)["error"]
    other = make_ratings("other.csv", seed=9)
    assert run(make_recipe(ratings=other, training=base), search_only=True).exit_code == 4
    assert "--run-id" in last(log)["error"]
    for change in ({"n_trials": 3}, {"seed": 7}, {"algorithms": ["TopPop", "CosineKNN"], "n_trials": 4}):
        assert run(make_recipe(training={**base, **change}), search_only=True).exit_code == 0, change


def test_the_first_trials_try_different_self_weights() -> None:
    """The recipe may bound the self-weights."""
    plain = search_space("RP3betaRecommender", n_users=100, n_items=100)
    free = with_self_weight(plain, None)
    assert {guess["self_weight"] for guess in free.guesses} <= set(SELF_WEIGHTS)
    assert len({guess["self_weight"] for guess in free.guesses}) == len(plain.guesses) == 3
    bounded = with_self_weight(plain, [0.5, 2])
    assert bounded["self_weight"] == FloatDistribution(0.5, 2.0)
    assert all(0.5 <= guess["self_weight"] <= 2.0 for guess in bounded.guesses)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, None),
        ({"per_trial_timeout_seconds": 60}, 60),
        ({"timeout_seconds": 100}, 25),
        ({"per_trial_timeout_seconds": 60, "timeout_seconds": 100}, 25),
        ({"per_trial_timeout_seconds": 10, "timeout_seconds": 100}, 10),
    ],
)
def test_model_sizes_grow_within_the_limit_of_a_trial_or_a_quarter_of_the_search(
    limits: dict[str, int], expected: float | None, make_recipe: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shorter of the two limits counts. Without limits, sizes grow by their scores alone."""
    given: list[float | None] = []

    class Watched:
        def __init__(self, *_: Any, most_seconds: float | None, **__: Any) -> None:
            given.append(most_seconds)
            raise KeyboardInterrupt

    monkeypatch.setattr(prepare, "AlgorithmSampler", Watched)
    run(make_recipe(training=training("TopPop", **limits)))
    assert given == [expected]


def test_an_algorithm_whose_matrices_exceed_the_memory_is_skipped(
    make_recipe: Make, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event names the algorithm and the reason. The others are searched."""
    monkeypatch.setattr(prepare, "how_many_fit", lambda name, _: 0 if name == "DenseSLIMRecommender" else None)
    assert run(make_recipe(training=training(algorithms=["TopPop", "DenseSLIM"], n_trials=2))).exit_code == 0
    (skipped,) = (record for record in log if record["event"] == "algorithm_skipped")
    assert skipped["algorithm"] == "DenseSLIMRecommender"
    assert skipped["reason"] == "its dense item matrices would not fit into the free memory"


def test_an_algorithm_for_fewer_items_is_skipped(make_recipe: Make, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of RidgeTransitions is cubic in the items. The reason names the limit."""
    row = prepare.ALGORITHMS["RidgeTransitionsRecommender"]
    monkeypatch.setitem(prepare.ALGORITHMS, row.name, replace(row, most_items=3))
    names = {"algorithms": ["TopPop", "RidgeTransitions"], "n_trials": 2}
    assert run(make_recipe(training=training(**names))).exit_code == 0
    (skipped,) = (record for record in log if record["event"] == "algorithm_skipped")
    assert skipped["reason"] == "a training would take too long with more than 3 items"

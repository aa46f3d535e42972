"""The measurement of new items: it finds suitable ones if features predict choices, and random ones otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from svc.recipe.serving_schema import NewItems
from svc.training.fitting.trial import TrialRecord
from svc.training.judging.new_items import MEASURES, evaluate_new_items
from svc.training.judging.search_result import SearchResult
from svc.training.judging.task import Task
from tests.training.runs import Make, features_of, task_of, training

TaskOf = Callable[..., Task]

KINDS = [f"kind {item % 10}" for item in range(100)]
N_ITEMS, N_KINDS, N_NEW, CUTOFF = 100, 10, 10, 10
PARAMS = {"n_components": 12, "alpha0": 0.1, "reg": 0.05, "lambda_item_feature": 1.0}
IALS = TrialRecord(0, "IALSRecommender", PARAMS, "complete", 0.1, {}, 4, 1.0)
NEIGHBOURS = TrialRecord(1, "CosineKNNRecommender", {"top_k": 50, "shrinkage": 0.0}, "complete", 0.2, {}, None, 1.0)


@pytest.fixture
def make_task(make_recipe: Make, tmp_path: Path) -> TaskOf:
    """Return a function that makes the task of users who choose seven of the ten items of one kind."""

    def task(values: list[str], kind: str, cutoff: int = CUTOFF) -> Task:
        rng = np.random.default_rng(4)
        lines = ["user_id,item_id"]
        for user in range(200):
            chosen = rng.choice(np.arange(user % N_KINDS, N_ITEMS, N_KINDS), size=7, replace=False)
            lines += [f"u{user},i{item}" for item in chosen]
        (tmp_path / "r.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        rows = [f"i{item},{value}" for item, value in enumerate(values)]
        (tmp_path / "f.csv").write_text("\n".join(["item_id,a", *rows]) + "\n", encoding="utf-8")
        split = {"scheme": "random", "heldout_ratio": 0.2, "test_user_ratio": 1.0}
        return task_of(
            make_recipe(
                ratings=tmp_path / "r.csv",
                schema={"user_column": "user_id", "item_column": "item_id"},
                features=features_of(tmp_path / "f.csv", {"name": "a", "kind": kind}),
                training=training("IALS", cutoff=cutoff, split=split),
            )
        )

    return task


def declared(**shares: float | None) -> NewItems:
    return NewItems.model_validate({"source": {"type": "csv", "path": "new.csv"}, **shares})


def measured(task: Task, *trials: TrialRecord, **shares: float | None) -> dict[str, Any]:
    result = SearchResult(list(trials or (IALS,)), seconds=1.0, n_orphaned=0)
    return evaluate_new_items(task, result, result.trials[-1], declared(**shares))


@pytest.mark.parametrize("trials", [(IALS,), (NEIGHBOURS, IALS)])
def test_a_decisive_feature_finds_new_items(make_task: TaskOf, trials: tuple[TrialRecord, ...]) -> None:
    """iALS with features ranks alone, or adds new items to the ranking of another model."""
    found = measured(make_task(KINDS, "categorical"), *trials)
    assert (found["n_draws"], found["n_held"], found["cutoff"]) == (10, N_ITEMS, CUTOFF)
    assert 0.0 < found["share"] <= 0.2
    assert found["intervals"]["recall"][0] > found["intervals"]["popularity_recall"][1]
    assert found["intervals"]["recall"][0] > found["share"] * CUTOFF / N_NEW
    for name in MEASURES:
        assert found["intervals"][name][0] <= found[name] <= found["intervals"][name][1]


def test_features_of_noise_find_no_more_than_chance(make_task: TaskOf) -> None:
    """The lower end of the recall's interval is at most the recall of a random choice."""
    for seed in range(2):
        noise = np.random.default_rng(seed).normal(size=N_ITEMS)
        found = measured(make_task([f"{value}" for value in noise], "numerical"), max_share=None)
        low, _ = found["intervals"]["recall"]
        assert low <= found["share"] * CUTOFF / N_NEW, seed


def test_known_items_lose_the_places_that_new_ones_take(make_task: TaskOf) -> None:
    """New items on a page lower the recall of known items. Without a maximum share, they lower it more."""
    close = replace(IALS, params={**IALS.params, "reg": 0.5})
    task = make_task(KINDS, "categorical", cutoff=2)
    bounded, free = measured(task, close, max_share=0.5), measured(task, close, max_share=None)
    assert free["intervals"]["known_change"][1] < 0.0
    assert free["known_change"] < bounded["known_change"] < 0.0


def test_measured_pages_keep_both_the_smallest_and_largest_share(make_task: TaskOf) -> None:
    """If both shares are equal, every page has this share of new items. The recall of known items falls."""
    found = measured(make_task(KINDS, "categorical", cutoff=2), max_share=0.5, min_share=0.5)
    assert (found["max_share"], found["min_share"]) == (0.5, 0.5)
    assert found["share"] == pytest.approx(0.5)
    assert found["known_change"] < 0.0


def test_a_measurement_of_too_much_work_is_skipped(make_task: TaskOf) -> None:
    long = replace(IALS, epochs=4000, params={**IALS.params, "n_components": 128})
    result = SearchResult([long], seconds=1.0, n_orphaned=0)
    task = make_task(KINDS, "categorical")
    assert "skipped" in evaluate_new_items(task, replace(result, trials=[IALS, long]), long, declared())

"""The live model before a training: reading it, verifying it, and bounding the change of its data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from svc.artifact.keys import development_keys
from svc.errors import DataChangedTooMuch, VersionSkew
from svc.model.codec import encode
from svc.recipe.algorithms import BLEND
from svc.recipe.schema import MaxChange
from svc.settings import Settings
from svc.training.judging import incumbent
from svc.training.judging.comparison import live_model
from svc.training.judging.incumbent import Incumbent, Unfit, check_data_change, trainable
from tests.serving import artifacts
from tests.training.runs import OUTPUT, Log, Make, features_of, header, run, task_of, training, write_tastes

LEARNS_BY_HEART = {"TruncatedSVD": {"n_components": [59, 59], "weighting": ["NONE"]}}
BOUNDS = {"max_change": {"n_rows": 0.5, "n_users": 0.5, "n_items": 0.5}}


def counts(n_rows: int, n_users: int, n_items: int) -> dict[str, int]:
    return {"n_rows": n_rows, "n_users": n_users, "n_items": n_items}


@pytest.mark.parametrize("after", [(50, 10, 4), (150, 10, 4), (100, 5, 4), (100, 15, 6)])
def test_a_change_up_to_its_bound_passes(after: tuple[int, int, int]) -> None:
    """Counts may rise or fall. A count without a bound or without an earlier value is not checked."""
    before = counts(100, 10, 4)
    check_data_change(before, counts(*after), MaxChange(**BOUNDS["max_change"]))
    check_data_change(before, counts(1, 10, 4), MaxChange(n_users=0.1))
    check_data_change({}, counts(1, 1, 1), MaxChange(n_users=0.1))


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ((40, 10, 4), "n_rows from 100 to 40 (-60%; max_change allows 50%)"),
        ((151, 10, 4), "n_rows from 100 to 151 (+51%; max_change allows 50%)"),
        ((100, 4, 1), "n_users from 10 to 4 (-60%; max_change allows 50%), n_items from 4 to 1"),
    ],
)
def test_a_larger_change_names_both_counts(after: tuple[int, int, int], expected: str) -> None:
    """The message also names the flag that accepts the change."""
    before = counts(100, 10, 4)
    with pytest.raises(DataChangedTooMuch) as caught:
        check_data_change(before, counts(*after), MaxChange(**BOUNDS["max_change"]))
    assert expected in caught.value.message
    assert "--accept-data-change" in caught.value.message
    assert caught.value.fields["before"] == before
    assert caught.value.fields["after"]["n_rows"] == after[0]


def test_a_training_on_part_of_the_rows_stops_before_the_search(
    make_recipe: Make, make_ratings: Callable[..., Path], log: Log
) -> None:
    """With 40% of the rows it exits with 4, and the artifact stays. With --accept-data-change it trains."""
    assert run(make_recipe(cleansing=BOUNDS)).exit_code == 0
    assert [record["event"] for record in log].count("incumbent_not_comparable") == 1
    half = make_recipe(cleansing=BOUNDS, ratings=make_ratings("less.csv", n_users=32))
    before = Path(half.output_uri).read_bytes()
    log.clear()
    assert run(half).exit_code == 4
    assert (log[-1]["event"], log[-1]["code"]) == ("train_error", "data_changed_too_much")
    assert "search_started" not in {record["event"] for record in log}
    assert Path(half.output_uri).read_bytes() == before
    assert run(half, accept_data_change=True).exit_code == 0
    assert run(half).exit_code == 0


def test_a_store_that_cannot_read_the_live_model_stops_the_run(make_recipe: Make, log: Log) -> None:
    """A short outage would otherwise let unchecked data or models pass."""
    loaded = make_recipe(cleansing=BOUNDS)
    Path(loaded.output_uri).mkdir(parents=True)
    assert run(loaded).exit_code == 5
    assert log[-1]["event"] == "train_error"
    assert "incumbent_not_comparable" not in {record["event"] for record in log}


def test_a_live_model_of_another_irspack_is_scored_only_with_leave() -> None:
    """SVC_ALLOW_VERSION_SKEW gives leave, as on a server."""
    head = artifacts.header(irspack_version="0.4.1", best_class="IALSRecommender")
    live = Incumbent(head, "0" * 64, memoryview(b"".join(encode(artifacts.popularity_model()))))
    with pytest.raises(VersionSkew):
        live.model(Settings())
    assert live.model(Settings(allow_version_skew=True)).scorer.n_items


def test_the_bounds_of_a_data_change_are_not_in_the_recipe_hash(make_recipe: Make) -> None:
    """The bounds do not change the model."""
    plain = make_recipe()
    assert make_recipe(cleansing=BOUNDS).recipe_hash == plain.recipe_hash
    assert make_recipe(output={**OUTPUT, "keep": 3}).recipe_hash == make_recipe(output=OUTPUT).recipe_hash


def test_a_truncated_svd_has_no_more_components_than_the_current_data_allows(
    make_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A live model that was trained on more users is trained again with fewer components."""
    by_heart = training("TruncatedSVD", search_space=LEARNS_BY_HEART)
    run(make_recipe(ratings=write_tastes(tmp_path / "many.csv"), output=OUTPUT, training=by_heart))
    few = make_recipe(
        ratings=write_tastes(tmp_path / "few.csv", n_users=30), output=OUTPUT, promotion={"mode": "report"},
        training=training(),
    )  # fmt: skip
    against = header(run(few).artifact)["promotion"]["against"]
    assert [comparison["name"] for comparison in against] == ["incumbent", "TopPop"]
    task = task_of(few)
    for algorithm, wanted, expected in (
        ("TruncatedSVDRecommender", 59, 29),
        ("TruncatedSVDRecommender", 30, 29),
        ("TruncatedSVDRecommender", 28, 28),
        ("IALSRecommender", 59, 59),
    ):
        head = {"best_class": algorithm, "best_params": {"n_components": wanted}}
        assert trainable(task, head).params == {"n_components": expected}
        assert trainable(task, blend_of(head)).parts[0].params == {"n_components": expected}
    monkeypatch.setattr(incumbent, "how_many_fit", lambda *_: 0)
    assert live_model(task_of(few), development_keys(), Settings()) is None


TRANSITIONS = {"best_class": "TransitionsRecommender", "best_params": {"max_steps": 3}}
DECAYED = {"best_class": "CosineKNNRecommender", "best_params": {"half_life": "7d"}}
RECENT = {"best_class": "TopPopRecommender", "best_params": {"popularity_half_life": "7d"}}
OF_ITEMS = {"best_class": "IALSRecommender", "best_params": {}, "features": {"item": {}}}


def blend_of(*heads: dict[str, Any]) -> dict[str, Any]:
    parts = [{"class": head["best_class"], "params": head["best_params"], "weight": 0.5} for head in heads]
    return {"best_class": BLEND, "best_params": {}, "parts": parts}


def test_the_parts_of_a_live_blend_have_its_recency() -> None:
    trial = incumbent.trial_of({**blend_of(TRANSITIONS, DECAYED), "recency": 0.4})
    assert [trial.recency, *(part.recency for part in trial.parts)] == [0.4, 0.4, 0.4]


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (TRANSITIONS, "learns from times"),
        (RECENT, "learns from times"),
        (blend_of(RECENT, TRANSITIONS), "TopPopRecommender learns from times"),
        (DECAYED, "no longer has training.time_decay"),
        (OF_ITEMS, "features of the items, which the recipe no longer has"),
    ],
)
def test_a_live_model_is_trained_again_only_on_columns_that_the_recipe_reads(
    head: dict[str, Any], reason: str, make_recipe: Make, items_csv: Path
) -> None:
    """The check covers times and features. A recipe that reads both can train every live model again."""
    reads_neither = task_of(make_recipe(training=training(recency="off")))
    with pytest.raises(Unfit, match=reason):
        trainable(reads_neither, head)
    features = features_of(items_csv)
    decay = training("IALS", recency="off", time_decay={"half_life": ["7d"]})
    assert trainable(task_of(make_recipe(training=decay, features=features)), head).algorithm == head["best_class"]


@pytest.mark.parametrize(
    "params", [{"half_life": "none", "top_k": 9}, {"popularity_half_life": "none"}, {"self_weight": 0.5}, {}]
)
def test_a_live_model_without_decay_needs_no_times(params: dict[str, Any], make_recipe: Make) -> None:
    """Features of the live model do not matter.

    The trial has the live model's parameters. The number of epochs is not a parameter.
    """
    head = {
        "best_class": "CosineKNNRecommender",
        "best_params": {**params, "train_epochs": 3},
        "features": {"item": {}},
    }
    trial = trainable(task_of(make_recipe(training=training(recency="off"))), head)
    assert (trial.params, trial.epochs, trial.recency) == (params, 3, 0.0)

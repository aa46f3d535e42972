"""The trial of the live model, limited by the current data."""

from __future__ import annotations

from pathlib import Path

import pytest

from svc.artifact.keys import development_keys
from svc.settings import Settings
from svc.training.judging import live_trial
from svc.training.judging.baselines import live_model
from tests.training.judging.gated import OUTPUT, Make, header, run, task_of, training, write_tastes

LEARNS_BY_HEART = {"TruncatedSVD": {"n_components": [59, 59], "weighting": ["NONE"]}}


def test_a_truncated_svd_has_no_more_components_than_the_current_data_allows(
    make_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The live model was trained on more users."""
    by_heart = training("TruncatedSVD", search_space=LEARNS_BY_HEART)
    run(make_recipe(ratings=write_tastes(tmp_path / "many.csv"), output=OUTPUT, training=by_heart))
    few = make_recipe(
        ratings=write_tastes(tmp_path / "few.csv", n_users=30), output=OUTPUT, promotion={"mode": "report"},
        training=training(),
    )  # fmt: skip
    against = header(run(few).artifact)["promotion"]["against"]
    assert [comparison["name"] for comparison in against] == ["incumbent", "TopPop"]
    monkeypatch.setattr(live_trial, "how_many_fit", lambda *_: 0)
    assert live_model(task_of(few), development_keys(), Settings()) is None

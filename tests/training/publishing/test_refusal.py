"""What a newcomer reads of a refused model, and of a bound that no equal model can hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from svc.recipe.promotion_schema import Promotion
from svc.training.judging.choice import Choice
from svc.training.publishing.refusal import refusal, warn_of_tight_bound
from tests.training.judging.gated import ENFORCE, OUTPUT, Make, live, run, said, training

DECISION: dict[str, Any] = {
    "metric": "ndcg",
    "min_relative_change": -0.01,
    "against": [
        {"name": "incumbent", "change": -0.061, "interval": [-0.077, -0.045], "n_users": 4700},
        {"name": "TopPop", "change": 0.4, "interval": [0.3, 0.5], "n_users": 4700},
    ],
    "guardrails": {"catalog_coverage": {"change": -0.95, "passed": False}, "n_users": {"change": 0.1, "passed": True}},
}


def test_a_refusal_is_a_sentence_with_the_way_out() -> None:
    """Only what refused the model is named, then what stays live and the command that overrides."""
    told = refusal(DECISION, Path("gate.yaml"), "out/gate.aa37d428.svc", "c4f490e5")
    assert told == (
        "ndcg -6.1% (-7.7% to -4.5%) against the live c4f490e5, coverage -95.0%; c4f490e5 stays live; "
        "`svc promote gate.yaml aa37d428` overrides"
    )
    first = refusal({**DECISION, "against": DECISION["against"][:1]}, Path("gate.yaml"), "gate.aa37d428.svc", None)
    assert "against the live model" in first and "no version is live" in first


def test_a_training_that_is_refused_ends_with_it(make_recipe: Make, log: list[dict[str, Any]]) -> None:
    """`train_done` has the sentence; a model that goes live has none."""
    good = make_recipe(output=OUTPUT, promotion=ENFORCE, training=training())
    assert run(good).exit_code == 0
    assert "refused" not in said(log, "train_done")[0]
    before, log[:] = live(good), []
    assert run(make_recipe(output=OUTPUT, promotion=ENFORCE, training=training("TopPop"))).exit_code == 9
    told = str(said(log, "train_done")[0]["refused"])
    assert f"against the live {before}" in told and f"; {before} stays live; `svc promote " in told


@pytest.mark.parametrize(
    ("bound", "against", "told"),
    [
        (-0.01, DECISION["against"], "reaches 1.6% below the change, over 4700 judged users"),
        (-0.01, DECISION["against"], "write -0.016 or less"),
        (-0.05, DECISION["against"], None),
        (-0.001, DECISION["against"][1:], "the interval against the next algorithm"),
    ],
)
def test_a_bound_that_would_refuse_an_equal_model_is_a_warning(
    make_recipe: Make, log: list[dict[str, Any]], bound: float, against: list[Any], told: str | None
) -> None:
    """By the interval against the live model; a first run by the lead of its winner over the next algorithm."""
    rng = np.random.default_rng(3)
    choice = Choice(rng.random((400, 1)) + rng.normal(0, 0.1, (400, 2)), ["A", "B"])
    rules = Promotion(mode="enforce", min_relative_change=bound)
    warn_of_tight_bound(make_recipe().recipe, {**DECISION, "against": against}, rules, choice)
    assert [record["event"] for record in log] == ([] if told is None else ["recipe_warning"])
    assert told is None or told in log[0]["message"]


def test_an_identical_model_says_nothing_of_precision(make_recipe: Make, log: list[dict[str, Any]]) -> None:
    """The interval of a model against itself has no width, which tells nothing of another one."""
    against = [{**DECISION["against"][0], "change": 0.0, "interval": [0.0, 0.0]}]
    warn_of_tight_bound(make_recipe().recipe, {**DECISION, "against": against}, Promotion(mode="enforce"), None)
    assert log == []

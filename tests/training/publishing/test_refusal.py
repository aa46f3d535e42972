"""The text of a refusal, and the warning of a bound that an equal model cannot reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from svc.recipe.promotion_schema import Promotion
from svc.training.judging.intervals import Choice
from svc.training.publishing.refusal import refusal, warn_of_tight_bound
from tests.training.judging.gated import ENFORCE, OUTPUT, Make, live, records_of, run, training

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
    """It names the comparisons that failed, the live version, and the command that overrides."""
    text = refusal(DECISION, Path("gate.yaml"), "out/gate.aa37d428.svc", "c4f490e5")
    assert text == (
        "ndcg -6.1% (-7.7% to -4.5%) against the live c4f490e5, coverage -95.0%; c4f490e5 stays live; "
        "`svc promote gate.yaml aa37d428` overrides"
    )
    first = refusal({**DECISION, "against": DECISION["against"][:1]}, Path("gate.yaml"), "gate.aa37d428.svc", None)
    assert "against the live model" in first and "no version is live" in first


def test_train_done_has_the_refusal_of_a_refused_model(make_recipe: Make, log: list[dict[str, Any]]) -> None:
    """A model that goes live has none."""
    good = make_recipe(output=OUTPUT, promotion=ENFORCE, training=training())
    assert run(good).exit_code == 0
    assert "refused" not in records_of(log, "train_done")[0]
    before, log[:] = live(good), []
    assert run(make_recipe(output=OUTPUT, promotion=ENFORCE, training=training("TopPop"))).exit_code == 9
    text = str(records_of(log, "train_done")[0]["refused"])
    assert f"against the live {before}" in text and f"; {before} stays live; `svc promote " in text


@pytest.mark.parametrize(
    ("bound", "against", "text"),
    [
        (-0.01, DECISION["against"], "reaches 1.6% below the change, over 4700 judged users"),
        (-0.01, DECISION["against"], "write -0.016 or less"),
        (-0.05, DECISION["against"], None),
        (-0.001, DECISION["against"][1:], "the interval against the next algorithm"),
    ],
)
def test_a_bound_that_would_refuse_an_equal_model_causes_a_warning(
    make_recipe: Make, log: list[dict[str, Any]], bound: float, against: list[Any], text: str | None
) -> None:
    """It uses the interval against the live model, or in a first run that of the lead over the next algorithm."""
    rng = np.random.default_rng(3)
    choice = Choice(rng.random((400, 1)) + rng.normal(0, 0.1, (400, 2)), ["A", "B"])
    rules = Promotion(mode="enforce", min_relative_change=bound)
    warn_of_tight_bound(make_recipe().recipe, {**DECISION, "against": against}, rules, choice)
    assert [record["event"] for record in log] == ([] if text is None else ["recipe_warning"])
    assert text is None or text in log[0]["message"]


def test_an_identical_model_causes_no_warning(make_recipe: Make, log: list[dict[str, Any]]) -> None:
    """The interval of a model against itself has zero width, and is no estimate for other models."""
    against = [{**DECISION["against"][0], "change": 0.0, "interval": [0.0, 0.0]}]
    warn_of_tight_bound(make_recipe().recipe, {**DECISION, "against": against}, Promotion(mode="enforce"), None)
    assert log == []

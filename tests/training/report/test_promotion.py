"""The promotion decision in the report."""

from __future__ import annotations

from typing import Any

import pytest

from svc.training.report.promotion import comparison_rows, decision_sentences, guardrail_rows, percent

COMPARISON = {
    "name": "incumbent", "candidate": 0.2, "other": 0.25, "change": -0.2, "interval": [-0.3, -0.1], "n_users": 900,
    "scored": "live",
}  # fmt: skip
GUARDRAIL = {"candidate": 40, "other": 80, "change": -0.5, "min_relative_change": -0.3, "passed": False}


def header(**changes: Any) -> dict[str, Any]:
    decision = {
        "decision": "refused", "mode": "enforce", "metric": "ndcg", "min_relative_change": -0.01, "confidence": 0.95,
        "against": [COMPARISON], "guardrails": {"n_users": GUARDRAIL},
    }  # fmt: skip
    return {"promotion": decision | changes}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "The new model is refused."),
        ({"decision": "promoted"}, "The new model may go live."),
        ({"mode": "report"}, "the recipe only reports, so this does not keep it from going live"),
        ({"min_relative_change": 0.02, "confidence": 0.99}, "the lower end of each 99% interval must reach +2.0%."),
        ({"against": []}, "There was nothing to compare with."),
    ],
)
def test_the_decision_comes_with_its_rule(changes: dict[str, Any], expected: str) -> None:
    """Without a `promotion` block the page shows neither."""
    assert expected in " ".join(decision_sentences(header(**changes)))
    assert decision_sentences({}) == []


def test_rows_name_the_opponent_and_how_it_was_scored() -> None:
    """Changes and intervals are percentages."""
    (row,) = comparison_rows(header())
    assert row[:6] == ("the live model", 0.2, 0.25, "-20.0%", "-30.0% to -10.0%", 900)
    assert "before all that is held out" in str(row[6])
    (guarded,) = guardrail_rows(header())
    assert guarded == ("n_users", 40, 80, "-50.0%", "at least -30.0%", "refuses the model")


def test_a_change_above_a_thousandfold_is_shown_in_words() -> None:
    """An opponent with a score of 0 makes any change very large."""
    assert percent(1e300) == "more than a thousandfold"
    assert percent(-0.0123) == "-1.2%"

"""The decision about going live, in the words of the report."""

from __future__ import annotations

from typing import Any

import pytest

from svc.training.report_promotion import comparison_rows, decision_told, guardrail_rows, percent


def header(**more: Any) -> dict[str, Any]:
    """A refused model: worse than the live one, with one guardrail of two that holds."""
    against = {
        "name": "incumbent",
        "candidate": 0.1,
        "other": 0.2,
        "change": -0.5,
        "interval": [-0.6, -0.4],
        "n_users": 900,
        "scored": "refitted",
    }
    passing = {"candidate": 0.5, "other": 0.4, "change": 0.25, "min_relative_change": -0.1, "passed": True}
    promotion = {
        "decision": "refused",
        "mode": "enforce",
        "metric": "ndcg",
        "min_relative_change": 0.0,
        "confidence": 0.95,
        "against": [against],
        "guardrails": {"recall": passing, "entropy": {**passing, "passed": False}},
    }
    return {"promotion": {**promotion, **more}}


def test_without_a_promotion_block_nothing_is_said() -> None:
    """Pages of recipes that ask for no decision stay as they are."""
    assert decision_told({}) == decision_told({"promotion": None}) == ""


@pytest.mark.parametrize(
    ("more", "told", "warns"),
    [
        ({"decision": "promoted"}, "The new model may go live.", False),
        ({}, "The new model is refused.", True),
        ({"mode": "report"}, "is refused; the recipe only reports", True),
        ({"against": []}, "There was nothing to compare with.", True),
    ],
)
def test_the_decision_is_a_sentence(more: dict[str, Any], told: str, warns: bool) -> None:
    """A refusal stands out; the bound and the confidence are those of the recipe."""
    shown = decision_told(header(**more))
    assert told in shown
    assert ('class="warn"' in shown) == warns
    assert "95% interval must reach +0.0%" in shown


def test_each_comparison_and_guardrail_is_a_row() -> None:
    """Against whom in words; changes as percentages."""
    (row,) = comparison_rows(header())
    assert list(row)[:6] == ["the live model", 0.1, 0.2, "-50.0%", "-60.0% to -40.0%", 900]
    assert [list(row)[-1] for row in guardrail_rows(header())] == ["passes", "refuses the model"]


def test_a_change_from_next_to_nothing_is_no_percentage() -> None:
    """Beyond a thousandfold the digits say nothing."""
    assert (percent(0.125), percent(1e6)) == ("+12.5%", "more than a thousandfold")

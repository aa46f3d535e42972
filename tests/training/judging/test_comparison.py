"""A comparison of two models in the form of the header."""

from __future__ import annotations

from svc.training.judging.comparison import Comparison


def test_figures_of_a_comparison_are_rounded_to_twelve_digits() -> None:
    """Coverage is not among them, as it is a guardrail."""
    comparison = Comparison("incumbent", 0.2 + 0.1, 0.3, 1 / 3, (0.1 + 0.2, 1.0), 9, "live", (0.5, 0.6))
    assert comparison.as_fields() == {
        "name": "incumbent",
        "candidate": 0.3,
        "other": 0.3,
        "change": 0.333333333333,
        "interval": [0.3, 1.0],
        "n_users": 9,
        "scored": "live",
    }

"""The expected processor time of plain queries follows from measured calls."""

from __future__ import annotations

import math

import pytest

from svc.serving.models.plain_costs import LARGEST_CALL, UNKNOWN_PLAIN_S, PlainCosts


def test_the_measured_time_of_plain_queries_is_a_median() -> None:
    """One slow measurement among many, even the first, has no effect."""
    costs = PlainCosts()
    assert costs.measured_s(1) == math.inf
    for measured in (50.0, *[1.0] * 10):
        costs.learn(1, measured)
    assert costs.measured_s(1) == 1.0
    costs.learn(1, 1000.0)
    assert costs.measured_s(1) == 1.0


def test_plain_queries_are_expected_to_take_the_measured_time() -> None:
    """The time of an unmeasured number of queries is that of a similar number.

    Without a similar number, it is a multiple of the time of one query.
    """
    costs = PlainCosts()
    assert costs.measured_s(1) == math.inf
    assert costs.expected_s(4) == 4 * UNKNOWN_PLAIN_S
    costs.learn(1, 1e-4)
    assert costs.expected_s(LARGEST_CALL) == pytest.approx(LARGEST_CALL * 1e-4)
    costs.learn(200, 2e-3)
    assert costs.expected_s(129) == 2e-3

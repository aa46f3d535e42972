"""Older interactions count less."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from svc.training.data import decay
from tests.training.data.test_weights import DAY


@pytest.mark.parametrize(("text", "expected"), [("none", None), ("12h", 43_200), ("7d", 604_800), ("1.5y", 47_336_400)])
def test_half_lives_are_lengths_of_time(text: str, expected: float | None) -> None:
    """Hours, days, weeks, years."""
    assert decay.seconds(text) == expected


def test_a_weight_halves_with_each_half_life_before_the_last_event() -> None:
    """The last event counts whole; what is very old never vanishes, for it has been seen."""
    matrix = sparse.csr_matrix(np.array([[8.0, 8.0], [4.0, 1.0]], np.float32))
    days = np.array([[70_000, 69_993], [69_986, 1]], np.int64)
    times = sparse.csr_matrix(days * DAY * 10**9)
    found = decay.decayed(matrix, times, {"half_life": "7d"}).toarray()
    assert found[:, 0].tolist() == [8.0, 1.0]
    assert found[0, 1] == 4.0
    assert 0 < found[1, 1] < 1e-5
    assert decay.decayed(matrix, times, {"half_life": "none"}) is matrix
    assert decay.decayed(matrix, times, {}) is matrix

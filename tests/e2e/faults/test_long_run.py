"""The benchmark `soak` as a test, for 15 seconds or for SVC_TEST_SOAK_SECONDS."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.soak import Soak, growing

SECONDS = float(os.environ.get("SVC_TEST_SOAK_SECONDS", "15"))


@pytest.mark.integration
@pytest.mark.timeout(SECONDS + 120)
def test_a_long_run_has_no_failure_and_no_growth(tmp_path: Path) -> None:
    """A server under mixed load, swaps, faults and hostile clients has no failure and no growth."""
    soak = Soak(tmp_path)
    soak.run(SECONDS, show=print)
    assert soak.wrong == []
    assert soak.rows[-1]["answered"] > 100


@pytest.mark.parametrize("column", ["resident_mb", "threads", "files"])
def test_the_check_for_growth_detects_a_leak(column: str) -> None:
    """The check reports a figure that keeps growing.

    It does not report one that grows only at first or goes up and down.
    """
    flat = {"resident_mb": 100.0, "threads": 7.0, "files": 20.0}
    steady = [flat | {column: flat[column] + number % 2} for number in range(180)]
    settling = [flat | {column: flat[column] + min(number, 15)} for number in range(180)]
    leaking = [flat | {column: flat[column] * (1 + number / 100)} for number in range(180)]
    assert growing(steady) == growing(settling) == []
    assert [text.split()[0] for text in growing(leaking)] == [column]

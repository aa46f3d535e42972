"""The benchmark `soak` as a test: short in every run of the integration tests, as long as one likes by a variable."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.soak import Soak, growing

SECONDS = float(os.environ.get("SVC_TEST_SOAK_SECONDS", "15"))


@pytest.mark.integration
@pytest.mark.timeout(SECONDS + 120)
def test_a_long_run_has_no_failure_and_no_growth(tmp_path: Path) -> None:
    """Mixed load, a swap of both models every ten seconds, faults and strangers in between."""
    soak = Soak(tmp_path)
    soak.run(SECONDS, show=print)
    assert soak.wrong == []
    assert soak.rows[-1]["answered"] > 100


@pytest.mark.parametrize("column", ["resident_mb", "threads", "files"])
def test_the_check_for_growth_detects_a_leak(column: str) -> None:
    """What keeps growing is told; what only grows at first, or moves up and down, is not."""
    flat = {"resident_mb": 100.0, "threads": 7.0, "files": 20.0}
    steady = [flat | {column: flat[column] + number % 2} for number in range(180)]
    settling = [flat | {column: flat[column] + min(number, 15)} for number in range(180)]
    leaking = [flat | {column: flat[column] * (1 + number / 100)} for number in range(180)]
    assert growing(steady) == growing(settling) == []
    assert [text.split()[0] for text in growing(leaking)] == [column]

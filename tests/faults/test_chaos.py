"""A sample of the random runs of `nox -s chaos`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.chaos import live_through

STEPS = 3


@pytest.mark.system
@pytest.mark.parametrize("seed", [1, 2])
def test_random_faults_lose_no_version_and_no_answer(seed: int, tmp_path: Path) -> None:
    """One run uses an object store, and the other local files."""
    lived = live_through(seed, STEPS, tmp_path / "life")
    assert lived.answers
    assert lived.commands

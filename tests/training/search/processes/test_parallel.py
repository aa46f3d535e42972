"""The number of simultaneous trials, in threads or processes."""

from __future__ import annotations

import pytest

from svc.training.search.processes import parallel
from svc.training.search.processes.parallel import Parallelism

BIG = {"n_interactions": 1_000_000, "n_items": 10_000}
SMALL = {"n_interactions": 20_000, "n_items": 2_000}


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "usable_cores", lambda: 8)


def choose(wanted: int | None, n_trials: int, size: dict[str, int]) -> tuple[int, int, bool]:
    found = Parallelism.choose(wanted, n_trials=n_trials, **size)
    return found.workers, found.threads, found.in_processes


def test_all_cores_work_and_each_trial_has_its_share() -> None:
    """There is at most one worker for four trials, as more would start trials without known results."""
    assert choose(None, 40, BIG) == (8, 1, True)
    assert choose(None, 12, BIG) == (3, 2, True)
    assert choose(None, 1, BIG) == (1, 8, True)


def test_a_small_search_stays_in_this_process() -> None:
    """Such a search costs about as much as the start of one worker."""
    assert choose(None, 40, SMALL) == (1, 8, False)


def test_the_number_of_the_recipe_applies_up_to_the_number_of_trials() -> None:
    """It applies to small searches too, and may exceed the number of cores."""
    assert choose(2, 40, SMALL) == (2, 4, True)
    assert choose(16, 40, BIG) == (16, 1, True)
    assert choose(16, 3, BIG) == (3, 2, True)

"""How many trials run at once, and where."""

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
    """But no more workers than a quarter of the trials, which would be asked for before anything is known."""
    assert choose(None, 40, BIG) == (8, 1, True)
    assert choose(None, 12, BIG) == (3, 2, True)
    assert choose(None, 1, BIG) == (1, 8, True)


def test_a_small_search_stays_in_this_process() -> None:
    """A search that costs about as much as the start of one worker stays in this process."""
    assert choose(None, 40, SMALL) == (1, 8, False)


def test_what_the_recipe_says_holds_up_to_the_number_of_trials() -> None:
    """The number of the recipe counts also for a small search and above the number of cores."""
    assert choose(2, 40, SMALL) == (2, 4, True)
    assert choose(16, 40, BIG) == (16, 1, True)
    assert choose(16, 3, BIG) == (3, 2, True)

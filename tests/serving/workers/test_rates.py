"""The rate of a key applies to all workers together."""

from __future__ import annotations

import os
import time

import pytest

from svc.processes import SharedPage
from svc.recipe.yaml_reader import MAX_BYTES
from svc.serving.api.key_policies import Rate
from svc.serving.workers import rates
from svc.serving.workers.rates import CELLS, CELLS_BYTES, Cell, SharedBucket


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time of the machine's clock, which the test moves."""
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    return clock


def cells() -> SharedPage:
    return SharedPage.of(CELLS_BYTES)


def passed(buckets: list[SharedBucket], tries: int) -> int:
    count = 0
    for number in range(tries):
        bucket = buckets[number % len(buckets)]
        if not bucket.lacks_s(1, 0.0):
            bucket.add(-1)
            count += 1
    return count


def test_workers_share_one_burst_and_one_rate(now: list[float]) -> None:
    """A client that uses several workers gets no more than a client of one worker."""
    memory = cells()
    buckets = [SharedBucket(Rate(10.0, 20.0), Cell(memory, 7)) for _ in range(4)]
    assert passed(buckets, 100) == 20
    now[0] += 1.0
    assert passed(buckets, 100) == 10
    now[0] += 3600.0
    assert passed(buckets, 100) == 20
    buckets[0].add(5)
    assert passed(buckets[1:], 100) == 5


def test_each_key_has_a_burst_of_its_own(now: list[float]) -> None:
    """Each key has its own cell of the shared memory."""
    memory = cells()
    first, second = (SharedBucket(Rate(1.0, 3.0), Cell(memory, number)) for number in (1, 2))
    assert passed([first], 9) == 3
    assert passed([second], 9) == 3


def test_processes_that_count_at_once_lose_few_charges() -> None:
    """Two processes charge a thousand times each. A process that misses the lock's deadline may lose a charge."""
    memory = cells()
    children = []
    for _ in range(2):
        pid = os.fork()
        if pid == 0:
            bucket = SharedBucket(Rate(1e-9, 1e9), Cell(memory, 3))
            for _ in range(1000):
                bucket.add(-1)
            os._exit(0)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0]
    assert -2000.0 <= Cell(memory, 3).read()[0] <= -1980.0


def test_a_lock_that_is_never_released_blocks_no_other_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker may be stopped while it holds the lock. Other workers then count without the lock."""

    def lock(*_: int) -> None:
        raise BlockingIOError

    monkeypatch.setattr(rates.fcntl, "lockf", lock)
    assert passed([SharedBucket(Rate(1e-9, 2.0), Cell(cells(), 1))], 5) == 2


def test_the_longest_policy_file_has_a_cell_for_each_key() -> None:
    """Each key takes at least the six bytes of `a: {}` and a line end."""
    assert MAX_BYTES // len("a: {}\n") <= CELLS

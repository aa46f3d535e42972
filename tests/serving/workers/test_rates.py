"""Rates of keys and the throttle of refusals apply to all workers together."""

from __future__ import annotations

import fcntl
import os
import random
import time

import pytest

from svc.processes import SharedPage
from svc.recipe.yaml_reader import MAX_BYTES
from svc.serving.api.authentication import RefusalThrottle
from svc.serving.api.key_policies import Rate
from svc.serving.workers import rates
from svc.serving.workers.rates import CELLS, CELLS_BYTES, TRIES, Cell, KeyCells, SharedBucket, SharedThrottle


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
    """A client of several workers gets no more than a client of one."""
    memory = cells()
    buckets = [SharedBucket(Rate(10.0, 20.0), Cell(memory, 7)) for _ in range(4)]
    assert passed(buckets, 100) == 20
    now[0] += 1.0
    assert passed(buckets, 100) == 10
    now[0] += 3600.0
    assert passed(buckets, 100) == 20
    buckets[0].add(5)
    assert passed(buckets[1:], 100) == 5


def test_keys_do_not_share_cells(now: list[float]) -> None:
    """Each has a cell of its own."""
    memory = cells()
    first, second = (SharedBucket(Rate(1.0, 3.0), Cell(memory, number)) for number in (1, 2))
    assert passed([first], 9) == 3
    assert passed([second], 9) == 3


def test_refusals_are_slowed_down_together(now: list[float]) -> None:
    """The delays are those of a single process."""
    memory = cells()
    throttles = [SharedThrottle(RefusalThrottle(50.0, 5.0, 20.0), Cell(memory, 0)) for _ in range(3)]
    waits = [throttles[number % 3].next_wait_s() for number in range(9)]
    assert waits[:5] == [0.0] * 5
    assert waits[5:] == pytest.approx([0.02, 0.04, 0.06, 0.08])


def test_processes_that_count_at_once_lose_few_charges() -> None:
    """Two processes charge a thousand times each. A process that cannot get the lock in time may lose a charge."""
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


def test_a_lock_that_is_never_released_delays_others_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker may be stopped while it holds the lock. The others wait for it once, and again after it was free."""
    tries, taken = list[int](), True

    def lock(_descriptor: int, operation: int, *_: int) -> None:
        tries.append(operation)
        if taken and operation != fcntl.LOCK_UN:
            raise BlockingIOError

    monkeypatch.setattr(rates.fcntl, "lockf", lock)
    bucket = SharedBucket(Rate(1e-9, 2.0), Cell(cells(), 1))
    assert passed([bucket], 5) == 2
    assert len(tries) == TRIES + 6
    taken = False
    bucket.add(-1)
    taken = True
    tries.clear()
    bucket.add(-1)
    assert len(tries) == TRIES


@pytest.mark.parametrize("seed", range(10))
def test_the_cells_of_keys_never_collide_and_are_freed(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key keeps its cells while it has a policy. A new one begins with a full burst."""
    monkeypatch.setattr(rates, "CELLS", 2 * 8 + 1)
    rng, memory, before = random.Random(seed), cells(), dict[str, tuple[int, int]]()
    key_cells = KeyCells(memory)
    for _ in range(100):
        assigned = key_cells.assign(rng.sample("abcdefghijklmn", rng.randrange(9)))
        used = [number for pair in assigned.values() for number in pair]
        assert len(set(used)) == len(used)
        assert 0 not in used
        for kid, pair in assigned.items():
            cell = Cell(memory, pair[0])
            assert before.get(kid, pair) == pair
            assert cell.read() == ((5.0, 5.0) if kid in before else (0.0, 0.0))
            cell.write(5.0, 5.0)
        before = assigned


def test_a_policy_file_names_no_more_keys_than_there_are_cells() -> None:
    """The shortest policy of a key takes six bytes."""
    assert 1 + 2 * (MAX_BYTES // len("a: {}\n")) <= CELLS

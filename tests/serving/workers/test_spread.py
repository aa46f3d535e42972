"""Who gets a connection, how long the place of a lost worker stays empty, and who is taken to hang."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from svc.serving.workers.spread import DOUBTFUL_CHECKS, SILENT_CHECKS, Pauses, Pulse, in_order, surpluses


@dataclass(eq=False)
class FakeWorker:
    n_open: int = 0
    last_given: int = 0
    is_doubtful: bool = False


def give(workers: list[FakeWorker], count: int, turn: int) -> None:
    for number in range(count):
        first = in_order(workers)[0]
        first.n_open += 1
        first.last_given = turn + number


@pytest.mark.parametrize("seed", range(20))
def test_the_busiest_has_at_most_one_more_than_the_emptiest_when_as_many_come_as_left(seed: int) -> None:
    """16 connections over 4 workers, of which any 8 leave before 8 others come, again and again."""
    rng, workers = random.Random(seed), [FakeWorker() for _ in range(4)]
    give(workers, 16, 0)
    for turn in range(100, 2000, 100):
        for _ in range(8):
            rng.choice([worker for worker in workers if worker.n_open]).n_open -= 1
        give(workers, 8, turn)
        assert {worker.n_open for worker in workers} == {4}


@pytest.mark.parametrize("seed", range(20))
def test_after_the_surplus_has_moved_none_has_two_more_than_another(seed: int) -> None:
    """However uneven they were; no more connections move than have to."""
    rng = random.Random(seed)
    workers = [FakeWorker(n_open=rng.randrange(9), last_given=number) for number in range(rng.randint(1, 6))]
    before = {worker: worker.n_open for worker in workers}
    moving = surpluses(workers)
    for worker, count in moving.items():
        worker.n_open -= count
    give(workers, sum(moving.values()), 100)
    counts = [worker.n_open for worker in workers]
    assert max(counts) - min(counts) <= 1
    mean = sum(counts) / len(counts)
    assert sum(moving.values()) <= sum(max(count - mean, 0) for count in before.values()) + 1
    assert not any(surpluses(workers).values())


def test_a_difference_of_one_moves_nobody() -> None:
    """Else connections would be passed on for ever."""
    workers = [FakeWorker(n_open=count) for count in (2, 3, 3)]
    assert not any(surpluses(workers).values())
    assert surpluses([]) == {}


def test_few_connections_go_to_different_workers() -> None:
    """Of workers that are equally empty, the one that waited longest gets the next connection."""
    workers = [FakeWorker() for _ in range(4)]
    give(workers, 2, 1)
    for worker in workers:
        worker.n_open = 0
    give(workers, 2, 10)
    assert sorted(worker.last_given for worker in workers) == [1, 2, 10, 11]


def test_a_worker_that_gives_no_sign_is_asked_last() -> None:
    """It still gets connections when nobody else is there."""
    busy, doubtful = FakeWorker(n_open=9), FakeWorker(is_doubtful=True)
    assert in_order([doubtful, busy]) == [busy, doubtful]
    assert in_order([doubtful]) == [doubtful]


def test_a_worker_that_served_is_replaced_at_once() -> None:
    """Also after many deaths."""
    pauses = Pauses()
    assert [pauses.after(served_s=60.0) for _ in range(100)] == [0.0] * 100


def test_a_worker_that_dies_at_once_each_time_is_tried_with_growing_pauses() -> None:
    """Up to half a minute; one that has served ends the row."""
    pauses = Pauses()
    found = [pauses.after(served_s=0.0) for _ in range(14)]
    assert found[:3] == [0.0, 0.0, 0.0]
    assert found[3:6] == [0.1, 0.2, 0.4]
    assert found == sorted(found)
    assert found[-1] == 30.0
    assert pauses.is_failing
    assert pauses.after(served_s=5.0) == 0.0
    assert not pauses.is_failing


def test_silence_is_counted_in_looks() -> None:
    """Whoever gives a sign between two looks is well, however long a look takes to come."""
    pulse = Pulse()
    for beats in range(100):
        pulse.check(beats)
        assert not pulse.is_doubtful
    for _ in range(DOUBTFUL_CHECKS):
        pulse.check(99)
    assert pulse.is_doubtful and not pulse.is_silent
    for _ in range(SILENT_CHECKS - DOUBTFUL_CHECKS):
        pulse.check(99)
    assert pulse.is_silent
    pulse.check(100)
    assert not pulse.is_doubtful

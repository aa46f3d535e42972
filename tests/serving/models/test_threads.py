"""Scoring threads: their number, their priority, and the event loop that yields to late calls."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import trio
import trio.testing

from svc.cores import usable_cores
from svc.serving.models import threads
from svc.serving.models.threads import NICENESS, REST_S, ScoringThreads, lower_priority
from svc.settings import Settings

pytestmark = pytest.mark.anyio
A_WHILE_S = 10.0


class Rests:
    """A manual clock and sleep in place of the module's."""

    def __init__(self) -> None:
        self.now = 100.0
        self.taken = 0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds == REST_S
        self.taken += 1


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> Rests:
    found = Rests()
    monkeypatch.setattr(threads, "time", found)
    return found


def test_one_core_is_left_to_the_event_loop() -> None:
    """The default number of scoring threads is the number of cores less one, and at least one."""
    assert ScoringThreads.of(Settings(scoring_threads=3)).count == 3
    assert ScoringThreads.of(Settings()).count == max(1, usable_cores() - 1)


async def test_threads_have_low_priority() -> None:
    """A call in such a thread returns its result or raises its error."""

    def niceness(more: int) -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) + more

    def broken() -> None:
        raise MemoryError

    scoring = ScoringThreads(1)
    here = os.getpriority(os.PRIO_PROCESS, 0)
    assert await scoring.run(niceness, 3, usual_s=0.0) == max(here, NICENESS) + 3
    with pytest.raises(MemoryError):
        await scoring.run(broken, usual_s=0.0)


def test_a_lower_priority_of_the_process_is_kept() -> None:
    """A server that was started with `nice -n 19` could not raise it."""

    def lowered() -> int:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        lower_priority()
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    assert ThreadPoolExecutor(1).submit(lowered).result() == 19


async def test_expensive_calls_have_a_thread_of_their_own() -> None:
    """Cheap and expensive calls do not wait for each other."""
    scoring = ScoringThreads(1)
    together, over = threading.Barrier(2, timeout=A_WHILE_S), threading.Event()

    async def call(expensive: bool) -> None:
        await scoring.run(together.wait, usual_s=0.0, expensive=expensive)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call, False)
        nursery.start_soon(call, True)
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(partial(scoring.run, over.wait, usual_s=0.0, expensive=True))
        await trio.testing.wait_all_tasks_blocked()
        assert scoring._expensive_limiter.statistics().tasks_waiting == 1
        over.set()


async def test_a_busy_event_loop_rests_only_while_a_call_is_late(rests: Rests) -> None:
    """A call is late after its usual time. A call that waits for a thread is not late."""
    scoring = ScoringThreads(1)
    began, over = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        over.wait(A_WHILE_S)

    async def call(usual_s: float) -> None:
        await scoring.run(work, usual_s=usual_s)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call, 1.0)
        await trio.to_thread.run_sync(began.wait, A_WHILE_S)
        nursery.start_soon(call, 0.0)
        await trio.testing.wait_all_tasks_blocked()
        for now, timeout, taken in ((101.9, 0.0, 0), (102.1, 1.0, 0), (102.1, 0.0, 1), (102.2, 0.0, 2)):
            rests.now = now
            scoring.before_io_wait(timeout)
            assert rests.taken == taken
        over.set()
    scoring.before_io_wait(0.0)
    assert rests.taken == 2


async def test_a_late_call_gets_the_interpreter_from_a_busy_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of the event loop sleeps until the call can end. This test runs in real time."""
    rested: list[threading.Thread] = []

    class RealTime:
        perf_counter = staticmethod(time.perf_counter)

        def sleep(self, seconds: float) -> None:
            rested.append(threading.current_thread())
            time.sleep(seconds)

    def work() -> str:
        ends = time.monotonic() + A_WHILE_S
        while not rested and time.monotonic() < ends:
            time.sleep(0)
        return "done"

    async def spin() -> None:
        while True:
            await trio.lowlevel.checkpoint()

    monkeypatch.setattr(threads, "time", RealTime())
    scoring = ScoringThreads(1)
    trio.lowlevel.add_instrument(scoring)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(spin)
        assert await scoring.run(work, usual_s=0.0) == "done"
        nursery.cancel_scope.cancel()
    trio.lowlevel.remove_instrument(scoring)
    assert set(rested) == {threading.current_thread()}


def test_long_work_in_a_thread_sleeps_three_quarters_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop can use the interpreter meanwhile."""
    now, slept = [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(threads.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(threads.time, "sleep", sleep)
    take_a_break = threads.GilYielder()
    for _ in range(1000):
        now[0] += 50e-6
        take_a_break()
    assert sum(slept) == pytest.approx(0.75 * now[0], rel=0.05)

"""The threads of requests: turns within long work, and the expected wait."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from svc.serving.api.verbs import work_threads
from svc.serving.api.verbs.work_threads import WorkThread
from svc.serving.models.threads import NICENESS

pytestmark = pytest.mark.anyio


async def test_long_work_takes_turns_with_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a slice the rest returns to the end of the queue. Every step runs once, in order."""
    monkeypatch.setattr(work_threads, "SLICE_S", 0.0)
    order: list[str] = []

    def steps(name: str) -> Iterator[int]:
        for number in range(3):
            order.append(name)
            yield number

    thread, results = WorkThread(), dict[str, list[int]]()

    async def run(name: str) -> None:
        results[name] = await thread.run_steps(steps(name))

    held = threading.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(thread.run, held.wait)
        await trio.testing.wait_all_tasks_blocked(0.01)
        for name in "ab":
            nursery.start_soon(run, name)
            await trio.testing.wait_all_tasks_blocked(0.01)
        held.set()
    assert order == list("ababab")
    assert results == {"a": [0, 1, 2], "b": [0, 1, 2]}


async def test_all_work_has_the_priority_of_scoring() -> None:
    """Else light work would wait for heavy work whenever trio gave it a thread that has scored."""

    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    assert await WorkThread().run(priority) == max(os.getpriority(os.PRIO_PROCESS, 0), NICENESS)


async def test_the_expected_wait_depends_on_the_time_of_earlier_work() -> None:
    """Work that raises is measured too. Running work does not count, because it may end at any moment."""
    thread = WorkThread()

    def fail() -> None:
        time.sleep(0.06)
        raise KeyError

    for _ in range(3):
        with pytest.raises(KeyError):
            await thread.run(fail)
    held = threading.Event()
    async with trio.open_nursery() as nursery:
        for _ in range(11):
            nursery.start_soon(thread.run, held.wait)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert 0.6 <= thread.wait_s < 2
        held.set()

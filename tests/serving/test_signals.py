"""Work that runs until an event, and the effects of signals."""

from __future__ import annotations

import os
import signal

import pytest
import trio.testing

from svc.serving.signals import Stop, listen, on_hangup, run_until

pytestmark = pytest.mark.anyio


async def test_work_ends_by_itself_or_at_the_event() -> None:
    """The end of one cancels the other."""
    ended: list[str] = []
    began = trio.current_time()

    async def after(seconds: float, what: str) -> None:
        await trio.sleep(seconds)
        ended.append(what)

    await run_until(lambda: after(2, "over"), lambda: after(1, "work"))
    assert ended == ["work"]
    await run_until(lambda: after(1, "over"), lambda: after(2, "work"))
    assert ended == ["work", "over"]
    assert trio.current_time() - began == pytest.approx(2)


async def test_the_first_signal_stops_and_the_second_ends_at_once() -> None:
    """The first signal sets name and time, which later ones do not change."""
    stop, ended = Stop(), trio.Event()
    async with trio.open_nursery() as nursery:
        await nursery.start(listen, stop, ended.set)
        os.kill(os.getpid(), signal.SIGINT)
        await stop.event.wait()
        since = trio.current_time()
        assert not ended.is_set()
        await trio.sleep(3)
        os.kill(os.getpid(), signal.SIGTERM)
        await ended.wait()
        nursery.cancel_scope.cancel()
    assert (stop.reason, stop.since) == ("SIGINT", pytest.approx(since))


async def test_work_is_done_at_every_hangup_that_is_not_ignored() -> None:
    """Under nohup the server ignores hangups, and reads no keys again."""
    done = 0

    async def work() -> None:
        nonlocal done
        done += 1
        if done == 2:
            nursery.cancel_scope.cancel()
        else:
            os.kill(os.getpid(), signal.SIGHUP)

    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(on_hangup, work)
            await trio.testing.wait_all_tasks_blocked()
            os.kill(os.getpid(), signal.SIGHUP)
        assert done == 2
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        await on_hangup(work)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert done == 2

"""Blocking calls with a timeout and a bounded number of threads, in virtual time."""

from __future__ import annotations

import threading

import pytest
import trio
import trio.testing

from svc.serving.models.bounded_calls import Calls, CallTimeout

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    """Give threads half a second to start before the clock jumps, because a busy machine starts them late."""
    return ("trio", {"clock": trio.testing.MockClock(autojump_threshold=0.5)})


async def test_a_call_returns_its_result_or_raises_its_error() -> None:
    """Within its timeout, the call behaves like a plain function call."""
    calls = Calls(1)
    assert await calls.run("a", lambda: 7, 5) == 7
    with pytest.raises(ZeroDivisionError):
        await calls.run("a", lambda: 1 // 0, 5)
    assert not calls.outstanding("a")


async def test_a_hanging_call_is_abandoned_and_releases_its_slot() -> None:
    """With one slot, the next call runs. The hanging call stays outstanding until it ends."""
    calls = Calls(1)
    release = threading.Event()
    ended = threading.Event()

    def hang() -> None:
        release.wait()
        ended.set()

    with pytest.raises(CallTimeout):
        await calls.run("hung", hang, 5)
    assert calls.outstanding("hung")
    assert await calls.run("other", lambda: "here", 5) == "here"
    release.set()
    ended.wait()
    with trio.fail_after(5):
        while calls.outstanding("hung"):  # noqa: ASYNC110 (the thread has no event to wait for after its last step)
            await trio.sleep(0.01)


async def test_no_more_calls_than_slots_run_at_once() -> None:
    """At most sixteen of forty calls are in a thread."""
    calls = Calls(16)
    running, most = 0, 0
    lock = threading.Lock()

    def count() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        with lock:
            running -= 1

    async with trio.open_nursery() as nursery:
        for key in range(40):
            nursery.start_soon(calls.run, key, count, 5)
    assert 1 <= most <= 16


async def test_a_call_whose_thread_cannot_be_started_is_not_outstanding(monkeypatch: pytest.MonkeyPatch) -> None:
    """An outstanding call that never ends would block all later calls of its key."""
    calls = Calls(1)

    async def refused(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(trio.to_thread, "run_sync", refused)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await calls.run("a", lambda: 7, 5)
    assert not calls.outstanding("a")
    assert await calls.run("a", lambda: 7, 5) == 7

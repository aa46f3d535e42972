"""Functions of every server process: settings, signals and shutdown."""

from __future__ import annotations

import math
import os
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
import trio.testing

from svc.serving import process
from svc.serving.process import Stop, listen, on_hangup
from svc.settings import Settings

pytestmark = pytest.mark.anyio


def test_a_single_error_is_unwrapped_from_its_exception_groups() -> None:
    """A group of several errors stays a group."""
    error = ValueError("x")
    assert process.unwrap_single(ExceptionGroup("a", [ExceptionGroup("b", [error])])) is error
    several = ExceptionGroup("a", [error, KeyError("y")])
    assert process.unwrap_single(several) is several


def test_the_limits_of_connections_are_the_settings() -> None:
    """The times for idle, unread and draining connections, and for refusals, come from their settings."""
    limits = process.limits(Settings(keep_alive_s=1.0, client_timeout_s=2.0, drain_s=3.0, max_queue_s=6.0))
    assert (limits.idle_s, limits.unread_s, limits.drain_s, limits.refuse_s) == (1.0, 2.0, 3.0, 2.0)
    assert process.limits(Settings(max_queue_s=0)).refuse_s == math.inf


@pytest.mark.parametrize("is_abstract", [False, True], ids=["file", "abstract"])
def test_systemd_is_notified_when_the_server_answers(tmp_path: Path, is_abstract: bool) -> None:
    """READY=1 goes to the socket of NOTIFY_SOCKET. Nothing is sent if the variable is unset or the socket is gone."""
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind("\0" + name if is_abstract else name)
        systemd.setblocking(False)
        process.notify_ready({})
        process.notify_ready({"NOTIFY_SOCKET": str(tmp_path / "gone")})
        with pytest.raises(BlockingIOError):
            systemd.recv(64)
        process.notify_ready({"NOTIFY_SOCKET": "@" + name if is_abstract else name})
        assert systemd.recv(64) == b"READY=1"


async def test_a_hanging_collector_does_not_delay_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shutdown does not wait for the thread that exports the last spans."""
    monkeypatch.setattr(process, "LAST_SPANS_S", 0.01)
    asked, over = threading.Event(), threading.Event()

    class Spans:
        def close(self) -> None:
            asked.set()
            over.wait()

    spans: Any = Spans()
    await process.close_spans(spans)
    assert asked.is_set()
    over.set()


async def test_the_first_signal_stops_and_the_second_ends_at_once() -> None:
    """The first signal sets the name and the time of the stop. A later one does not change them."""
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


def test_an_immediate_exit_waits_for_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code is 0. The call does not run what Python does at a regular exit."""
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    process.exit_now()
    assert codes == [0]


async def test_work_runs_at_each_sighup_unless_it_is_ignored() -> None:
    """If SIGHUP is ignored, as under nohup, the server rereads no keys."""
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

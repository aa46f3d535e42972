"""What all processes that answer have in common."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from svc.serving import process
from svc.settings import Settings


def test_one_error_in_groups_is_told_alone() -> None:
    """Several stay a group."""
    error = ValueError("x")
    assert process.single(ExceptionGroup("a", [ExceptionGroup("b", [error])])) is error
    several = ExceptionGroup("a", [error, KeyError("y")])
    assert process.single(several) is several


def test_the_limits_of_connections_are_the_settings() -> None:
    """Each where it belongs."""
    limits = process.limits(Settings(keep_alive_s=1.0, client_timeout_s=2.0, drain_s=3.0))
    assert (limits.idle_s, limits.unread_s, limits.drain_s) == (1.0, 2.0, 3.0)


@pytest.mark.parametrize("is_abstract", [False, True], ids=["file", "abstract"])
def test_systemd_learns_that_the_server_answers(tmp_path: Path, is_abstract: bool) -> None:
    """By the socket that it names; without one, or with one that is gone, nothing happens."""
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


@pytest.mark.anyio
async def test_a_collector_that_does_not_take_the_last_spans_holds_up_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that sends them is left behind."""
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

"""Setup and end of all processes that answer requests."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from svc.serving import process
from svc.settings import Settings


def test_a_single_error_is_taken_out_of_its_groups() -> None:
    """Several errors stay a group."""
    error = ValueError("x")
    assert process.unwrap_single(ExceptionGroup("a", [ExceptionGroup("b", [error])])) is error
    several = ExceptionGroup("a", [error, KeyError("y")])
    assert process.unwrap_single(several) is several


def test_the_limits_of_connections_are_the_settings() -> None:
    """Each limit has its own setting."""
    limits = process.limits(Settings(keep_alive_s=1.0, client_timeout_s=2.0, drain_s=3.0))
    assert (limits.idle_s, limits.unread_s, limits.drain_s) == (1.0, 2.0, 3.0)


@pytest.mark.parametrize("is_abstract", [False, True], ids=["file", "abstract"])
def test_systemd_is_notified_when_the_server_answers(tmp_path: Path, is_abstract: bool) -> None:
    """Without its socket, or with a removed one, nothing happens."""
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
async def test_a_hanging_collector_does_not_delay_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that sends the spans is abandoned."""
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

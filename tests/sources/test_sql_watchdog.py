"""A server that falls silent loses its connection; one that keeps sending rows keeps it."""

from __future__ import annotations

import socket

import pytest

from svc.sources.sql_watchdog import Watchdog


@pytest.fixture
def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair()


def test_silence_ends_the_connection(pair: tuple[socket.socket, socket.socket]) -> None:
    """The driver, which waits in `recv`, sees its end; its own descriptor stays its own."""
    mine, theirs = pair
    watchdog = Watchdog(0.05)
    with mine, theirs:
        watchdog.over(mine.fileno())
        assert mine.recv(1) == b""
        watchdog.stop()
        assert watchdog.ended_it
        assert mine.fileno() >= 0


def test_a_stopped_watchdog_ends_nothing(pair: tuple[socket.socket, socket.socket]) -> None:
    """Neither while it is stopped nor afterwards; one that was never set over anything can be stopped too."""
    mine, theirs = pair
    watchdog = Watchdog(30.0)
    with mine, theirs:
        watchdog.over(mine.fileno())
        watchdog.reset()
        watchdog.stop()
        assert not watchdog.ended_it
        theirs.send(b"x")
        assert mine.recv(1) == b"x"
    Watchdog(0.0).stop()

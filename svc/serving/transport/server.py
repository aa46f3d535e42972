"""The server loop: accept connections, run each in a task, and end them all in the right order."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import trio

from svc import events, logs
from svc.serving.signals import run_until
from svc.serving.transport.connection import Connection
from svc.serving.transport.listener import BACKLOG
from svc.serving.transport.messages import Application
from svc.serving.transport.pacing import TurnScheduler
from svc.serving.transport.shared import Limits, Shared

ACCEPTED_A_TURN, ACCEPTED_IN_A_CROWD = 8, 1
PAUSE_S = 0.1
"""After a connection could not be accepted, as when there are too many open files."""
ENDED_A_TURN = 100


class Listener(Protocol):
    """Where connections come from: a listening socket, or what stands for one."""

    def __enter__(self) -> object: ...
    def __exit__(self, *error: object) -> None: ...
    def fileno(self) -> int: ...
    def setblocking(self, flag: bool, /) -> None: ...
    def accept(self) -> tuple[socket.socket, Any]: ...


async def serve(
    application: Application, listener: Listener, limits: Limits, *, until: Callable[[], Awaitable[None]]
) -> None:
    """Accept from `listener`, which is listening, until `until()` returns; then close it.

    What has come by then is answered. Idle connections end at once, busy ones with their answer or after `drain_s`.
    """
    shared = Shared(application, limits, TurnScheduler())
    listener.setblocking(False)
    async with trio.open_nursery() as process:
        process.start_soon(shared.turns.run)
        process.start_soon(shared.watch)
        async with trio.open_nursery() as connections:
            acceptor = Acceptor(listener, shared, connections)
            try:
                with listener:
                    await run_until(until, acceptor.run)
                    acceptor.accept(BACKLOG)  # closing the listener would reset whom the kernel has connected already
                shared.ending = True
                await _end_idle(shared)
            finally:
                connections.cancel_scope.deadline = trio.current_time() + limits.drain_s
        process.cancel_scope.cancel()


async def _end_idle(shared: Shared) -> None:
    """Let connections that wait for a request look a last time for one, some in each turn of the event loop."""
    while shared.idle:
        for connected in list(shared.idle)[:ENDED_A_TURN]:
            trio.lowlevel.notify_closing(connected)
        await trio.lowlevel.checkpoint()


class Acceptor:
    """Accepts a few connections in each turn of the event loop, so that opening thousands keeps nobody waiting."""

    def __init__(self, listener: Listener, shared: Shared, connections: trio.Nursery) -> None:
        self._listener = listener
        self._shared = shared
        self._connections = connections

    async def run(self) -> None:
        """Accept until cancelled. That the machine can have no more connections is logged once, and waited out."""
        failing = False
        while True:
            await trio.lowlevel.wait_readable(self._listener)
            try:
                self.accept(ACCEPTED_IN_A_CROWD if self._shared.turns.crowded else ACCEPTED_A_TURN)
                failing = False
            except OSError as error:
                if not failing:
                    logs.emit(events.CONNECTION_FAILED, error=f"{type(error).__name__}: {error}")
                failing = True
                await trio.sleep(PAUSE_S)

    def accept(self, most: int) -> None:
        """Accept those who wait, at most so many. Raises OSError when the machine can have no more connections."""
        for _ in range(most):
            try:
                connected, _ = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionError:  # it has left already
                continue
            connected.setblocking(False)
            self._connections.start_soon(Connection(connected, self._shared).run)

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
    application: Application,
    listener: Listener,
    limits: Limits,
    *,
    until: Callable[[], Awaitable[None]],
    pass_on: Callable[[socket.socket], bool] | None = None,
) -> None:
    """Accept from `listener`, which is listening, until `until()` returns; then close it.

    What has come by then is answered. Idle connections end at once, busy ones with their answer or after `drain_s`.
    `pass_on` may give a connection to another process whenever it has been answered.
    """
    shared = Shared(application, limits, TurnScheduler(), pass_on)
    listener.setblocking(False)
    async with trio.open_nursery() as process:
        process.start_soon(shared.turns.run)
        process.start_soon(shared.watch)
        async with trio.open_nursery() as connections:

            def take(connected: socket.socket) -> None:
                connected.setblocking(False)
                connections.start_soon(Connection(connected, shared).run)

            def most() -> int:
                return ACCEPTED_IN_A_CROWD if shared.turns.crowded else ACCEPTED_A_TURN

            acceptor = Acceptor(listener, take, most)
            try:
                with listener:
                    await run_until(until, acceptor.run)
                    acceptor.accept_backlog()
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
    """Accepts a few connections in each turn of the event loop, so that opening thousands keeps nobody waiting.

    `take` gets each of them; `most` says how many a turn may bring. Where `ready` is given, those who come wait in the
    kernel's queue until it returns.
    """

    def __init__(
        self,
        listener: Listener,
        take: Callable[[socket.socket], None],
        most: Callable[[], int],
        ready: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._listener = listener
        self._take = take
        self._most = most
        self._ready = ready

    async def run(self) -> None:
        """Accept until cancelled. That the machine can have no more connections is logged once, and waited out."""
        failing = False
        while True:
            if self._ready is not None:
                await self._ready()
            await trio.lowlevel.wait_readable(self._listener)
            try:
                self._accept(self._most())
                failing = False
            except OSError as error:
                if not failing:
                    logs.emit(events.CONNECTION_FAILED, error=f"{type(error).__name__}: {error}")
                failing = True
                await trio.sleep(PAUSE_S)

    def accept_backlog(self) -> None:
        """Accept those who wait: closing the listener would reset whom the kernel has connected already."""
        try:
            self._accept(BACKLOG)
        except OSError as error:  # whom the machine has no room for is reset; the others get their answers
            logs.emit(events.CONNECTION_FAILED, error=f"{type(error).__name__}: {error}")

    def _accept(self, most: int) -> None:
        """Accept those who wait, at most so many. Raises OSError when the machine can have no more connections."""
        for _ in range(most):
            try:
                connected, _ = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionError:  # it has left already
                continue
            self._take(connected)

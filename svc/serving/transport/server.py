"""The server loop: accept connections, run each in a task, and end them all in the right order."""

from __future__ import annotations

import errno
import socket
from collections.abc import Awaitable, Callable

import trio

from svc import events, logs
from svc.serving.signals import run_until
from svc.serving.transport.certificate import Tls
from svc.serving.transport.connection import Connection
from svc.serving.transport.listener import BACKLOG, stop
from svc.serving.transport.messages import Application
from svc.serving.transport.pacing import TurnScheduler
from svc.serving.transport.shared import Limits, Shared
from svc.serving.transport.spread import Spread

ACCEPTED_A_TURN, ACCEPTED_IN_A_CROWD = 8, 1
PAUSE_S = 0.1
"""Pause after a connection could not be accepted, for example with too many open files."""
ENDED_A_TURN = 100


async def serve(
    application: Application,
    listener: socket.socket,
    limits: Limits,
    *,
    until: Callable[[], Awaitable[None]],
    leave_s: float = 0.0,
    spread: Spread | None = None,
    tls: Tls | None = None,
) -> None:
    """Accept from `listener`, which is listening, until `until()` returns, then close it.

    Requests that arrived by then are answered. Idle connections end after `leave_s`, busy ones with their answer or
    after `drain_s`. `spread` has the number of connections of each process that shares the listener. With `tls`
    hypercorn serves the connections.
    """
    shared = Shared(application, limits, TurnScheduler(), spread or Spread.alone())
    secure = None
    if tls is not None:
        from svc.serving.transport.tls import TlsServer  # hypercorn takes time to import

        secure = TlsServer(tls, shared)
    listener.setblocking(False)
    async with trio.open_nursery() as process:
        process.start_soon(shared.turns.run)
        process.start_soon(shared.watch)
        async with trio.open_nursery() as connections:

            def take(connected: socket.socket) -> None:
                connected.setblocking(False)
                shared.spread.opened()
                if secure is None:
                    connections.start_soon(Connection(connected, shared).run)
                else:
                    connections.start_soon(secure.run, connected)

            acceptor = Acceptor(listener, take, shared)
            try:
                with listener:
                    await run_until(until, acceptor.run)
                    acceptor.accept_backlog()
                await trio.sleep(leave_s)
                shared.ending = True
                if secure is not None:
                    await secure.end()
                await _end_idle(shared)
            finally:
                connections.cancel_scope.deadline = trio.current_time() + limits.drain_s
        process.cancel_scope.cancel()


async def _end_idle(shared: Shared) -> None:
    """Wake idle connections to answer a request that has just arrived, or to close. ENDED_A_TURN wake in each turn."""
    while shared.idle:
        for connected in list(shared.idle)[:ENDED_A_TURN]:
            trio.lowlevel.notify_closing(connected)
        await trio.lowlevel.checkpoint()


class Acceptor:
    """Accepts a few connections in each turn of the event loop, so that thousands of new ones delay no request.

    Calls `take` with each. A process that shares its listener accepts one a turn, after processes with fewer
    connections.
    """

    def __init__(self, listener: socket.socket, take: Callable[[socket.socket], None], shared: Shared) -> None:
        self._listener = listener
        self._take = take
        self._shared = shared

    async def run(self) -> None:
        """Accept until cancelled.

        If the system is out of files or memory, this is logged once, and accepting is tried again every PAUSE_S.
        """
        failing = False
        while True:
            await trio.lowlevel.wait_readable(self._listener)
            await self._shared.spread.wait_for_others()
            few = self._shared.turns.crowded or self._shared.spread.is_shared
            try:
                self._accept(ACCEPTED_IN_A_CROWD if few else ACCEPTED_A_TURN)
                failing = False
            except OSError as error:
                if not failing:
                    logs.emit(events.CONNECTION_FAILED, error=f"{type(error).__name__}: {error}")
                failing = True
                await trio.sleep(PAUSE_S)

    def accept_backlog(self) -> None:
        """Accept all waiting connections, because closing the listener would reset them."""
        try:
            self._accept(BACKLOG)
        except OSError as error:  # out of files or memory: the kernel resets the connections that remain
            logs.emit(events.CONNECTION_FAILED, error=f"{type(error).__name__}: {error}")
        for connected in stop(self._listener):
            self._take(connected)

    def _accept(self, most: int) -> None:
        """Accept at most `most` waiting connections. Raises OSError if the system is out of files or memory."""
        for _ in range(most):
            try:
                connected, _ = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionError:  # the client has disconnected already
                continue
            except OSError as error:
                if error.errno == errno.EINVAL:  # another worker has stopped the listener
                    return
                raise
            self._take(connected)

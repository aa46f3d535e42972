"""The listening socket, and the server loop: accept connections, run each in a task, and end them in order."""

from __future__ import annotations

import ctypes
import errno
import ipaddress
import os
import socket
from collections.abc import Awaitable, Callable

import trio

from svc import events, logs
from svc.errors import ConfigError
from svc.serving.transport.certificate import Tls
from svc.serving.transport.connection import Connection, Limits, Shared, Spread
from svc.serving.transport.messages import Application
from svc.serving.transport.pacing import TurnScheduler

BACKLOG = 1024
# Keeps clients that connect during a drain from being reset (1 of 110 in one of five runs under load): with
# `socket`, another thread may run between the last accept and the shutdown.
_holding_lock = ctypes.PyDLL(None)


def check_exposure(host: str, *, has_api_keys: bool, insecure_no_auth: bool) -> None:
    """Raise `ConfigError` if other machines could use the server without an API key.

    `insecure_no_auth` permits that. The caller admits it in a development environment only.
    """
    if has_api_keys or insecure_no_auth or _is_loopback(host):
        return
    raise ConfigError(
        f"SVC_API_KEYS is empty, so only loopback may be bound, not {host}: set SVC_API_KEYS "
        "(`svc keygen --type api`) or bind 127.0.0.1; in development --insecure-no-auth lifts this"
    )


def _is_loopback(host: str) -> bool:
    return all(ipaddress.ip_address(address).is_loopback for _, address in _resolve(host, 0))


def _resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, str]]:
    try:
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"the host {host!r} cannot be resolved: {error.strerror}") from None
    addresses = [(family, str(address[0]).partition("%")[0]) for family, _, _, _, address in resolved]
    return sorted(addresses, key=lambda pair: pair[0] != socket.AF_INET)


def bind(host: str, port: int, *, unread_timeout_s: float) -> socket.socket:
    """Return a TCP socket bound to an address. Port 0 takes any free port. Raises `ConfigError`.

    The socket does not listen yet, so clients are refused at once instead of waiting for the models. A client that
    leaves an answer unread for `unread_timeout_s` loses its connection.
    """
    family, address = _resolve(host, port)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(unread_timeout_s * 1000))
    try:
        listener.bind((address, port))
    except OSError as error:
        listener.close()
        raise _unavailable(host, port, error) from None
    return listener


def listen(listener: socket.socket) -> tuple[str, int]:
    """Accept connections from now on, and return the address.

    Raises `ConfigError` if another process listens there.
    """
    host, port = listener.getsockname()[:2]
    try:
        listener.listen(BACKLOG)
    except OSError as error:
        raise _unavailable(host, port, error) from None
    return host, port


def _unavailable(host: str, port: int, error: OSError) -> ConfigError:
    return ConfigError(f"cannot listen on {host}:{port}: {os.strerror(error.errno or 0).lower()}")


def stop(listener: socket.socket) -> list[socket.socket]:
    """Accept the connections in the kernel's queue, and refuse all later ones.

    The calls keep the interpreter's lock. With Python's own calls a scoring thread may run for milliseconds between the
    last accept and the close, and the kernel resets clients that connect meanwhile.
    """
    number, accepted = listener.fileno(), []
    while (connected := _holding_lock.accept4(number, None, None, socket.SOCK_CLOEXEC)) >= 0:
        accepted.append(connected)
    _holding_lock.shutdown(number, socket.SHUT_RDWR)
    return [socket.socket(fileno=connected) for connected in accepted]


ACCEPTED_A_TURN, ACCEPTED_IN_A_CROWD = 8, 1
PAUSE_S = 0.1
"""Pause after a connection could not be accepted, for example with too many open files."""
# Bounds the turn of the event loop in which a drain wakes all idle connections.
ENDED_A_TURN = 100


async def run_until(over: Callable[[], Awaitable[None]], work: Callable[[], Awaitable[None]]) -> None:
    """Run `work()` to its end, or cancel it when `over()` returns first."""
    async with trio.open_nursery() as nursery:

        async def cancel() -> None:
            await over()
            nursery.cancel_scope.cancel()

        nursery.start_soon(cancel)
        await work()
        nursery.cancel_scope.cancel()


async def serve(
    application: Application,
    listener: socket.socket,
    limits: Limits,
    *,
    until: Callable[[], Awaitable[None]],
    spread: Spread | None = None,
    tls: Tls | None = None,
) -> None:
    """Accept from `listener`, which is listening, until `until()` returns, then close it.

    Requests that arrived by then are answered. Idle connections end after `leave_s` of the limits, busy ones with
    their answer or after `drain_s`. `spread` has the number of connections of each process that shares the listener.
    With `tls` hypercorn serves the connections.
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
                shared.spread.show(1)
                if secure is None:
                    connections.start_soon(Connection(connected, shared).run)
                else:
                    connections.start_soon(secure.run, connected)

            acceptor = Acceptor(listener, take, shared)
            try:
                with listener:
                    await run_until(until, acceptor.run)
                    acceptor.accept_backlog()
                await trio.sleep(limits.leave_s)
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

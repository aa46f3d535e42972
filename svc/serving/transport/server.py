"""The listening socket, and the server loop, which accepts connections, serves each in a task, and drains them."""

from __future__ import annotations

import ctypes
import errno
import ipaddress
import os
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio

from svc import events, logs
from svc.errors import ConfigError
from svc.late_imports import LateModule
from svc.serving.transport.certificate import Tls
from svc.serving.transport.connection import Connection, ConnectionLimits, Shared, Spread, run_until
from svc.serving.transport.messages import RequestHandler
from svc.serving.transport.pacing import TurnScheduler

if TYPE_CHECKING:
    from svc.serving.transport import tls as tls_server
else:
    tls_server = LateModule("svc.serving.transport.tls")  # only with TLS, because hypercorn slows the start

BACKLOG = 1024
# libc functions that `stop` calls without releasing the GIL (PyDLL). The methods of `socket` release it. Then another
# thread may run between the last accept and the shutdown, and the kernel resets the clients that connect meanwhile:
# 1 of 110 clients in one of five runs under load.
_libc_with_gil = ctypes.PyDLL(None)


def check_exposure(host: str, *, has_api_keys: bool, insecure_no_auth: bool) -> None:
    """Raise `ConfigError` if other machines could use the server without an API key.

    `insecure_no_auth` permits such a server. The command line accepts this option in a development environment only.
    Also raises `ConfigError` if the host must be checked and cannot be resolved.
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
    """Return the addresses of a host with their families, IPv4 first. Raises `ConfigError` if there are none."""
    try:
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:  # UnicodeError for a host such as "shop..com"
        raise ConfigError(f"the host {host!r} cannot be resolved: {getattr(error, 'strerror', error)}") from None
    addresses = [(family, str(address[0]).partition("%")[0]) for family, _, _, _, address in resolved]
    return sorted(addresses, key=lambda pair: pair[0] != socket.AF_INET)


def bind(host: str, port: int, *, unread_timeout_s: float) -> socket.socket:
    """Return a TCP socket that is bound to `host` and `port` but does not listen. Port 0 takes any free port.

    If the host has several addresses, the first is bound, IPv4 before IPv6. Clients that connect before `listen` are
    refused at once. Otherwise they would wait until all models are loaded. The kernel resets a connection whose client
    leaves an answer unread for `unread_timeout_s`.

    Raises `ConfigError` if the host cannot be resolved or the address cannot be bound.
    """
    family, address = _resolve(host, port)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    # Otherwise a restart fails while connections of the earlier process are in TIME_WAIT.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Accepted sockets inherit both options from the listener, which saves two calls for each connection.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(unread_timeout_s * 1000))
    try:
        listener.bind((address, port))
    except OSError as error:
        listener.close()
        raise _unavailable(host, port, error) from None
    return listener


def listen(listener: socket.socket) -> tuple[str, int]:
    """Let clients connect from now on, and return host and port.

    Raises `ConfigError` if the system refuses, for example because another process listens on this address.
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
    """Stop listening, and return the connections that were still in the kernel's queue.

    Uses libc directly, so that no other thread of the interpreter runs between the last accept and the shutdown.
    """
    number, accepted = listener.fileno(), []
    while (connected := _libc_with_gil.accept4(number, None, None, socket.SOCK_CLOEXEC)) >= 0:
        accepted.append(connected)
    _libc_with_gil.shutdown(number, socket.SHUT_RDWR)
    return [socket.socket(fileno=connected) for connected in accepted]


ACCEPTED_A_TURN, ACCEPTED_IN_A_CROWD = 8, 1
"""Maximum number of connections that are accepted in one turn of the event loop.

The second number applies while new connections wait for their first turn, and if workers share the listener."""
PAUSE_S = 0.1
"""Pause after the system could not accept a connection, for example because too many files are open."""
ENDED_A_TURN = 100
"""Maximum number of idle connections that a drain wakes in one turn of the event loop. The bound keeps turns short."""


async def serve(
    application: RequestHandler,
    listener: socket.socket,
    limits: ConnectionLimits,
    *,
    until: Callable[[], Awaitable[None]],
    spread: Spread | None = None,
    tls: Tls | None = None,
) -> None:
    """Answer requests from `listener` until `until()` returns, then close the listener and drain the connections.

    Requests that have arrived by then are answered. Idle connections end after `limits.leave_s`. Busy connections end
    after their answer, at the latest after a further `limits.drain_s`. `spread` holds the numbers of open connections
    of all processes that share the listener. It is None if no other process shares it. With `tls` the connections use
    TLS, and hypercorn reads them.
    """
    shared = Shared(application, limits, TurnScheduler(limits.refuse_s), spread or Spread.alone())
    secure = None if tls is None else tls_server.TlsServer(tls, shared)
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
                # The nursery waits for requests in flight, and cancels them at this deadline.
                connections.cancel_scope.deadline = trio.current_time() + limits.drain_s
        process.cancel_scope.cancel()


async def _end_idle(shared: Shared) -> None:
    """Wake idle connections, ENDED_A_TURN in each turn. Each answers a request that has just arrived, or closes."""
    while shared.idle:
        for connected in list(shared.idle)[:ENDED_A_TURN]:
            trio.lowlevel.notify_closing(connected)
        await trio.lowlevel.checkpoint()


class Acceptor:
    """An accept loop that takes a few connections a turn, so that thousands of new connections delay no request.

    Passes each accepted socket to `take`. A process that shares its listener accepts one connection a turn, and lets
    processes with fewer connections accept first.
    """

    def __init__(self, listener: socket.socket, take: Callable[[socket.socket], None], shared: Shared) -> None:
        self._listener = listener
        self._take = take
        self._shared = shared

    async def run(self) -> None:
        """Accept connections until cancelled. Accepts no more once another worker has stopped the listener.

        If a connection cannot be accepted, for example because file descriptors or memory have run out, the loop
        retries every PAUSE_S. Only the first of several failures in a row is logged.
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
                if error.errno == errno.EINVAL:  # the listener stays readable, so another wait would return at once
                    await trio.sleep_forever()
                if not failing:
                    logs.emit(events.CONNECTION_FAILED, error=f"{type(error).__name__}: {error}")
                failing = True
                await trio.sleep(PAUSE_S)

    def accept_backlog(self) -> None:
        """Stop listening, and accept all connections in the kernel's queue. Closing the listener would reset them."""
        try:
            self._accept(BACKLOG)
        except OSError as error:  # for example no more file descriptors: closing resets the remaining connections
            if error.errno != errno.EINVAL:
                logs.emit(events.CONNECTION_FAILED, error=f"{type(error).__name__}: {error}")
        for connected in stop(self._listener):
            self._take(connected)

    def _accept(self, most: int) -> None:
        """Accept at most `most` waiting connections.

        Raises OSError, for example if file descriptors have run out. Its `errno` is EINVAL if another worker has
        stopped the listener.
        """
        for _ in range(most):
            try:
                connected, _ = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionError:  # the client has disconnected already
                continue
            self._take(connected)

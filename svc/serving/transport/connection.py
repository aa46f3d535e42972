"""HTTP/1.1 connections: reading requests from a socket, sending answers, and the state that all connections share.

An error in one connection never affects another connection. Processes that share a listener also share their numbers of
open connections. A process with more connections than another waits up to PATIENCE_S before it accepts the next.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

import trio

from svc import events, logs
from svc.errors import ApiError
from svc.serving.transport.http1 import CONTINUE, Heads, RequestReader, encode_head
from svc.serving.transport.messages import SLOWEST_BYTES_PER_S, ClientGone, Head, RequestHandler, Response
from svc.serving.transport.pacing import Rank, TurnScheduler

PATIENCE_S = 0.002
"""Longest time that a process waits for processes with fewer connections to accept first."""
VACANT = 1 << 62
"""Number of open connections that the parent writes for a process that has ended (`Spread`).

It is so large that no other process waits for this one."""


class Spread:
    """The number of open connections of this process, in shared memory beside the numbers of the other processes.

    `counts` has one number for each process. This process writes `counts[slot]`. The parent writes VACANT there
    while no process has this slot.
    """

    def __init__(self, counts: memoryview[int], slot: int = 0) -> None:
        self._counts = counts
        self._slot = slot
        self._n_open = 0

    @classmethod
    def alone(cls) -> Spread:
        """Return the spread of a process that does not share its listener."""
        return cls(memoryview(bytearray(8)).cast("Q"))

    @property
    def is_shared(self) -> bool:
        return len(self._counts) > 1

    def show(self, change: int = 0) -> None:
        """Add `change` to the number of open connections, and write the number to the shared memory.

        `change` is 1 for an accepted connection and -1 for an ended connection. A process calls this method without a
        change when it begins to accept.
        """
        self._n_open += change
        self._counts[self._slot] = self._n_open

    async def wait_for_others(self) -> None:
        """Return when no other process has fewer connections, or after PATIENCE_S."""
        # Waits in turns of the event loop, because a sleep takes at least 1 ms. With sleeps, the rate of short
        # connections is lower by three quarters.
        until_s = time.perf_counter() + PATIENCE_S
        while self._n_open > min(self._counts) and time.perf_counter() < until_s:
            await trio.lowlevel.checkpoint()


READ_BYTES = 1 << 16
T = TypeVar("T")
MOST_VECTORS = 1024
"""Maximum number of parts that the kernel takes in one call (IOV_MAX)."""
PRECISION_S = 0.1
"""Longest time that an idle connection stays open beyond its limit."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Time limits of connections, in seconds."""

    idle_s: float
    """Longest wait for the complete head of the next request."""
    unread_s: float
    """Time in which a client must read an answer. Each MiB of the answer adds a second."""
    drain_s: float
    """Longest time for requests in flight when the server stops, counted from the end of `leave_s`."""
    leave_s: float = 0.0
    """Time that idle connections stay open after the server has stopped accepting.

    Closing idle connections at once would cut off requests that clients have just sent."""
    refuse_s: float = math.inf
    """Time in which a request whose expected wait is too long is refused, except in a flood of such requests."""


@dataclass(slots=True)
class Shared:
    """State that all connections of a listener share in one process."""

    application: RequestHandler
    limits: ConnectionLimits
    turns: TurnScheduler
    spread: Spread
    ending: bool = False
    """True from the end of `leave_s` on. Connections then answer only requests whose head has fully arrived."""
    heads: Heads = field(default_factory=Heads)
    idle: dict[socket.socket, float] = field(default_factory=dict)
    """Sockets that wait for a request, with the time on trio's clock when the wait began. The longest wait comes first.

    One task watches all sockets, because a trio deadline for each request costs as much as parsing the request.
    """

    async def watch(self) -> None:
        """Until cancelled, wake connections that have been idle for too long.

        `wait_readable` raises ClosedResourceError in a connection that is woken, and the connection then closes.
        """
        while True:
            now, idle_s = trio.current_time(), self.limits.idle_s
            for connected, since_s in self.idle.items():
                if since_s > now - idle_s:
                    break
                trio.lowlevel.notify_closing(connected)
            oldest = next(iter(self.idle.values()), now)
            await trio.sleep_until(max(oldest + idle_s, now + PRECISION_S))


async def next_bytes(connected: socket.socket) -> bytes:
    """Return the next received bytes, or empty bytes if the client has ended its side of the connection.

    Raises OSError if the client has reset the connection, and ClosedResourceError if `notify_closing` ends the wait.
    """
    while True:
        await trio.lowlevel.wait_readable(connected)
        with suppress(BlockingIOError):  # a socket that is reported as readable may still have no bytes
            return connected.recv(READ_BYTES)


async def run_until(over: Callable[[], Awaitable[None]], work: Callable[[], Awaitable[T]]) -> tuple[T, ...]:
    """Return the result of `work()` as a tuple, or cancel `work()` and return () if `over()` returns earlier.

    Raises an exception of `work` as it is, not in an exception group.
    """
    results: tuple[T, ...] = ()
    failed: Exception | None = None

    async def cancel() -> None:
        await over()
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancel)
        try:
            results = (await work(),)
        except Exception as error:
            failed = error
        nursery.cancel_scope.cancel()
    if failed is not None:
        raise failed
    return results


LINGER_S = 2.0
"""Longest time to read on from a client that still sends its request after the answer.

Closing a socket with unread bytes resets the connection, and the client could lose the answer."""

PROBE_S = 0.5
"""Time between two checks whether a client that sends no more requests still waits for its answer."""


class Connection:
    """One HTTP/1.1 connection. It answers requests one after the other, and `run` closes its socket at the end."""

    def __init__(self, connected: socket.socket, shared: Shared) -> None:
        self._socket = connected
        self._shared = shared
        self._reader = RequestReader(shared.heads.parse)
        self._rank = Rank.NEWCOMER
        self.arrived_s = self.late_s = 0.0
        self.client = ""
        self.kid: str | None = None
        """Id of the key of the last request, or None before the first accepted key."""

    async def run(self) -> None:
        """Answer requests until the client or the server ends the connection.

        An unexpected exception is logged and ends this connection only.
        """
        try:
            self.client = str(self._socket.getpeername()[0])  # raises OSError if the client has reset already
            while await self._serve_next():
                pass
        except ApiError as error:
            with suppress(OSError, trio.BrokenResourceError):
                await self._send(self._shared.application.refuse(error, self.client), closing=True)
                await self._linger()
        except (OSError, trio.BrokenResourceError, ClientGone):
            pass
        except Exception as error:
            logs.emit(events.CONNECTION_FAILED, error=f"{type(error).__name__}: {error}", exc_info=error)
        finally:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()
            self._shared.spread.show(-1)

    async def _serve_next(self) -> bool:
        """Answer the next request, and return True if another may follow."""
        # Not inline in `run`: this function returns before the next wait, and so frees the memory of the request.
        head = await self._next_head()
        return head is not None and await self._answer(head)

    async def _next_head(self) -> Head | None:
        """Return the head of the next request, or None if the client has disconnected or was idle for too long.

        Also returns None if the server stops before the head is complete. Raises an ApiError if the head is invalid,
        and OSError if the client has reset the connection.
        """
        idle, self.late_s = self._shared.idle, 0.0
        idle[self._socket] = self.arrived_s = trio.current_time()
        try:
            while (head := await self._paced_head()) is None:
                if self._shared.ending:
                    return self._last_head()
                if self._rank is Rank.GOING_ON and not self._reader.waiting:
                    self._rank = Rank.KNOWN  # all pipelined requests of this connection have been answered
                data = await next_bytes(self._socket)
                self.arrived_s = trio.current_time()
                self._reader.feed(data)
                if not data:
                    return None
                del data  # the wait for more bytes would keep them in memory beside the reader's copy
        except trio.ClosedResourceError:  # `Shared.watch` or a stop of the server has woken this connection
            return self._last_head() if self._shared.ending else None
        else:
            return head
        finally:
            del idle[self._socket]

    async def _paced_head(self) -> Head | None:
        """Wait for this connection's turn, and return the next head, or None if the head is incomplete.

        Does not wait if no bytes have arrived. Sets `late_s` if the expected wait is too long. The request then gets
        its turn at the pace of refusals.
        """
        if not self._reader.waiting:
            return None
        rank = Rank.PROBE if self._reader.starts_with(self._shared.application.urgent) else self._rank
        self.late_s = self._shared.application.late_s(self._reader, self._shared.turns.expected_wait_s(rank, self.kid))
        await self._shared.turns.enter(Rank.REFUSED if self.late_s else rank, self.kid)
        self._rank = Rank.GOING_ON
        return self._reader.head()

    def _last_head(self) -> Head | None:
        """Return the next head if all of it has arrived, else None. A stopping server still answers such a request."""
        with suppress(BlockingIOError):
            while (head := self._reader.head()) is None and (data := self._socket.recv(READ_BYTES)):
                self._reader.feed(data)
            return head
        return None

    async def _answer(self, head: Head) -> bool:
        """Answer one request, and return True if another may follow.

        Raises OSError or BrokenResourceError if the answer cannot be sent.
        """
        # Does not use ASGI, because building the ASGI scope takes 9 to 13 µs a request.
        response = await self._shared.application(Exchange(head, self, self._reader))
        if response is None:
            return False
        whole = await self._skip_body()
        leaving = self._shared.ending or self._shared.application.is_leaving
        closing = leaving or response.ends_connection or not (head.keeps_alive and whole)
        await self._send(response, closing=closing, without_body=head.method == "HEAD")
        if response.ends_connection or not whole:
            await self._linger()
        return not closing

    async def _skip_body(self) -> bool:
        """Discard the received bytes of a body, and return True if the body was complete and well formed."""
        # The answer is decided already. A malformed rest of the body only ends the connection.
        with suppress(ApiError):
            while not self._reader.body_ended and self._reader.part():
                await self.pace(Rank.GOING_ON)
        return self._reader.body_ended

    async def receive(self) -> bytes:
        """Return the next received bytes, or empty bytes if the client has ended its side or reset the connection.

        A cancelled call loses no bytes.
        """
        with suppress(ConnectionError):  # the client has reset the connection
            with suppress(BlockingIOError):
                return self._socket.recv(READ_BYTES)
            return await next_bytes(self._socket)
        return b""

    async def pace(self, rank: Rank) -> None:
        """Wait for this connection's turn to read received bytes of a body."""
        await self._shared.turns.enter(rank, self.kid)

    async def send_continue(self) -> None:
        """Tell a client that sent `Expect: 100-continue` to send the body."""
        with suppress(ConnectionError):  # the next read finds out that the client has disconnected
            await self._send_all([CONTINUE])

    async def until_closed(self, *, probes: bool) -> None:
        """Return when a client that sends no more requests has closed the connection.

        A client that only shuts down its sending side still waits for the answer, but the server receives the same end
        of stream from a client that has closed. With `probes` the server sends "100 Continue" every PROBE_S, because
        the kernel of a client that has closed replies with a reset. Without `probes` the call returns only if the
        client resets the connection by itself.
        """
        with suppress(ConnectionError):
            while not self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                if probes:
                    with suppress(BlockingIOError):
                        self._socket.send(CONTINUE)
                await trio.sleep(PROBE_S)

    async def _send(self, response: Response, *, closing: bool, without_body: bool = False) -> None:
        head = encode_head(response, closing=closing)
        await self._send_all([head] if without_body else [head, *response.parts])

    async def _send_all(self, parts: list[bytes]) -> None:
        """Send all bytes, in one system call if the kernel has room for them.

        Raises BrokenResourceError if the client does not read in time, and OSError if it has reset the connection.
        """
        try:
            # Head and body in one call. The kernel refuses more vectors (EMSGSIZE), so the rest goes part by part
            # below.
            sent = self._socket.sendmsg(parts if len(parts) <= MOST_VECTORS else parts[:MOST_VECTORS])
        except BlockingIOError:
            sent = 0
        size = sum(map(len, parts))
        # Usually the kernel takes all bytes at once. Then no deadline is set.
        if sent == size:
            return
        unsent = self._shared.application.unsent.hold(size - sent)
        with unsent, trio.move_on_after(self._shared.limits.unread_s + size / SLOWEST_BYTES_PER_S):
            for part in parts:  # joining the parts would copy many MiB for a client that may never read them
                rest = memoryview(part)[sent:]
                sent = max(sent - len(part), 0)
                while rest:
                    await trio.lowlevel.wait_writable(self._socket)
                    with suppress(BlockingIOError):
                        rest = rest[self._socket.send(rest) :]
            return
        raise trio.BrokenResourceError("the client does not take its answer")

    async def _linger(self) -> None:
        """End the server's side, then read and discard bytes that the client still sends, for at most LINGER_S."""
        with suppress(OSError), trio.move_on_after(LINGER_S):
            self._socket.shutdown(socket.SHUT_WR)
            while await next_bytes(self._socket):
                pass


class Exchange:
    """One request of a connection, as the application sees it (`messages.Incoming`)."""

    __slots__ = ("_connection", "_continues", "_rank", "_reader", "arrived_s", "client", "head", "late_s", "whole_body")

    def __init__(self, head: Head, connection: Connection, reader: RequestReader) -> None:
        self.head = head
        self.client = connection.client
        self.arrived_s = connection.arrived_s
        self.late_s = connection.late_s
        self.whole_body = reader.whole_body()
        self._continues = head.expects_continue
        self._rank = Rank.KNOWN
        self._connection = connection
        self._reader = reader

    def note_kid(self, kid: str) -> None:
        """Take turns with the other connections of this key from now on."""
        self._connection.kid = kid

    async def receive(self) -> bytes:
        """Return the next part of the body, or empty bytes after the last part.

        Raises ClientGone if the client has disconnected, and an ApiError if the body is malformed.
        """
        if self._rank is Rank.GOING_ON and self._reader.waiting:
            await self._connection.pace(self._rank)  # divides thousands of small chunks in one packet into turns
        while (part := self._reader.part()) is None:
            if self._continues:
                self._continues = False
                await self._connection.send_continue()
            await self._read()
            await self._connection.pace(self._rank)
            # Only the first packet of a body has the rank KNOWN. Later packets go behind, so a body that drips in does
            # not delay short ones.
            self._rank = Rank.GOING_ON
        self._rank = Rank.GOING_ON
        return part

    async def until_gone(self) -> None:
        """Return when the client has disconnected. A client that only stopped sending still waits for the answer.

        Keeps received bytes for `receive`. Once it keeps READ_BYTES or more, it reads no further and never returns.
        """
        with suppress(ClientGone):
            # Without the bound, a client could fill the memory by pipelined bytes while it waits for its answer.
            while self._reader.waiting < READ_BYTES:
                await self._read()
            await trio.sleep_forever()
        await self._connection.until_closed(probes=self.head.takes_interim)

    async def _read(self) -> None:
        data = await self._connection.receive()
        if not data:
            raise ClientGone
        self._reader.feed(data)

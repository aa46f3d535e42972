"""Connections of HTTP/1.1, from the first byte to the last, and the state that the connections of one server share.

An error in one connection never affects another. A process with more connections than others on the same listener
accepts later.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field

import trio

from svc import events, logs
from svc.errors import ApiError
from svc.serving.transport.http1 import CONTINUE, Heads, RequestReader, encode_head
from svc.serving.transport.messages import SLOWEST_BYTES_PER_S, Application, ClientGone, Head, Response
from svc.serving.transport.pacing import Rank, TurnScheduler

PATIENCE_S = 0.002
"""Longest time that a process waits for others to accept first.

It waits in turns of the event loop: a sleep takes at least a millisecond, which costs three quarters of the rate of
short connections."""
VACANT = 1 << 62
"""Count for a slot without a process, so that no process waits for it."""


class Spread:
    """The number of open connections of one process, in its slot of a shared memory. Only this process writes there."""

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
        """Change the count by 1 or -1 for a connection that was accepted or has ended, and write it.

        Overwrites a VACANT that was written while this process looked dead.
        """
        self._n_open += change
        self._counts[self._slot] = self._n_open

    async def wait_for_others(self) -> None:
        """Return when no other process has fewer connections, or after PATIENCE_S."""
        until_s = time.perf_counter() + PATIENCE_S
        while self._n_open > min(self._counts) and time.perf_counter() < until_s:
            await trio.lowlevel.checkpoint()


READ_BYTES = 1 << 16
PRECISION_S = 0.1
"""An idle connection may stay open this much longer than its limit."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits in seconds: until the next head arrives, until the client reads an answer, and for a drain.

    Large answers get a second more for each MiB. Idle connections stay open until `leave_s` after the begin of a drain,
    because closing them at once would cut off requests that clients have just sent.
    """

    idle_s: float
    unread_s: float
    drain_s: float
    leave_s: float = 0.0


@dataclass(slots=True)
class Shared:
    """State that connections share. `ending` is set when the server stops taking requests."""

    application: Application
    limits: Limits
    turns: TurnScheduler
    spread: Spread
    ending: bool = False
    heads: Heads = field(default_factory=Heads)
    idle: dict[socket.socket, float] = field(default_factory=dict)
    """Idle connections with the time since when, longest first.

    One task watches them all: a deadline for each would cost as much as parsing its request. A connection that was idle
    too long gets ClosedResourceError from `wait_readable`.
    """

    async def watch(self) -> None:
        """Wake connections that were idle too long, until cancelled."""
        while True:
            now, idle_s = trio.current_time(), self.limits.idle_s
            for connected, since_s in self.idle.items():
                if since_s > now - idle_s:
                    break
                trio.lowlevel.notify_closing(connected)
            oldest = next(iter(self.idle.values()), now)
            await trio.sleep_until(max(oldest + idle_s, now + PRECISION_S))


async def next_bytes(connected: socket.socket) -> bytes:
    """Return the next bytes, or no bytes at the end.

    Reads again if the kernel announces bytes and then has none.
    """
    while True:
        await trio.lowlevel.wait_readable(connected)
        with suppress(BlockingIOError):
            return connected.recv(READ_BYTES)


LINGER_S = 2.0
"""Time for reading from a refused client that still sends: closing at once would reset the connection and lose the
answer."""

PROBE_S = 0.5
"""Time between two probes of a client that has ended its requests and waits for an answer."""


class Connection:
    """One connection, which answers the requests from its socket one after the other.

    `run` closes the socket.
    """

    def __init__(self, connected: socket.socket, shared: Shared) -> None:
        self._socket = connected
        self._shared = shared
        self._reader = RequestReader(shared.heads.parse)
        self._rank = Rank.NEWCOMER
        self.arrived_s = self.late_s = 0.0
        self.client = ""

    async def run(self) -> None:
        """Serve until either side has ended the connection.

        A defect ends this connection only, and is logged.
        """
        try:
            self.client = str(self._socket.getpeername()[0])
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
        # A function of its own: its end frees the request, so that an idle connection holds none.
        head = await self._next_head()
        return head is not None and await self._answer(head)

    async def _next_head(self) -> Head | None:
        """Return the head of the next request. Raises an ApiError.

        The result is None at the end of the connection, or if the head did not come in time.
        """
        idle, self.late_s = self._shared.idle, 0.0
        idle[self._socket] = self.arrived_s = trio.current_time()
        try:
            while (head := await self._paced_head()) is None:
                if self._shared.ending:
                    return self._last_head()
                if self._rank is Rank.GOING_ON and not self._reader.waiting:
                    self._rank = Rank.KNOWN  # all its pipelined requests have been answered
                data = await next_bytes(self._socket)
                self.arrived_s = trio.current_time()
                self._reader.feed(data)
                if not data:
                    return None
                del data
        except trio.ClosedResourceError:  # it was idle for too long, or the server ends
            return self._last_head() if self._shared.ending else None
        else:
            return head
        finally:
            del idle[self._socket]

    async def _paced_head(self) -> Head | None:
        if not self._reader.waiting:
            return None
        rank = Rank.PROBE if self._reader.starts_with(self._shared.application.urgent) else self._rank
        self.late_s = self._shared.application.late_s(self._reader, self._shared.turns.expected_wait_s(rank))
        await self._shared.turns.enter(Rank.REFUSED if self.late_s else rank)
        self._rank = Rank.GOING_ON
        return self._reader.head()

    def _last_head(self) -> Head | None:
        """Return the next head if all of it has arrived, because a stopping server still answers such a request."""
        with suppress(BlockingIOError):
            while (head := self._reader.head()) is None and (data := self._socket.recv(READ_BYTES)):
                self._reader.feed(data)
            return head
        return None

    async def _answer(self, head: Head) -> bool:
        """Answer one request, and return True if another may follow. Raises ClientGone."""
        # Not by ASGI, whose scope costs 9 to 13 µs a request.
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
        with suppress(ApiError):
            while not self._reader.body_ended and self._reader.part():
                await self.pace(Rank.GOING_ON)
        return self._reader.body_ended

    async def receive(self) -> bytes:
        """Return the next bytes, empty at the end of the connection.

        A cancelled call loses no bytes.
        """
        with suppress(ConnectionError):  # a reset by the client counts as the end of the connection
            with suppress(BlockingIOError):
                return self._socket.recv(READ_BYTES)
            return await next_bytes(self._socket)
        return b""

    async def pace(self, rank: Rank) -> None:
        """Wait for this connection's turn to read received bytes of a body."""
        await self._shared.turns.enter(rank)

    async def send_continue(self) -> None:
        """Ask for the body. If the client has disconnected, the next read reports it."""
        with suppress(ConnectionError):
            await self._send_all([CONTINUE])

    async def until_closed(self, *, probes: bool) -> None:
        """Return when a client that has ended its requests has closed the connection.

        Closing and ending the requests look the same to the server. The system of a client that has closed resets the
        connection when it gets an interim answer, so `probes` sends such answers. Without `probes` the result is only
        noticed if the client itself resets the connection.
        """
        with suppress(ConnectionError):
            while not self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                if probes:
                    with suppress(BlockingIOError):
                        self._socket.send(CONTINUE)
                await trio.sleep(PROBE_S)

    async def _send(self, response: Response, *, closing: bool, without_body: bool = False) -> None:
        head = encode_head(response, closing=closing)
        await self._send_all([head] if without_body or not response.body else [head, response.body])

    async def _send_all(self, parts: list[bytes]) -> None:
        """Send all bytes, in one system call if the kernel has room for them.

        Raises BrokenResourceError if the client does not read.
        """
        try:
            sent = self._socket.sendmsg(parts)
        except BlockingIOError:
            sent = 0
        size = sum(map(len, parts))
        # Without a deadline and a task switch: 7% more answers a second, with 16 and with 64 connections.
        if sent == size:
            return
        with trio.move_on_after(self._shared.limits.unread_s + size / SLOWEST_BYTES_PER_S):
            for part in parts:  # not joined, which would copy many MiB for a client that may never read them
                rest = memoryview(part)[sent:]
                sent = max(sent - len(part), 0)
                while rest:
                    await trio.lowlevel.wait_writable(self._socket)
                    with suppress(BlockingIOError):
                        rest = rest[self._socket.send(rest) :]
            return
        raise trio.BrokenResourceError("the client does not take its answer")

    async def _linger(self) -> None:
        """Read and discard bytes that the client still sends, for at most LINGER_S."""
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

    async def receive(self) -> bytes:
        """Return the next part of the body, empty at its end.

        Raises ClientGone, and the ApiError of a broken body.
        """
        if self._rank is Rank.GOING_ON and self._reader.waiting:
            await self._connection.pace(self._rank)  # thousands of small chunks in one packet take several turns
        while (part := self._reader.part()) is None:
            if self._continues:
                self._continues = False
                await self._connection.send_continue()
            await self._read()
            await self._connection.pace(self._rank)
            # Later parts rank lower: a body in one packet goes before others, a dripping one after them.
            self._rank = Rank.GOING_ON
        self._rank = Rank.GOING_ON
        return part

    async def until_gone(self) -> None:
        """Return when the client has disconnected, which is more than the end of its requests.

        Reads at most READ_BYTES ahead. If the client sends more, its end is not noticed.
        """
        with suppress(ClientGone):
            while self._reader.waiting < READ_BYTES:
                await self._read()
            await trio.sleep_forever()
        await self._connection.until_closed(probes=self.head.takes_interim)

    async def _read(self) -> None:
        data = await self._connection.receive()
        if not data:
            raise ClientGone
        self._reader.feed(data)

"""The n-th accept, send or receive of a server fails. At most that connection ends, and others are answered."""

from __future__ import annotations

import errno
import itertools
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
import trio
from structlog.testing import capture_logs

from svc.serving.transport import server
from svc.serving.transport.connection import ConnectionLimits
from svc.serving.transport.server import BACKLOG
from tests.faults.failing_calls import STRIDE, Failure
from tests.faults.failing_sockets import PASSING, SOCKET_KINDS, FailingListener
from tests.serving.transport.echo import KEPT, LARGE, REQUEST, Echo

pytestmark = pytest.mark.anyio
LIMITS = ConnectionLimits(idle_s=30, unread_s=30, drain_s=5)
LONGEST_S = 60.0
FAULTS = [
    (kind, failure)
    for kind, failures in SOCKET_KINDS.items()
    for failure in (failures if STRIDE == 1 else (failures[0], failures[-1]))
]
BODY = b"x" * 200_000
POST = b"POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n" % len(BODY)
CONTINUE = b"100 Continue\r\n\r\n"


async def asked(stream: trio.SocketStream, *turns: tuple[bytes, bytes]) -> bool:
    """Send each request, and read until its expected end. Return False if the connection ends before that."""
    try:
        for request, end in turns:
            await stream.send_all(request)
            heard = bytearray()
            while not heard.endswith(end):
                piece = await stream.receive_some()
                if not piece:
                    return False
                heard += piece
    except trio.BrokenResourceError:
        return False
    return True


async def kept(stream: trio.SocketStream) -> bool:
    """Send three requests, one of them in two pieces."""
    request = KEPT % b""
    pieces = (request[:10], b""), (request[10:], b"well")
    return await asked(stream, (request, b"well"), *pieces, (REQUEST % b"", b"well"))


async def body(stream: trio.SocketStream) -> bool:
    """Send a body after `100 Continue`."""
    return await asked(stream, (POST, CONTINUE), (BODY, b"got " + BODY))


async def large(stream: trio.SocketStream) -> bool:
    """Request an answer that is too large for one `send`."""
    return await asked(stream, (KEPT % b"large", LARGE))


Conversation = Callable[[trio.SocketStream], Awaitable[bool]]
CONVERSATIONS: tuple[Conversation, ...] = (kept, body, large)


class Running:
    """A server with a failing listener. It must close all connections and log no exception."""

    def __init__(self, kind: str, failure: Failure, nth: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._port = self._listener.getsockname()[1]
        self.calls = FailingListener(self._listener, kind, failure, nth)
        self.drain = trio.Event()

    async def run(self) -> None:
        with capture_logs() as told:
            await server.serve(Echo(), self.calls, LIMITS, until=self.drain.wait)
        assert self.calls.open == set()
        assert [record for record in told if "exc_info" in record] == []

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self._port)

    async def holds(self, conversation: Conversation) -> bool:
        async with await self.connect() as stream:
            return await conversation(stream)


async def passes(conversation: Conversation, kind: str, failure: Failure, nth: int) -> bool:
    """Hold two conversations, in which call `nth` fails. Return True if fewer calls were made."""
    running = Running(kind, failure, nth)
    with trio.fail_after(LONGEST_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(running.run)
            held = [await running.holds(conversation), await running.holds(conversation)]
            running.drain.set()
    if kind == "accept" or failure in PASSING or not running.calls.failed:
        assert all(held)
    assert any(held)
    return not running.calls.failed


async def drains(kind: str, failure: Failure, nth: int) -> bool:
    """Drain idle, busy and not yet accepted connections while call `nth` fails.

    Return True if fewer calls were made.
    """
    running = Running(kind, failure, nth)
    running.calls.counts = False
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        nursery.start_soon(running.run)
        idle, half, busy = [await stack.enter_async_context(await running.connect()) for _ in range(3)]
        assert await asked(idle, (KEPT % b"", b"well"))
        await half.send_all(KEPT[:10])
        await busy.send_all(KEPT % b"large")
        await busy.receive_some(1)
        late = socket.create_connection(("127.0.0.1", running._port))  # no turn of the event loop: not accepted
        late.sendall(KEPT % b"")
        late.setblocking(False)
        unaccepted = await stack.enter_async_context(trio.SocketStream(trio.socket.from_stdlib_socket(late)))
        ended_at = trio.current_time() + LIMITS.drain_s + 1
        running.calls.counts = True
        running.drain.set()
        answered = await asked(busy, (b"", LARGE))
        was_accepted = await asked(unaccepted, (b"", b"well"))
        if failure in PASSING and kind != "accept":
            assert answered
            assert was_accepted
    assert trio.current_time() < ended_at
    return not running.calls.failed


async def loop(passing: Callable[[int], Awaitable[bool]], stride: int = STRIDE) -> int:
    """Repeat for each n until fewer calls are made, and return the number of failed calls."""
    for failed, nth in enumerate(itertools.count(1, stride)):
        if await passing(nth):
            return failed
    raise AssertionError


@pytest.mark.system
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault[0]}-{fault[1]}")
async def test_a_failing_system_call_ends_at_most_its_own_connection(
    conversation: Conversation, fault: tuple[str, Failure]
) -> None:
    """Clients notice no error that loses no byte. After any other error, one of two connections is still answered."""
    failed = await loop(lambda nth: passes(conversation, *fault, nth))
    print(f"{conversation.__name__}, {fault[0]}: {failed} calls")  # noqa: T201 - `-rP` shows how many


@pytest.mark.system
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault[0]}-{fault[1]}")
async def test_a_drain_survives_a_failure_of_any_system_call(fault: tuple[str, Failure]) -> None:
    """The drain ends in time, and connections without a failure get their answers."""
    failed = await loop(lambda nth: drains(*fault, nth), 1)
    print(f"drain, {fault[0]}: {failed} calls")  # noqa: T201


@pytest.mark.parametrize(("kind", "failure"), [("accept", errno.EMFILE), ("receive", errno.EAGAIN), ("send", "short")])
async def test_failures_of_sampled_system_calls_end_at_most_one_connection(kind: str, failure: Failure) -> None:
    """The failures are one kind each for accepting, receiving and sending."""
    assert await loop(lambda nth: passes(kept, kind, failure, nth), 1)
    assert await loop(lambda nth: drains(kind, failure, nth), 1)

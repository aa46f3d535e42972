"""Idle connections: one task ends those that are idle too long, and no others.

Processes that share a listener have equal numbers of connections, and none waits long for another.
"""

from __future__ import annotations

import socket
import time
from contextlib import AsyncExitStack, ExitStack
from functools import partial

import pytest
import trio

from svc.serving.transport import server, shared
from svc.serving.transport.shared import PRECISION_S, VACANT, Limits, Spread
from tests.serving.sockets import listening
from tests.serving.transport.echo import KEPT, Echo

pytestmark = pytest.mark.anyio
IDLE_S = 5.0


async def test_each_connection_ends_at_its_own_time() -> None:
    """Any number may have been idle since different moments, new or answered."""
    ended: dict[int, float] = {}

    async def wait(number: int, stream: trio.SocketStream) -> None:
        since = trio.current_time()
        if number % 2:
            await stream.send_all(KEPT % b"")
            assert (await stream.receive_some()).endswith(b"well")
        assert await stream.receive_some() == b""
        ended[number] = trio.current_time() - since

    async with listening(Echo(), idle_s=IDLE_S) as port, AsyncExitStack() as stack, trio.open_nursery() as nursery:
        for number in range(20):
            stream = await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port))
            nursery.start_soon(wait, number, stream)
            await trio.sleep(0.25)
    assert len(ended) == 20
    assert all(IDLE_S - PRECISION_S <= waited <= IDLE_S + 1 for waited in ended.values())


async def test_a_busy_connection_is_not_idle() -> None:
    """Its idle time begins with its answer, even if making the answer takes longer than the limit."""
    async with listening(Echo(), idle_s=0.3) as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(KEPT % b"slow")
        assert (await stream.receive_some()).endswith(b"well")
        await stream.send_all(KEPT % b"")
        assert (await stream.receive_some()).endswith(b"well")


LIMITS = Limits(idle_s=30, unread_s=30, drain_s=5)


def counts_of(size: int) -> memoryview[int]:
    return memoryview(bytearray(8 * size)).cast("Q")


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the longest wait above a turn of a busy machine."""
    monkeypatch.setattr(shared, "PATIENCE_S", 5.0)


async def answered(client: socket.socket) -> None:
    """Return when the client has an answer, so that a process has accepted it."""
    client.setblocking(False)
    client.send(KEPT % b"")
    await trio.lowlevel.wait_readable(client)
    client.recv(1 << 16)


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("n_workers", [2, 3, 8])
async def test_connections_that_come_one_by_one_are_balanced(n_workers: int) -> None:
    """No process has two more than another. New connections fill the gaps of ended ones."""
    counts, drain = counts_of(n_workers), trio.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as stack:
        async with trio.open_nursery() as nursery:
            for slot in range(n_workers):
                serve = partial(server.serve, until=drain.wait, spread=Spread(counts, slot))
                nursery.start_soon(serve, Echo(), listener.dup(), LIMITS)
            clients: list[socket.socket] = []
            for number in range(4 * n_workers):
                clients.append(stack.enter_context(socket.create_connection(listener.getsockname())))
                await answered(clients[-1])
                assert sum(counts) == number + 1
                assert max(counts) - min(counts) <= 1
            for client in clients[::2]:
                client.close()
            while sum(counts) > 2 * n_workers:
                await trio.lowlevel.checkpoint()
            for _ in range(2 * n_workers):
                client = stack.enter_context(socket.create_connection(listener.getsockname()))
                await answered(client)
            assert max(counts) - min(counts) <= 1
            drain.set()
    assert counts.tolist() == [0] * n_workers


@pytest.mark.usefixtures("patience")
async def test_a_burst_is_balanced_and_answered_in_a_drain() -> None:
    """No connection is accepted twice or reset."""
    counts, drain = counts_of(4), trio.Event()
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener, ExitStack() as stack:

        def burst() -> list[socket.socket]:
            return [stack.enter_context(socket.create_connection(listener.getsockname())) for _ in range(40)]

        async with trio.open_nursery() as nursery:
            for slot in range(4):
                serve = partial(server.serve, until=drain.wait, spread=Spread(counts, slot))
                nursery.start_soon(serve, Echo(), listener.dup(), LIMITS)
            for client in burst():
                await answered(client)
            assert sum(counts) == 40
            assert max(counts) - min(counts) <= 3
            late = burst()
            for client in late:
                client.send(KEPT % b"")
            drain.set()
            for client in late:
                await trio.lowlevel.wait_readable(client)
                assert client.recv(1 << 16).endswith(b"well")


async def test_no_process_waits_long_for_one_that_does_not_accept(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait for a vacant slot at all, and for a stopped process only for a moment."""
    counts = counts_of(2)
    own = Spread(counts, 0)
    own.count_opened()
    began = time.perf_counter()
    await own.wait_for_others()
    assert time.perf_counter() - began >= shared.PATIENCE_S
    counts[1] = VACANT
    monkeypatch.setattr(shared, "PATIENCE_S", 3600.0)
    with trio.fail_after(60):
        await own.wait_for_others()


async def test_a_slot_marked_vacant_shows_its_count_again() -> None:
    """It was marked while the whole machine stood still."""
    counts = counts_of(2)
    own = Spread(counts, 1)
    own.count_opened()
    counts[1] = VACANT
    own.show()
    assert counts.tolist() == [0, 1]
    own.count_closed()
    assert counts.tolist() == [0, 0]

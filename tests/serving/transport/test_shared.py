"""Idle connections: one task ends those that are idle too long, and no others."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
import trio

from svc.serving.transport.shared import PRECISION_S
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

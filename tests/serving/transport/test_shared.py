"""What the connections of one server share: one task watches all that wait for a request."""

from __future__ import annotations

import socket
from typing import Any, cast

import pytest
import trio

from svc.serving.transport.pacing import Turnstile
from svc.serving.transport.shared import PRECISION_S, Limits, Shared

pytestmark = pytest.mark.anyio
IDLE_S = 5.0


async def test_each_is_woken_when_its_own_time_is_over() -> None:
    """Neither sooner nor much later, however many began to wait at other moments; who has left is left alone."""
    shared = Shared(cast(Any, None), Limits(idle_s=IDLE_S, unread_s=5, drain_s=1), Turnstile())
    waited: list[float] = []

    async def wait(connected: socket.socket) -> None:
        began = shared.idle[connected] = trio.current_time()
        with pytest.raises(trio.ClosedResourceError):
            await trio.lowlevel.wait_readable(connected)
        del shared.idle[connected]
        waited.append(trio.current_time() - began)

    pairs = [socket.socketpair() for _ in range(4)]
    for pair in pairs:
        for one in pair:
            one.setblocking(False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shared.watch)
        async with trio.open_nursery() as connections:
            for connected, _ in pairs[:3]:
                connections.start_soon(wait, connected)
                await trio.sleep(2)
        assert shared.idle == {}
        nursery.cancel_scope.cancel()
    assert len(waited) == 3
    assert all(IDLE_S <= seconds <= IDLE_S + 2 * PRECISION_S for seconds in waited)
    for pair in pairs:
        for one in pair:
            one.close()

"""A worker does what it is told, in order, and says when each is done."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from svc.processes.memory import SharedPage
from svc.serving.models.registry import Entry, WorkersState
from svc.serving.transport.spread import VACANT
from svc.serving.workers import channel
from svc.serving.workers.counters import WorkerPage
from svc.serving.workers.rates import CELLS_BYTES
from svc.serving.workers.worker import Ends, Worker
from svc.settings import Settings


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


@pytest.mark.anyio
async def test_a_worker_answers_once_it_has_been_told_all_and_ends_when_it_is_told() -> None:
    """Health shows the recipes and the workers; metrics come from the parent."""
    control, theirs = channel.pair()
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    page, connections = WorkerPage(SharedPage.of(1 << 16)), SharedPage.of(16)
    counts = memoryview(connections).cast("Q")
    counts[0] = counts[1] = VACANT
    ends = Ends(theirs, listener, page.memory, SharedPage.of(CELLS_BYTES), connections)
    worker = Worker(ends, Settings(metrics_enabled=True))
    orders: list[tuple[Any, ...]] = [
        ("workers", WorkersState(2, 1, 0)),
        ("entry", Entry("a", "a.yaml"), None),
        ("skip", {}),
        ("begin",),
        ("accept", 1),
    ]
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.run)
            for seq, (kind, *arguments) in enumerate(orders):
                await channel.send(control, (seq, kind, *arguments))
            for seq in range(len(orders)):
                assert await channel.hear(control) == ("done", {"seq": seq})

            async def answer() -> None:
                kind, fields = await channel.hear(control) or ("", {})
                assert (kind, fields["what"]) == ("ask", "metrics")
                await channel.send(control, (0, "answer", fields["number"], b"the sums"))

            nursery.start_soon(answer)
            ours = socket.create_connection(address)
            client = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
            assert b'"workers":{"total":2,"ready":1,"failing":0}' in await ask(client, "/v1/health")
            assert (await ask(client, "/v1/metrics")).endswith(b"the sums")
            assert counts.tolist() == [VACANT, 1]
            await client.aclose()
            assert page.beats > 0
            await channel.send(control, (9, "end"))
            assert await channel.hear(control) == ("done", {"seq": 9})
    assert counts.tolist() == [VACANT, 0]
    control.close()


async def ask(client: trio.SocketStream, path: str) -> bytes:
    """The answer to one request."""
    await client.send_all(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return await client.receive_some()


@pytest.mark.anyio
async def test_a_worker_that_ends_before_it_may_accept_leaves_the_listener_alone() -> None:
    """A signal has come while models were loaded: the socket is bound, and does not listen yet."""
    control, theirs = channel.pair()
    page, cells = SharedPage.of(1 << 16), SharedPage.of(CELLS_BYTES)
    with control, theirs, socket.socket() as listener, trio.fail_after(20), capture_logs() as log:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Worker(Ends(theirs, listener, page, cells, SharedPage.of(8)), Settings()).run)
            await channel.send(control, (1, "end"))
    assert log == []

"""The monitoring port, which serves metrics and probes only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from svc import metrics
from svc.metrics import Metrics
from svc.serving.api import monitoring
from svc.serving.api.authentication import Authenticator
from svc.serving.api.request import ServerState
from svc.serving.models.registry import Registry
from svc.serving.transport.server import bind, listen
from svc.settings import Settings

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """Use real sockets and a real clock: a virtual one would jump over deadlines while the kernel carries bytes."""
    return "trio"


def make_state() -> ServerState:
    auth = Authenticator({"shop": b"x" * 32})
    return ServerState(Registry(), Settings(metrics_enabled=True), Metrics.create(), auth)


@asynccontextmanager
async def running(state: ServerState) -> AsyncIterator[int]:
    listener = bind("127.0.0.1", 0, unread_timeout_s=1)
    _, port = listen(listener)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(monitoring.serve_monitoring, state, listener)
        yield port
        nursery.cancel_scope.cancel()


async def ask(port: int, request: bytes) -> tuple[int, bytes]:
    """Return status and body, or 0 as status if the connection closes without an answer."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        await stream.send_all(request)
        answer = b"".join([part async for part in stream])
    head, _, body = answer.partition(b"\r\n\r\n")
    return (int(head.split()[1]) if head else 0), body


async def get(port: int, path: str) -> tuple[int, bytes]:
    return await ask(port, f"GET {path} HTTP/1.1\r\nHost: anything\r\n\r\n".encode())


async def test_metrics_and_probes_of_the_monitoring_port_need_no_key() -> None:
    """The main port requires a key for metrics."""
    state = make_state()
    state.metrics.of(metrics.ACTIVE_RECIPES).set(3)
    async with running(state) as port:
        for path in ("/metrics", "/v1/metrics", "/metrics?name[]=x"):
            status, body = await get(port, path)
            assert status == 200
            assert b"svc_active_recipes 3.0" in body
        assert await get(port, "/v1/health/live") == (200, b'{"status":"ok"}')
        assert (await get(port, "/v1/health/ready"))[0] == 200
        state.draining = True
        assert await get(port, "/v1/health/ready") == (503, b'{"status":"draining","detail":"the server is stopping"}')


@pytest.mark.parametrize(
    "path", ["/", "/v1/recipes", "/v1/health/details", "/v1/recipes/a:recommend", "/console/app.js"]
)
async def test_the_monitoring_port_has_no_other_paths(path: str) -> None:
    """Other paths of the main port get 404 there."""
    async with running(make_state()) as port:
        assert (await get(port, path))[0] == 404


async def test_invalid_requests_are_refused() -> None:
    """Methods other than GET and HEAD, bytes that are not HTTP and long targets are refused.

    A silent client delays no other.
    """
    async with running(make_state()) as port:
        assert (await ask(port, b"POST /metrics HTTP/1.1\r\nHost: a\r\n\r\n"))[0] == 405
        assert (await ask(port, b"\x16\x03\x01\r\n\r\n"))[0] == 400
        assert (await ask(port, b"GET /" + b"a" * 70_000))[0] == 414
        assert await ask(port, b"HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n") == (200, b"")
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        async with stream:
            await stream.send_all(b"GET /metrics HTTP/1.1\r\n")
            assert (await get(port, "/v1/health/live"))[0] == 200


async def test_http_1_0_scrapers_are_answered() -> None:
    """A scraper of HTTP/1.0 sends no Host. Each connection ends with its answer."""
    async with running(make_state()) as port:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        async with stream:
            await stream.send_all(b"GET /v1/health/live HTTP/1.0\r\n\r\n")
            answer = b"".join([part async for part in stream])
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"connection: close" in head.lower()
    assert body == b'{"status":"ok"}'

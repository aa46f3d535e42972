"""A port of its own for those who watch: metrics and probes, without a key and without anything else.

Scrapers that find their targets by annotation send no key. What the port tells are names of recipes and counts; whoever
opens it decides who may reach it. It answers from the beginning, also while models are still being loaded.
"""

from __future__ import annotations

import re
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING

import trio
from pydantic_core import to_json

from svc.serving.api.endpoints import PROBES
from svc.serving.api.probes import DOCUMENTS
from svc.serving.api.routes import METRICS_TYPE

if TYPE_CHECKING:
    import socket

    from svc.serving.api.state import ServerState

CONNECTIONS = 32
"""Open at once; more wait in the kernel's queue."""
TIMEOUT_S = 10.0
MAX_HEAD_BYTES = 16 * 1024
_PROBES = {row.path: DOCUMENTS[row.name] for row in PROBES}
_GET = re.compile(rb"(GET|HEAD) ([^ ?\r\n]{1,256})(?:\?[^ \r\n]*)? HTTP/1\.[01]\r?\n")


async def serve_monitoring(state: ServerState, listener: socket.socket) -> None:
    """Accept and answer until cancelled: one request a connection."""
    limiter, renderer = trio.CapacityLimiter(CONNECTIONS), trio.CapacityLimiter(1)
    source = trio.SocketListener(trio.socket.from_stdlib_socket(listener))

    async def handle(stream: trio.SocketStream) -> None:
        with suppress(OSError, trio.BrokenResourceError):  # a scraper that leaves is no event
            async with limiter, stream:
                with trio.move_on_after(TIMEOUT_S):
                    await _answer(state, stream, renderer)

    await trio.serve_listeners(handle, [source])


async def _answer(state: ServerState, stream: trio.SocketStream, renderer: trio.CapacityLimiter) -> None:
    head = bytearray()
    while b"\r\n\r\n" not in head and b"\n\n" not in head:
        part = await stream.receive_some(MAX_HEAD_BYTES)
        head += part
        if not part or len(head) > MAX_HEAD_BYTES:
            return
    asked = _GET.match(head)
    if asked is None:
        status, kind, body = 400, "text/plain", b"only GET is answered here\n"
    else:
        status, kind, body = await _document(state, asked[2].decode("latin-1"), renderer)
    lines = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n"
        "connection: close\r\n\r\n"
    )
    await stream.send_all(lines.encode() + (b"" if asked is not None and asked[1] == b"HEAD" else body))
    await stream.send_eof()


async def _document(state: ServerState, path: str, renderer: trio.CapacityLimiter) -> tuple[int, str, bytes]:
    if path in ("/v1/metrics", "/metrics"):
        text = await trio.to_thread.run_sync(state.metrics.render, limiter=renderer, abandon_on_cancel=True)
        return 200, METRICS_TYPE, text
    if path in _PROBES:
        document, status = _PROBES[path](state)
        return status, "application/json", to_json(document)
    return 404, "text/plain", b"/metrics and the probes are served here\n"

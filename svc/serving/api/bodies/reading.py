"""Reading of request bodies within limits of size and time. Large bodies are parsed while they arrive."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import trio

from svc.errors import BodyTimeout, PayloadTooLargeForRequest
from svc.serving.api.bodies.large_bodies import LargeBody
from svc.serving.precedence import Precedence
from svc.serving.transport.messages import SLOWEST_BYTES_PER_S
from svc.settings import Settings

SMALL_BYTES = 64 * 1024
"""Longest body that is kept as bytes. Longer bodies are parsed while they arrive."""

PIECE_S = 0.0005
"""Approximate time that the parsing of one piece takes."""

Receive = Callable[[], Awaitable[bytes]]
"""A function that returns the next part of a body, or empty bytes after the last part (`Incoming.receive`)."""
Body = bytes | dict[str, Any]
"""A small body as bytes, or a large body as a parsed JSON object."""


class Bodies:
    """A reader of request bodies. A lock lets only one large body be parsed in each turn of the event loop."""

    def __init__(self, settings: Settings, precedence: Precedence) -> None:
        self._cap = settings.max_body_bytes
        self._timeout_s = settings.client_timeout_s
        self._turns = trio.Lock()
        self._precedence = precedence

    async def take(self, receive: Receive, headers: Mapping[bytes, bytes], whole: bytes | None = None) -> Body:
        """Return the body of a request. `whole` is the body if it came with the head, else `receive` returns its parts.

        Raises PayloadTooLargeForRequest if the body or its Content-Length exceeds the limit, and BodyTimeout if the
        body takes longer than `client_timeout_s` plus a second for each MiB. Raises ClientGone if the client
        disconnects, and MalformedRequest if the body is chunked and a chunk is malformed.

        Raises ValidationFailed if a large body is invalid. It does so only after the end of the body, because a client
        that is still sending may not read the answer.
        """
        declared = headers.get(b"content-length", b"0")
        # The length first, because `int` refuses more than 4,300 digits by an error of its own.
        if len(declared) > len(str(self._cap)) or int(declared) > self._cap:
            raise self._too_large()
        if whole is not None:
            return whole
        with trio.move_on_after(self._timeout_s) as scope:
            return await self._take(receive, scope)
        raise BodyTimeout(BodyTimeout.template.format(seconds=self._timeout_s))

    async def _take(self, receive: Receive, scope: trio.CancelScope) -> Body:
        size, small, large = 0, bytearray(), LargeBody()
        while part := await receive():
            if size:
                scope.deadline += len(part) / SLOWEST_BYTES_PER_S
            size += len(part)
            if size > self._cap:
                raise self._too_large()
            if size <= SMALL_BYTES:
                small += part
            else:
                large.feed(bytes(small) + part)
                small.clear()
                await self._parse(large)
        if size <= SMALL_BYTES:
            return bytes(small)
        large.end()
        await self._parse(large)
        return large.result()

    async def _parse(self, body: LargeBody) -> None:
        """Parse the received part of a large body, as far as possible."""
        while not body.hungry:
            # Anew for each piece, so that large bodies take turns.
            async with self._turns:
                body.work()
                await self._precedence.give_way(PIECE_S)

    def _too_large(self) -> PayloadTooLargeForRequest:
        return PayloadTooLargeForRequest(PayloadTooLargeForRequest.template.format(cap=self._cap))

"""Reading of request bodies within limits of size and time. Large bodies are parsed while they arrive."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import trio

from svc.errors import BodyTimeout, PayloadTooLargeForRequest, ValidationFailed
from svc.serving.api.bodies.large_bodies import SLICE_S, LargeBody
from svc.serving.api.bodies.requests import LONGEST
from svc.serving.precedence import Precedence
from svc.serving.transport.messages import SLOWEST_BYTES_PER_S
from svc.settings import Settings

SMALL_BYTES = 64 * 1024
"""Longest body that is kept as bytes. Longer bodies are parsed while they arrive."""

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
        if len(declared) > len(str(self._cap)) or int(declared) > self._cap:
            raise self._too_large()
        if whole is not None:
            return whole
        with trio.move_on_after(self._timeout_s) as scope:
            return await self._take(receive, scope)
        raise BodyTimeout(BodyTimeout.template.format(seconds=self._timeout_s))

    async def _take(self, receive: Receive, scope: trio.CancelScope) -> Body:
        arriving = _Arriving(self._turns, self._precedence)
        while part := await receive():
            if arriving.size:
                scope.deadline += len(part) / SLOWEST_BYTES_PER_S
            if arriving.size + len(part) > self._cap:
                raise self._too_large()
            await arriving.add(part)
        return await arriving.whole()

    def _too_large(self) -> PayloadTooLargeForRequest:
        return PayloadTooLargeForRequest(PayloadTooLargeForRequest.template.format(cap=self._cap))


class _Arriving:
    """A body that is still arriving. If the received part is invalid, further parts are dropped."""

    def __init__(self, turns: trio.Lock, precedence: Precedence) -> None:
        self.size = 0
        self._turns = turns
        self._precedence = precedence
        self._small = bytearray()
        self._large: LargeBody | None = None
        self._refusal: ValidationFailed | None = None

    async def add(self, part: bytes) -> None:
        """Add a received part. Beyond SMALL_BYTES the body is parsed at once."""
        self.size += len(part)
        if self.size <= SMALL_BYTES:
            self._small += part
            return
        if self._large is None and self._refusal is None:
            self._large = LargeBody(LONGEST)
            part = bytes(self._small) + part
            self._small.clear()
        await self._read(part)

    async def whole(self) -> Body:
        """Return the body. Call it after the last part has been added. Raises ValidationFailed."""
        if self.size <= SMALL_BYTES:
            return bytes(self._small)
        await self._read(None)
        if self._large is None or self._large.value is None:
            assert self._refusal is not None, "a large body is read or refused"
            raise self._refusal
        return self._large.value

    async def _read(self, part: bytes | None) -> None:
        """Parse the next part, or the rest of the body if `part` is None."""
        if self._large is None:
            return
        try:
            if part is None:
                self._large.end()
            else:
                self._large.feed(part)
            while not self._large.hungry:
                async with self._turns:
                    self._large.work()
                    await self._precedence.give_way(SLICE_S)
        except ValidationFailed as error:
            self._refusal, self._large = error, None

"""One request of HTTP/2: its head, the parts of its body as they come, and whether its client is still there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from svc.errors import HeadersTooLarge, MalformedRequest
from svc.serving.transport.http1 import MAX_HEADERS, is_method, is_target
from svc.serving.transport.messages import ClientGone, Head, Headers

Fields = list[tuple[bytes, bytes]]


class Exchange:
    """One request of HTTP/2, as the application sees it (`messages.Incoming`).

    `taken` is called with the number of bytes that the application has taken, so that the client may send as many more.
    """

    whole_body: bytes | None = None

    def __init__(self, head: Head, client: str, taken: Callable[[int], Awaitable[None]]) -> None:
        self.head = head
        self.client = client
        self.late_s = 0.0
        self.arrived_s = trio.current_time()
        self.ended = False
        self.waiting = 0
        """Bytes of flow control that have come and are not taken."""
        self._taken = taken
        self._parts: list[bytes] = []
        self._changed = trio.Event()
        self._left = trio.Event()

    @property
    def is_gone(self) -> bool:
        """True when the client has left, or has cancelled this request."""
        return self._left.is_set()

    def method_and_target(self) -> tuple[bytes, bytes]:
        return self.head.method.encode(), self.head.target

    def timeout(self) -> bytes | None:
        return dict(self.head.headers).get(b"x-request-timeout-ms")

    def feed(self, part: bytes, size: int) -> None:
        """Append a part of the body. `size` is what flow control counts for it, with padding."""
        self._parts.append(part)
        self.waiting += size
        self._changed.set()

    def end(self) -> None:
        """Record the end of the body."""
        self.ended = True
        self._changed.set()

    def leave(self) -> None:
        """Record that the client has disconnected, or has cancelled this request."""
        self._left.set()
        self._changed.set()

    async def receive(self) -> bytes:
        """All of the body that has come since the last call, nothing at its end. Raises ClientGone."""
        while not self.waiting:
            if self.ended:
                return b""
            if self.is_gone:
                raise ClientGone
            await self._changed.wait()
            self._changed = trio.Event()
        part, size = b"".join(self._parts), self.waiting
        self._parts, self.waiting = [], 0
        await self._taken(size)
        return part or await self.receive()

    async def until_gone(self) -> None:
        """Return when the client has left. What it sends until then is bounded by its flow-control window."""
        await self._left.wait()


def head_of(fields: Headers) -> Head:
    """Build a head from fields that h2 has validated. Raises an ApiError.

    The authority counts as the Host header (RFC 9113, 8.3.1), and CONNECT has it as its target, as in HTTP/1.1.
    """
    pseudo = {name: value for name, value in fields if name.startswith(b":")}
    headers: Fields = [(name, value) for name, value in fields if not name.startswith(b":")]
    if b":authority" in pseudo:
        headers.insert(0, (b"host", pseudo[b":authority"]))
    method, target = pseudo[b":method"], pseudo.get(b":path", pseudo.get(b":authority", b""))
    if len({value for name, value in headers if name == b"host"}) > 1:
        raise MalformedRequest("the request names two hosts")
    if len(headers) > MAX_HEADERS:
        raise HeadersTooLarge
    if not is_method(method) or not is_target(target):
        raise MalformedRequest("the method or the path of the request is not valid")
    return Head(method.decode(), target, headers)

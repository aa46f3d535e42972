"""A small application for tests of connections."""

from __future__ import annotations

import trio

from svc.errors import ApiError
from svc.serving.admission import UnsentBytes
from svc.serving.transport.messages import ClientGone, Incoming, Opening, Response

LARGE = bytes(12 << 20)
REQUEST = b"GET /%b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
KEPT = b"GET /%b HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Echo:
    """An application with one fixed answer for each path.

    `/` has a word, `/large` more bytes than the kernel buffers, and `/body` the body of the request. `/slow` answers
    after a second, and `/gone` when the client has disconnected. `/broken` raises. `/shop` notes the key id "shop".
    """

    urgent = (b"GET /probe ",)
    is_leaving = False

    def __init__(self) -> None:
        self.unsent = UnsentBytes()
        self.left = 0
        self.asked: list[bytes] = []

    def late_s(self, opening: Opening, turn_s: float) -> float:
        """Return the wait for `/slow` if it is longer than the request allows, else 0."""
        is_slow = opening.method_and_target() == (b"POST", b"/slow")
        return turn_s if is_slow and turn_s > int(opening.timeout() or b"1000000") / 1000 else 0.0

    async def __call__(self, incoming: Incoming) -> Response | None:
        self.asked.append(incoming.head.target)
        match incoming.head.target:
            case b"/large":
                return Response(200, LARGE)
            case b"/body":
                return await self._body(incoming)
            case b"/slow":
                await trio.sleep(1)
            case b"/gone":
                await incoming.until_gone()
                self.left += 1
                return None
            case b"/shop":
                incoming.note_kid("shop")
            case b"/broken":
                raise KeyError("unforeseen")
        return Response(200, b"well")

    async def _body(self, incoming: Incoming) -> Response | None:
        if incoming.whole_body is not None:
            return Response(200, b"got " + incoming.whole_body)
        body = b""
        try:
            while part := await incoming.receive():
                body += part
        except ClientGone:
            self.left += 1
            return None
        return Response(200, b"got " + body)

    def refuse(self, error: ApiError, client: str) -> Response:
        return Response(error.http_status, error.code.encode())


class Lateness(Echo):
    """Answers with the seconds by which each request is late."""

    async def __call__(self, incoming: Incoming) -> Response | None:
        return Response(200, b"%d" % incoming.late_s)

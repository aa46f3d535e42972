"""The application by ASGI: the same answers as by svc's own connections."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import trio

from svc.errors import PayloadTooLargeForRequest
from svc.serving.transport.asgi import PART_BYTES, AsgiApplication
from svc.serving.transport.http1 import MAX_HEADERS
from svc.serving.transport.messages import Incoming, Response
from tests.serving.client import RECOMMEND, serving
from tests.serving.transport.echo import LARGE, Echo

pytestmark = pytest.mark.anyio
SCOPE = {
    "type": "http",
    "http_version": "1.1",
    "method": "POST",
    "raw_path": b"/",
    "query_string": b"",
    "headers": [(b"Host", b"localhost")],
    "client": ("192.0.2.7", 1),
}


class Exchanged:
    """The two functions of ASGI: what `receive` gives, one after the other, and what was sent."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self._messages = iter(messages)
        self.sent: list[Any] = []

    async def receive(self) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        for message in self._messages:
            return message
        return await trio.sleep_forever()

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    @property
    def left(self) -> int:
        """Messages that nobody has received."""
        return len(list(self._messages))

    @property
    def header(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])


def part(body: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


async def ask(app: Echo, exchanged: Exchanged, **scope: Any) -> Exchanged:
    await AsgiApplication(app, unread_s=30)({**SCOPE, **scope}, exchanged.receive, exchanged.send)
    return exchanged


class Refusing(Echo):
    """Refuses everything before its body has come."""

    async def __call__(self, incoming: Incoming) -> Response | None:
        return Response(401, b"no")


async def test_httpx_calls_it_as_it_calls_any_asgi_application() -> None:
    """Single requests, queries, pages of quart and errors have the answers of the plain port."""
    async with serving() as (client, _):
        transport = httpx.ASGITransport(AsgiApplication(client.app, unread_s=30))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as asgi:
            for method, path, body in (
                ("POST", RECOMMEND, {"user_id": "u3"}),
                ("POST", RECOMMEND, {"user_id": 3}),
                ("GET", "/v1/recipes/movies/items?q=i1", None),
                ("GET", "/v1/health", None),
                ("GET", "/none", None),
            ):
                headers = {"x-request-id": "one"}
                found = await asgi.request(method, path, json=body, headers=headers)
                plain = (
                    await client.get(path, headers=headers)
                    if body is None
                    else await client.post(path, body, headers=headers)
                )
                assert (found.status_code, found.content) == (plain.status, plain.body)
                assert dict(found.headers) == {**plain.headers, "content-length": str(len(plain.body))}


async def test_a_body_comes_in_any_parts() -> None:
    """Empty parts between are none, and the application gets the rest to its end."""
    exchanged = Exchanged(part(b"a", more=True), part(b"", more=True), part(b"bc", more=True), part(b"", more=False))
    found = await ask(Echo(), exchanged, raw_path=b"/body")
    assert found.sent[1]["body"] == b"got abc"


async def test_a_refusal_waits_for_the_end_of_the_body() -> None:
    """On HTTP/2 an earlier one would end the connection with its other streams."""
    exchanged = Exchanged(part(b"a" * 9, more=True), part(b"b" * 9, more=False))
    assert (await ask(Refusing(), exchanged)).sent[0]["status"] == 401
    assert exchanged.left == 0


async def test_a_body_that_never_ends_holds_its_refusal_up_for_a_while_only() -> None:
    """The client timeout bounds it, and the connection ends behind the answer."""
    found = await ask(Refusing(), Exchanged(part(b"a", more=True)))
    assert found.header[b"connection"] == b"close"
    assert trio.current_time() == pytest.approx(30)


async def test_a_client_that_leaves_gets_nothing() -> None:
    """Neither who leaves within its body, nor who leaves while it waits."""
    app = Echo()
    for path in (b"/body", b"/gone"):
        exchanged = Exchanged(part(b"a", more=True), {"type": "http.disconnect"})
        assert (await ask(app, exchanged, raw_path=path)).sent == []
    assert app.left == 2
    assert (await ask(Refusing(), Exchanged({"type": "http.disconnect"}))).sent == []


async def test_what_is_read_while_watching_for_the_end_is_kept() -> None:
    """A request that waits for a decision loses no part of its body."""

    class Watching(Echo):
        async def __call__(self, incoming: Incoming) -> Response | None:
            with trio.move_on_after(0.01):
                await incoming.until_gone()
            return await super().__call__(incoming)

    found = await ask(Watching(), Exchanged(part(b"a", more=True), part(b"b", more=False)), raw_path=b"/body")
    assert found.sent[1]["body"] == b"got ab"


async def test_a_large_answer_goes_in_parts() -> None:
    """Its length is said first, and the last part says that it is the last."""
    found = await ask(Echo(), Exchanged(part(b"", more=False)), raw_path=b"/large")
    assert found.header[b"content-length"] == b"%d" % len(LARGE)
    assert b"".join(message["body"] for message in found.sent[1:]) == LARGE
    assert max(len(message["body"]) for message in found.sent[1:]) == PART_BYTES
    assert [message["more_body"] for message in found.sent[1:]] == [True] * (len(found.sent) - 2) + [False]


async def test_an_answer_that_nobody_takes_is_given_up() -> None:
    """`send` of a closed HTTP/2 window would wait for ever."""

    async def send(message: Any) -> None:
        await trio.sleep_forever()

    await AsgiApplication(Echo(), unread_s=5)(SCOPE, Exchanged(part(b"", more=False)).receive, send)
    assert trio.current_time() == pytest.approx(5, abs=0.1)


async def test_a_connection_that_ends_says_so_in_http_1_1_only() -> None:
    """HTTP/2 forbids the header."""

    class Leaving(Echo):
        is_leaving = True

    for version, said in (("1.1", True), ("2", False)):
        found = await ask(Leaving(), Exchanged(part(b"", more=False)), http_version=version)
        assert (b"connection" in found.header) is said


@pytest.mark.parametrize(
    ("scope", "status"),
    [
        ({"raw_path": b"/a b"}, 400),
        ({"raw_path": b"/", "query_string": b"\xff"}, 400),
        ({"headers": [(b"a", b"b")] * (MAX_HEADERS + 1)}, 431),
    ],
)
async def test_heads_have_the_bounds_of_the_plain_port(scope: dict[str, Any], status: int) -> None:
    """Targets that are not visible ASCII, and more headers than are taken."""
    assert (await ask(Echo(), Exchanged(part(b"", more=False)), **scope)).sent[0]["status"] == status


async def test_a_websocket_is_answered_as_a_plain_request() -> None:
    """Its handshake has no method and no body."""
    scope = {key: value for key, value in SCOPE.items() if key != "method"} | {"type": "websocket"}
    exchanged = Exchanged({"type": "websocket.connect"})
    await AsgiApplication(Echo(), unread_s=30)(scope, exchanged.receive, exchanged.send)
    assert [message["type"] for message in exchanged.sent] == [
        "websocket.http.response.start",
        "websocket.http.response.body",
    ]
    assert exchanged.sent[0]["status"] == 200


async def test_scopes_that_are_no_requests_are_refused() -> None:
    """A server asks whether there is a lifespan, and goes on without one."""
    with pytest.raises(NotImplementedError, match="lifespan"):
        await AsgiApplication(Echo(), unread_s=30)({"type": "lifespan"}, Exchanged().receive, Exchanged().send)


async def test_errors_of_the_body_have_their_own_answers() -> None:
    """A body over the limit by its length is refused without waiting for what it announces for ever."""
    async with serving() as (client, _):
        exchanged = Exchanged(part(b"{}", more=False))
        headers = [(b"host", b"localhost:8080"), (b"content-length", b"999999999999")]
        scope = {**SCOPE, "raw_path": RECOMMEND.encode(), "headers": headers}
        await AsgiApplication(client.app, unread_s=1)(scope, exchanged.receive, exchanged.send)
        assert exchanged.sent[0]["status"] == PayloadTooLargeForRequest.http_status

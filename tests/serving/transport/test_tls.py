"""Connections over TLS with real sockets, and the ASGI application that hypercorn calls."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator, Hashable, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import h2.events
import httpx
import pytest
import trio
import trio.testing
from hypercorn.events import RawData
from hypercorn.protocol import ProtocolWrapper
from structlog.testing import capture_logs

from svc.errors import ApiError
from svc.serving.transport import tls
from svc.serving.transport.certificate import Tls
from svc.serving.transport.connection import Spread
from svc.serving.transport.http1 import MAX_HEAD_BYTES, MAX_HEADERS
from svc.serving.transport.messages import ClientGone, Incoming, Response
from svc.serving.transport.pacing import Rank, TurnScheduler
from svc.serving.transport.tls import (
    FRAMES_A_PIECE,
    HANDSHAKE_S,
    PART_BYTES,
    PIECE_BYTES,
    AsgiApplication,
    AsgiRequest,
    Frames,
)
from tests.serving.certificates import Issuer
from tests.serving.client import RECOMMEND, serving
from tests.serving.sockets import listening
from tests.serving.transport.echo import LARGE, Echo

pytestmark = pytest.mark.anyio
UPGRADE = b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\nConnection: Upgrade\r\nHTTP2-Settings: AA\r\n\r\n"
HEAD = [(":method", "GET"), (":scheme", "https"), (":authority", "localhost"), (":path", "/")]
both_versions = pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path)


@asynccontextmanager
async def client_of(port: int, issuer: Issuer, *, http2: bool, client: Issuer | None = None) -> AsyncIterator[Any]:
    verify = issuer.trusted(client=client)
    async with httpx.AsyncClient(
        base_url=f"https://127.0.0.1:{port}", verify=verify, http2=http2, http1=not http2, timeout=60
    ) as asking:
        yield asking


async def connect(port: int, issuer: Issuer, protocol: str) -> trio.SSLStream[trio.SocketStream]:
    context = issuer.trusted()
    context.set_alpn_protocols([protocol])
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    secure = trio.SSLStream(stream, context, server_hostname="localhost", https_compatible=True)
    await secure.do_handshake()
    return secure


class Http2:
    """An HTTP/2 connection that sends frames which client libraries would not send."""

    def __init__(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        self.stream = stream
        config = h2.config.H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False)
        self.h2 = h2.connection.H2Connection(config)
        self.h2.initiate_connection()

    async def flush(self) -> None:
        await self.stream.send_all(self.h2.data_to_send())

    async def until(self, kind: type[Any]) -> Any:
        """Return the next event of this kind, or None at the end of the connection."""
        while data := await self.stream.receive_some():
            for event in self.h2.receive_data(data):
                if isinstance(event, kind):
                    return event
        return None


@both_versions
async def test_both_versions_of_http_are_spoken(issuer: Issuer, http2: bool) -> None:
    """ALPN chooses the version. Answers have length and date, but no name of the server."""
    async with listening(Echo(), tls=issuer.tls()) as port, client_of(port, issuer, http2=http2) as client:
        found = await client.post("/body", content=b"x" * 100_000)
        assert found.http_version == ("HTTP/2" if http2 else "HTTP/1.1")
        assert found.content == b"got " + b"x" * 100_000
        assert {*found.headers} == {"content-type", "content-length", "date"}
        assert (await client.get("/large")).content == LARGE
        assert (await client.head("/")).content == b""


@both_versions
async def test_open_connections_are_counted(issuer: Issuer, http2: bool) -> None:
    """The number is 1 while the connection is open, and 0 when the server has ended."""
    counts = memoryview(bytearray(8)).cast("Q")
    served = listening(Echo(), tls=issuer.tls(), spread=Spread(counts))
    async with served as port, client_of(port, issuer, http2=http2) as client:
        await client.get("/")
        assert counts[0] == 1
    assert counts[0] == 0


@both_versions
async def test_a_client_needs_a_signed_certificate(issuer: Issuer, tmp_path: Path, http2: bool) -> None:
    """A client without a certificate is refused, and so is one of another authority."""
    clients, strangers = Issuer(tmp_path, "clients"), Issuer(tmp_path, "strangers")
    app = Echo()
    async with listening(app, tls=issuer.tls(clients=clients)) as port:
        for shown in (None, strangers):
            async with client_of(port, issuer, http2=http2, client=shown) as client:
                with pytest.raises((httpx.TransportError, trio.BrokenResourceError)):
                    await client.get("/")
        assert app.asked == []
        async with client_of(port, issuer, http2=http2, client=clients) as client:
            assert (await client.get("/")).content == b"well"


@both_versions
async def test_new_connections_get_a_new_certificate(issuer: Issuer, tmp_path: Path, http2: bool) -> None:
    """Open connections go on with the old one."""
    tls, other = issuer.tls(), Issuer(tmp_path, "other")
    async with listening(Echo(), tls=tls) as port, client_of(port, issuer, http2=http2) as old:
        await old.get("/")
        tls.replace(other.certificate())
        assert (await old.get("/")).content == b"well"
        async with client_of(port, other, http2=http2) as new:
            assert (await new.get("/")).content == b"well"


@both_versions
async def test_a_connection_takes_turns_with_the_key_of_its_last_request(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch, http2: bool
) -> None:
    entered, enter = set[Hashable](), TurnScheduler.enter

    async def noted(self: TurnScheduler, rank: Rank, key: Hashable) -> None:
        entered.add(key)
        await enter(self, rank, key)

    monkeypatch.setattr(TurnScheduler, "enter", noted)
    async with listening(Echo(), tls=issuer.tls()) as port, client_of(port, issuer, http2=http2) as client:
        await client.get("/shop")
        assert None in entered
        await client.get("/")
        await trio.sleep(0.1)
        assert "shop" in entered


@both_versions
async def test_unsent_bytes_are_counted_until_the_client_reads_or_leaves(issuer: Issuer, http2: bool) -> None:
    app = Echo()
    async with listening(app, tls=issuer.tls()) as port:
        for reads in (True, False):
            async with client_of(port, issuer, http2=http2) as client, client.stream("GET", "/large") as answer:
                await trio.sleep(0.1)
                assert app.unsent.count == len(LARGE)
                if reads:
                    assert await answer.aread() == LARGE
            await trio.sleep(1)
            assert app.unsent.count == 0


class Refusing(Echo):
    """Refuses `/no` before its body has arrived."""

    async def __call__(self, incoming: Incoming) -> Response | None:
        return Response(401, b"no") if incoming.head.target == b"/no" else await super().__call__(incoming)


async def test_a_refusal_does_not_end_the_other_streams(issuer: Issuer) -> None:
    """Hypercorn would end the connection at the first byte of a body behind its answer."""
    async with listening(Refusing(), tls=issuer.tls()) as port, client_of(port, issuer, http2=True) as client:
        found: list[int] = []

        async def ask(path: str) -> None:
            found.append((await client.post(path, content=b"x" * 200_000)).status_code)

        async with trio.open_nursery() as nursery:
            for path in ("/slow", "/no", "/no", "/no"):
                nursery.start_soon(ask, path)
        assert sorted(found) == [200, 401, 401, 401]


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PING = bytes.fromhex("000008060000000000") + b"eight by"


@pytest.mark.parametrize("step", [1, 5, 100, 100_000])
def test_hypercorn_gets_a_few_frames_at_once(step: int) -> None:
    """Frames arrive complete however the bytes are divided. A large frame is passed on as it arrives."""
    data = bytes.fromhex("003fff000000000001") + b"x" * 0x3FFF
    sent = PREFACE + PING * 40 + data + PING * 3
    frames, pieces = Frames(), []
    for start in range(0, len(sent), step):
        frames.feed(sent[start : start + step])
        while piece := frames.take():
            pieces.append(piece)
    assert b"".join(pieces) == sent
    assert max(piece.count(PING) for piece in pieces) <= FRAMES_A_PIECE


def framed(block: bytes, *, first: int = 1 << 14) -> bytes:
    """Return a header block as HEADERS and CONTINUATION frames of stream 1, the first with `first` bytes."""
    cuts = [0, *range(first, len(block), 1 << 14), len(block)]
    parts = [block[start:end] for start, end in pairwise(cuts)]
    return b"".join(
        len(part).to_bytes(3) + bytes([9 if number else 1, (not number) | 4 * (number == len(parts) - 1)])
        + (1).to_bytes(4) + part
        for number, part in enumerate(parts)
    )  # fmt: skip


def indexed(size: int) -> bytes:
    """Return the encoded HEAD, with a further header that fills the block to `size` bytes."""
    start = b"\x82\x87\x84\x41\x09localhost"
    length = size - len(start) - 7
    return start + b"\x10\x01a\x7f" + bytes([(length - 127) & 127 | 128, (length - 127) >> 7 & 127 | 128,
                                              (length - 127) >> 14]) + b"x" * length  # fmt: skip


async def answered(port: int, issuer: Issuer, sent: bytes) -> bool:
    """Return True if a request of these bytes is answered, and False if the connection ends."""
    client = Http2(await connect(port, issuer, "h2"))
    await client.flush()
    with suppress(trio.BrokenResourceError):  # the connection may end before all bytes are sent
        for start in range(0, len(sent), 1000):
            await client.stream.send_all(sent[start : start + 1000])
    found = False
    with suppress(trio.BrokenResourceError):
        while data := await client.stream.receive_some():
            found |= any(frame[3] == 1 for frame in frames_of(data))
            if found:
                break
    await client.stream.aclose()
    return found


def frames_of(data: bytes) -> Iterator[bytes]:
    while data:
        end = 9 + int.from_bytes(data[:3])
        yield data[:end]
        data = data[end:]


async def test_a_header_block_above_64_kib_ends_the_connection(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    """All frames of the block count. Its end never reaches hypercorn, and the refusal is counted."""
    app = Counting()
    async with listening(app, tls=issuer.tls()) as port:
        assert await answered(port, issuer, framed(indexed(60_000)))
        assert app.refused == []
        for size in (MAX_HEAD_BYTES + 1, 1 << 20):
            assert not await answered(port, issuer, framed(indexed(size)))
        assert not await answered(port, issuer, framed(indexed(MAX_HEAD_BYTES + 1), first=0))
    assert app.refused == ["HEADERS_TOO_LARGE"] * 3


@pytest.mark.parametrize("first", [0, 1, 2, 16_384])
async def test_updates_of_the_table_size_are_few(issuer: Issuer, first: int) -> None:
    """The RFC allows two. 60,000 updates stop the event loop for 60 ms, in any division of the block into frames."""
    app = Counting()
    async with listening(app, tls=issuer.tls()) as port:
        for update in (b"\x20", b"\x3f\xe1\x1f"):
            assert await answered(port, issuer, framed(update * 2 + indexed(1000), first=first or 1))
            assert not await answered(port, issuer, framed(update * 3 + indexed(1000), first=first))
            assert not await answered(port, issuer, framed(update * 10_000 + indexed(1000), first=first))
    assert app.refused == ["MALFORMED_REQUEST"] * 4


async def test_a_refusal_after_the_client_has_reset_the_connection_is_counted(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel then knows no address of the client. This is not logged as a defect."""
    app = Counting(client="")
    async with listening(app, tls=issuer.tls()) as port:
        client = Http2(await connect(port, issuer, "h2"))
        connected = client.stream.transport_stream.socket

        async def reset(*_: object) -> None:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connected.close()

        monkeypatch.setattr(TurnScheduler, "enter", reset)
        with capture_logs() as records:
            pings = (b"\0\0\x08\6\0\0\0\0\0" + bytes(8)) * FRAMES_A_PIECE
            await client.stream.send_all(client.h2.data_to_send() + pings + framed(b"\x20" * 3 + indexed(1000)))
            await trio.testing.wait_all_tasks_blocked(0.1)
    assert app.refused == ["MALFORMED_REQUEST"]
    assert records == []


class Counting(Echo):
    """Counts what it refuses. `/known` is a request with a key, and lasts until its client disconnects.

    `many` is set at the 53rd request.
    """

    def __init__(self, client: str = "127.0.0.1") -> None:
        super().__init__()
        self.client = client
        self.refused: list[str] = []
        self.many = trio.Event()

    def refuse(self, error: ApiError, client: str) -> Response:
        assert client == self.client
        self.refused.append(error.code)
        return super().refuse(error, client)

    async def __call__(self, incoming: Incoming) -> Response | None:
        if incoming.head.target == b"/known":
            incoming.note_kid("k")
            incoming.head.target = b"/gone"
        if len(self.asked) == 52:
            self.many.set()
        return await super().__call__(incoming)


async def open_streams(port: int, issuer: Issuer, path: str, streams: range, *, ended: bool = True) -> Http2:
    client = Http2(await connect(port, issuer, "h2"))
    for number in streams:
        head = [pair for pair in HEAD if pair[0] != ":path"] + [(":path", path)]
        client.h2.send_headers(2 * number + 1, head, end_stream=ended)
    await client.flush()
    return client


async def test_open_requests_without_a_key_are_few(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the bound, the connection with the most ends. Requests with an accepted key do not count."""
    monkeypatch.setattr(tls, "MOST_KEYLESS", 20)
    app = Counting()
    async with listening(app, tls=issuer.tls()) as port, client_of(port, issuer, http2=True) as good:
        few = await open_streams(port, issuer, "/gone", range(3))
        keyed = await open_streams(port, issuer, "/known", range(50))
        await app.many.wait()
        for _ in range(3):
            many = await open_streams(port, issuer, "/gone", range(18))
            assert await many.until(h2.events.StreamEnded) is None
            await many.stream.aclose()
        assert (await good.get("/")).content == b"well"
        for client in (few, keyed):
            client.h2.ping(b"eight by")
            await client.flush()
            assert await client.until(h2.events.PingAckReceived) is not None
            await client.stream.aclose()


async def test_streams_whose_body_never_ends_count_on(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused request without the end of its body keeps its stream, so answers do not lift the bound."""
    monkeypatch.setattr(tls, "MOST_KEYLESS", 20)
    async with listening(Echo(), tls=issuer.tls(), unread_s=0.01) as port:
        client = await open_streams(port, issuer, "/", range(15), ended=False)
        await trio.sleep(1)
        for number in range(15, 30):
            client.h2.send_headers(2 * number + 1, HEAD, end_stream=False)
        with suppress(trio.BrokenResourceError):
            await client.flush()
            while await client.stream.receive_some():
                pass
        await client.stream.aclose()


async def test_every_connection_gets_its_bytes_in_pieces(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other connections have turns between two pieces of a flood of frames, or of a large HTTP/1.1 body."""
    given: list[int] = []
    handle = ProtocolWrapper.handle

    async def noted(self: ProtocolWrapper, event: object) -> None:
        if isinstance(event, RawData):
            given.append(len(event.data))
        await handle(self, event)

    monkeypatch.setattr(ProtocolWrapper, "handle", noted)
    async with listening(Echo(), tls=issuer.tls()) as port:
        async with await connect(port, issuer, "h2") as flood:
            await flood.send_all(PREFACE + bytes.fromhex("000000040000000000") + PING * 3000)
            answered = 0
            while answered < 3000 * len(PING):
                answered += len(await flood.receive_some())
        assert max(given) <= len(PREFACE) + FRAMES_A_PIECE * len(PING)
        given.clear()
        async with client_of(port, issuer, http2=False) as client:
            assert (await client.post("/body", content=b"x" * 500_000)).status_code == 200
        assert max(given) <= PIECE_BYTES


@pytest.mark.parametrize("change", [UPGRADE, PREFACE], ids=["upgrade", "preface"])
async def test_only_alpn_chooses_http2(issuer: Issuer, change: bytes) -> None:
    """Otherwise a flood of frames would reach hypercorn in pieces of 4 KiB, and header blocks without a bound."""
    async with listening(Echo(), tls=issuer.tls()) as port, await connect(port, issuer, "http/1.1") as stream:
        await stream.send_all(change)
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")
        await stream.send_all(PING)
        assert not bytes(await stream.receive_some()).startswith(b"\0\0")


async def test_an_error_of_one_connection_ends_no_other(issuer: Issuer) -> None:
    """Paths and methods outside ASCII, CONNECT without a path, and floods of PRIORITY raise within hypercorn.

    They are not logged, because clients could fill the log.
    """
    with capture_logs() as records:
        async with listening(Echo(), tls=issuer.tls()) as port, client_of(port, issuer, http2=True) as client:
            await client.get("/")
            heads = [[*[pair for pair in HEAD if pair[0] != name], (name, b"\xff")] for name in (":path", ":method")]
            for head in (*heads, [(":method", b"CONNECT"), (":authority", b"localhost")], None):
                stranger = Http2(await connect(port, issuer, "h2"))
                if head is None:
                    for number in range(1, 2003, 2):
                        stranger.h2.prioritize(number)
                else:
                    stranger.h2.send_headers(1, head, end_stream=True)
                await stranger.flush()
                assert await stranger.until(h2.events.StreamEnded) is None
                await stranger.stream.aclose()
            assert (await client.get("/")).content == b"well"
    assert records == []


@both_versions
async def test_a_defect_is_logged_and_ends_no_other_connection(issuer: Issuer, http2: bool) -> None:
    """The client of the failed request gets 500."""
    with capture_logs() as records:
        async with listening(Echo(), tls=issuer.tls()) as port, client_of(port, issuer, http2=http2) as client:
            assert (await client.get("/broken")).status_code == 500
            assert (await client.get("/")).content == b"well"
    assert [(record["event"], record["error"]) for record in records] == [
        ("connection_failed", "KeyError: 'unforeseen'")
    ]


@both_versions
async def test_a_drain_answers_requests_in_flight(issuer: Issuer, http2: bool) -> None:
    """Idle connections end at once. The server ends with the last answer."""
    found: list[bytes] = []
    async with trio.open_nursery() as nursery:
        async with listening(Echo(), tls=issuer.tls()) as port:

            async def ask() -> None:
                async with client_of(port, issuer, http2=http2) as client:
                    found.append((await client.get("/slow")).content)

            idle = await connect(port, issuer, "h2" if http2 else "http/1.1")
            nursery.start_soon(ask)
            await trio.sleep(0.5)
        assert trio.current_time() == pytest.approx(1, abs=0.4)
        async with idle:
            while await idle.receive_some():
                pass
    assert found == [b"well"]


async def test_a_client_that_never_begins_its_handshake_is_disconnected(issuer: Issuer) -> None:
    """A drain does not wait for silent clients."""
    async with listening(Echo(), tls=issuer.tls()) as port:
        async with await trio.open_tcp_stream("127.0.0.1", port) as silent:
            assert await silent.receive_some() == b""
        assert trio.current_time() == pytest.approx(HANDSHAKE_S, abs=1)


@pytest.mark.parametrize(
    "message",
    [
        b"GET / HTT",
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
    ids=["half a head", "failed handshake of WebSocket", "answer that is not read"],
)
async def test_every_connection_ends_in_time(issuer: Issuer, message: bytes) -> None:
    """This includes connections that hypercorn itself would keep for ever."""
    over = trio.Event()

    async def watch(tls: Tls) -> None:
        async with listening(Echo(), tls=tls, idle_s=5, unread_s=5, drain_s=500) as port:
            stream = await connect(port, issuer, "http/1.1")
            await stream.send_all(message)
            await trio.sleep(0.1)
        over.set()
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch, issuer.tls())
        with trio.fail_after(60):
            await over.wait()


async def test_a_websocket_gets_a_plain_answer(issuer: Issuer) -> None:
    """A request for an upgrade is answered like one without, as on the plain port."""
    handshake = (
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    async with listening(Echo(), tls=issuer.tls()) as port:
        stream = await connect(port, issuer, "http/1.1")
        await stream.send_all(handshake)
        answer = b""
        while data := await stream.receive_some():
            answer += data
        await stream.aclose()
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.endswith(b"well")


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
    """The two functions of ASGI: `receive` returns prepared messages, and sent messages are kept."""

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
        """Return the number of messages that were not received."""
        return len(list(self._messages))

    @property
    def header(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])


def part(body: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


async def ask(app: Echo, exchanged: Exchanged, **scope: Any) -> Exchanged:
    await AsgiApplication(app, unread_s=30)({**SCOPE, **scope}, exchanged.receive, exchanged.send)
    return exchanged


class RefusingAll(Echo):
    """Refuses each request before its body has arrived."""

    async def __call__(self, incoming: Incoming) -> Response | None:
        return Response(401, b"no")


async def test_httpx_gets_the_answers_of_the_plain_port() -> None:
    """Answers, errors and pages of quart have the same status, headers and body."""
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


async def test_a_body_may_have_any_parts() -> None:
    """Empty parts are skipped. The application gets the body to its end."""
    exchanged = Exchanged(part(b"a", more=True), part(b"", more=True), part(b"bc", more=True), part(b"", more=False))
    found = await ask(Echo(), exchanged, raw_path=b"/body")
    assert found.sent[1]["body"] == b"got abc"


async def test_an_endless_body_delays_its_refusal_by_the_timeout() -> None:
    """The client timeout bounds the delay. The connection ends after the answer."""
    found = await ask(RefusingAll(), Exchanged(part(b"a", more=True)))
    assert found.header[b"connection"] == b"close"
    assert trio.current_time() == pytest.approx(30)


async def test_a_client_that_disconnects_gets_no_answer() -> None:
    """The client may disconnect within its body, or while it waits."""
    app = Echo()
    for path in (b"/body", b"/gone"):
        exchanged = Exchanged(part(b"a", more=True), {"type": "http.disconnect"})
        assert (await ask(app, exchanged, raw_path=path)).sent == []
    assert app.left == 2
    assert (await ask(RefusingAll(), Exchanged({"type": "http.disconnect"}))).sent == []


async def test_bytes_that_are_read_while_watching_the_client_are_kept() -> None:
    """A request whose key is being checked loses no part of its body."""

    class Watching(Echo):
        async def __call__(self, incoming: Incoming) -> Response | None:
            with trio.move_on_after(0.01):
                await incoming.until_gone()
            return await super().__call__(incoming)

    found = await ask(Watching(), Exchanged(part(b"a", more=True), part(b"b", more=False)), raw_path=b"/body")
    assert found.sent[1]["body"] == b"got ab"


async def test_a_large_answer_is_sent_in_parts() -> None:
    """The length is sent first, and the last part is marked as such."""
    found = await ask(Echo(), Exchanged(part(b"", more=False)), raw_path=b"/large")
    assert found.header[b"content-length"] == b"%d" % len(LARGE)
    assert b"".join(message["body"] for message in found.sent[1:]) == LARGE
    assert max(len(message["body"]) for message in found.sent[1:]) == PART_BYTES
    assert [message["more_body"] for message in found.sent[1:]] == [True] * (len(found.sent) - 2) + [False]


@pytest.mark.parametrize(("path", "limit_s"), [(b"/", 5), (b"/large", 5 + 12)])
async def test_an_answer_that_is_not_read_is_abandoned(path: bytes, limit_s: float) -> None:
    """If the client opens no HTTP/2 window, `send` would wait for ever.

    The limit grows by a second for each MiB of the answer.
    """

    async def send(message: Any) -> None:
        await trio.sleep_forever()

    scope = {**SCOPE, "raw_path": path}
    await AsgiApplication(Echo(), unread_s=5)(scope, Exchanged(part(b"", more=False)).receive, send)
    assert trio.current_time() == pytest.approx(limit_s, abs=0.1)


async def test_only_http_1_1_announces_the_end_of_the_connection() -> None:
    """HTTP/2 forbids the header `Connection`."""

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
    """Targets outside visible ASCII and too many headers are refused."""
    assert (await ask(Echo(), Exchanged(part(b"", more=False)), **scope)).sent[0]["status"] == status


async def test_scopes_other_than_requests_are_refused() -> None:
    """A server that offers the ASGI scope `lifespan` continues without it."""
    with pytest.raises(NotImplementedError, match="lifespan"):
        await AsgiApplication(Echo(), unread_s=30)({"type": "lifespan"}, Exchanged().receive, Exchanged().send)


async def test_a_body_that_no_handler_reads_is_not_kept() -> None:
    """The length of the body does not matter. A client that disconnects within it gets no answer."""
    parts = [{"type": "http.request", "body": b"x" * 1000, "more_body": number < 3} for number in range(4)]
    messages = [*parts, *parts[:2], {"type": "http.disconnect"}]

    async def receive() -> Any:
        await trio.lowlevel.checkpoint()
        return messages.pop(0)

    body = AsgiRequest(receive, "")
    await body.skip()
    assert len(messages) == 3
    assert await body.receive() == b""
    with pytest.raises(ClientGone):
        await AsgiRequest(receive, "").skip()

"""Connections over TLS, by clients with real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import h2.events
import httpx
import pytest
import trio
from hypercorn.events import RawData
from hypercorn.protocol import ProtocolWrapper
from structlog.testing import capture_logs

from svc.serving.transport.certificate import Tls
from svc.serving.transport.messages import Incoming, Response
from svc.serving.transport.tls import FRAMES_A_PIECE, HANDSHAKE_S, PIECE_BYTES, Frames
from tests.serving.certificates import Issuer
from tests.serving.sockets import listening
from tests.serving.transport.echo import LARGE, Echo

pytestmark = pytest.mark.anyio
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
    """One connection of HTTP/2 that sends what a library for clients would not."""

    def __init__(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        self.stream = stream
        config = h2.config.H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False)
        self.h2 = h2.connection.H2Connection(config)
        self.h2.initiate_connection()

    async def flush(self) -> None:
        await self.stream.send_all(self.h2.data_to_send())

    async def until(self, kind: type[Any]) -> Any:
        """The next event of this kind; None at the end of the connection."""
        while data := await self.stream.receive_some():
            for event in self.h2.receive_data(data):
                if isinstance(event, kind):
                    return event
        return None


@both_versions
async def test_both_versions_of_http_are_spoken(issuer: Issuer, http2: bool) -> None:
    """ALPN chooses. Answers have their length and date, and no name of the server."""
    async with listening(Echo(), tls=issuer.tls()) as port, client_of(port, issuer, http2=http2) as client:
        found = await client.post("/body", content=b"x" * 100_000)
        assert found.http_version == ("HTTP/2" if http2 else "HTTP/1.1")
        assert found.content == b"got " + b"x" * 100_000
        assert {*found.headers} == {"content-type", "content-length", "date"}
        assert (await client.get("/large")).content == LARGE
        assert (await client.head("/")).content == b""


@both_versions
async def test_a_client_without_a_certificate_is_not_let_in(issuer: Issuer, tmp_path: Path, http2: bool) -> None:
    """Nor with one of another authority; with a signed one it is."""
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
async def test_a_new_certificate_greets_new_connections(issuer: Issuer, tmp_path: Path, http2: bool) -> None:
    """Open ones go on."""
    tls, other = issuer.tls(), Issuer(tmp_path, "other")
    async with listening(Echo(), tls=tls) as port, client_of(port, issuer, http2=http2) as old:
        await old.get("/")
        tls.replace(other.certificate())
        assert (await old.get("/")).content == b"well"
        async with client_of(port, other, http2=http2) as new:
            assert (await new.get("/")).content == b"well"


class Refusing(Echo):
    """Refuses `/no` before its body has come."""

    async def __call__(self, incoming: Incoming) -> Response | None:
        return Response(401, b"no") if incoming.head.target == b"/no" else await super().__call__(incoming)


async def test_a_refusal_leaves_the_other_streams_alone(issuer: Issuer) -> None:
    """Hypercorn would end the connection with the first byte of a body behind its answer."""
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
    """However they come: no byte is lost, and a large frame goes on as it comes."""
    data = bytes.fromhex("003fff000000000001") + b"x" * 0x3FFF
    sent = PREFACE + PING * 40 + data + PING * 3
    frames, pieces = Frames(), []
    for start in range(0, len(sent), step):
        frames.feed(sent[start : start + step])
        while piece := frames.take():
            pieces.append(piece)
    assert b"".join(pieces) == sent
    assert max(piece.count(PING) for piece in pieces) <= FRAMES_A_PIECE


async def test_every_connection_gets_its_bytes_in_pieces(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of frames, and a large body of HTTP/1.1: between two pieces others have their turns."""
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


async def test_an_error_of_one_connection_ends_no_other(issuer: Issuer) -> None:
    """A path and a method that are not ASCII raise within hypercorn: strangers cannot fill the log with that."""
    with capture_logs() as records:
        await ask_wrongly(issuer)
    assert records == []


async def ask_wrongly(issuer: Issuer) -> None:
    async with listening(Echo(), tls=issuer.tls()) as port, client_of(port, issuer, http2=True) as client:
        await client.get("/")
        for wrong in ((":path", b"/\xff"), (":method", b"\xff")):
            stranger = Http2(await connect(port, issuer, "h2"))
            stranger.h2.send_headers(1, [*[pair for pair in HEAD if pair[0] != wrong[0]], wrong], end_stream=True)
            await stranger.flush()
            assert await stranger.until(h2.events.StreamEnded) is None
            await stranger.stream.aclose()
        assert (await client.get("/")).content == b"well"


@both_versions
async def test_a_defect_is_logged_and_ends_no_other_connection(issuer: Issuer, http2: bool) -> None:
    """Its client gets 500."""
    with capture_logs() as records:
        async with listening(Echo(), tls=issuer.tls()) as port, client_of(port, issuer, http2=http2) as client:
            assert (await client.get("/broken")).status_code == 500
            assert (await client.get("/")).content == b"well"
    assert [(record["event"], record["error"]) for record in records] == [
        ("connection_failed", "KeyError: 'unforeseen'")
    ]


@both_versions
async def test_a_drain_answers_what_is_in_flight(issuer: Issuer, http2: bool) -> None:
    """Idle connections end at once, and the server with the last answer."""
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


async def test_who_never_begins_a_handshake_is_left(issuer: Issuer) -> None:
    """So a drain waits for no silent client."""
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
    """Also those that hypercorn would keep for ever."""
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
    """As on the plain port: a request for an upgrade is answered as if it had not asked."""
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

"""HTTP/2 over real sockets: requests, windows, bodies, and that no connection is held for ever."""

from __future__ import annotations

import h2.connection
import h2.events
import h2.settings
import pytest
import trio

from svc.serving.transport.pacing import TurnScheduler
from tests.serving.sockets import everything, exchange, listening
from tests.serving.transport.echo import LARGE, MEDIUM, REQUEST, Echo, Lateness

pytestmark = pytest.mark.anyio


class Client:
    """A client of HTTP/2 on a stream that grants each answer `window` bytes at first."""

    def __init__(self, stream: trio.SocketStream, window: int = 65_535) -> None:
        self._stream = stream
        self._h2 = h2.connection.H2Connection()
        self._h2.local_settings = h2.settings.Settings(
            client=True, initial_values={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window}
        )
        self._h2.initiate_connection()

    async def say(self) -> None:
        await self._stream.send_all(self._h2.data_to_send())

    def ask(self, path: str, stream_id: int = 1, body: bytes = b"", **headers: str) -> None:
        names = {":method": "POST" if body else "GET", ":path": path, ":scheme": "http", ":authority": "localhost"}
        self._h2.send_headers(stream_id, [*names.items(), *headers.items()], end_stream=not body)
        if body:
            self._h2.send_data(stream_id, body, end_stream=True)

    async def answer(self) -> tuple[dict[bytes, bytes], bytes]:
        """The headers and the body of the next answer that is whole."""
        headers: dict[bytes, bytes] = {}
        body = b""
        while True:
            data = await self._stream.receive_some()
            assert data, "the connection ended before the answer"
            for event in self._h2.receive_data(data):
                match event:
                    case h2.events.ResponseReceived():
                        headers = {bytes(name): bytes(value) for name, value in event.headers or ()}
                    case h2.events.DataReceived():
                        body += event.data or b""
                        self._h2.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id or 1)
                    case h2.events.StreamEnded():
                        return headers, body
            await self.say()


async def test_requests_are_answered() -> None:
    """Several on one connection, with a body, and with more than one window holds; also by name of the other host."""
    async with listening(Echo()) as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:
        client = Client(stream)
        client.ask("/")
        await client.say()
        headers, body = await client.answer()
        assert (headers[b":status"], headers[b"content-length"], body) == (b"200", b"4", b"well")
        assert b"connection" not in headers
        client.ask("/body", 3, b"hello")
        await client.say()
        assert (await client.answer())[1] == b"got hello"
        client.ask("/medium", 5)
        await client.say()
        assert (await client.answer())[1] == MEDIUM


@pytest.mark.parametrize(("timeout_ms", "late_s"), [("4000", b"5"), ("6000", b"0")])
async def test_the_application_says_whether_a_request_is_late(
    timeout_ms: str, late_s: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for HTTP/1.1: by its method, its target, its header and the wait for its turn."""
    monkeypatch.setattr(TurnScheduler, "expected_wait_s", lambda _self, rank: 5.0)
    async with listening(Lateness()) as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:
        client = Client(stream)
        client.ask("/slow", body=b"{}", **{"x-request-timeout-ms": timeout_ms})
        await client.say()
        assert (await client.answer())[1] == late_s


async def test_the_preface_may_come_in_pieces() -> None:
    """Byte by byte."""
    async with listening(Echo()) as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:
        client = Client(stream)
        client.ask("/")
        for byte in client._h2.data_to_send():
            await stream.send_all(bytes([byte]))
        assert (await client.answer())[1] == b"well"


async def test_a_request_with_two_hosts_is_refused() -> None:
    """`:authority` and `host` that differ: a proxy in front may have believed the other one."""
    async with listening(Echo()) as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:
        client = Client(stream)
        client._h2.config.validate_outbound_headers = False
        client.ask("/", host="other")
        await client.say()
        assert b"well" not in await everything(stream)


async def test_a_body_that_no_handler_reads_need_not_be_sent() -> None:
    """The answer comes before the body does, and the connection goes on with another request."""
    async with listening(Echo()) as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:
        client = Client(stream)
        client._h2.send_headers(1, [(":method", "POST"), (":path", "/"), (":scheme", "http"), (":authority", "a")])
        await client.say()
        assert (await client.answer())[1] == b"well"
        for stream_id in range(3, 13, 2):
            while client._h2.outbound_flow_control_window < 16_000:  # given back after each answer
                client._h2.receive_data(await stream.receive_some())
            client.ask("/", stream_id, bytes(16_000))
            await client.say()
            assert (await client.answer())[1] == b"well"


@pytest.mark.parametrize("path", ["", "/large"], ids=["nothing", "without permission"])
async def test_connections_without_a_request_or_an_open_window_are_closed(path: str) -> None:
    """A connection without a request is idle; one whose window stays shut has the client timeout."""
    async with listening(Echo(), idle_s=5, unread_s=5) as port:
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            client = Client(stream, window=1)
            if path:
                client.ask(path)
            started = trio.current_time()
            await client.say()
            await everything(stream)
            assert 4 <= trio.current_time() - started < 30
        assert (await exchange(port, REQUEST % b"")).endswith(b"well")


async def test_a_client_that_never_reads_its_answer_is_disconnected() -> None:
    """The connection gives up on a send that takes too long."""
    async with listening(Echo(), unread_s=5) as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:
        client = Client(stream, window=(1 << 31) - 1)
        client._h2.increment_flow_control_window((1 << 31) - 70_000)
        client.ask("/large")
        await client.say()
        await trio.sleep(60)
        assert len(await everything(stream)) < len(LARGE)


async def test_a_request_in_progress_is_not_idle() -> None:
    """The idle time is shorter than the answer takes."""
    async with listening(Echo(), idle_s=0.3) as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:
        client = Client(stream)
        client.ask("/slow")
        await client.say()
        assert (await client.answer())[1] == b"well"


async def test_a_drain_lets_an_answer_finish_and_ends_idle_connections() -> None:
    """The end of the block begins the drain."""
    with trio.fail_after(4):
        async with listening(Echo()) as port:
            busy, idle = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(2)]
            client, other = Client(busy), Client(idle)
            client.ask("/slow")
            await client.say()
            await other.say()
            await trio.sleep(0.2)
        # `serve` has returned: what it answered waits in the socket
        assert (await client.answer())[1] == b"well"
        await everything(idle)
        await busy.aclose()
        await idle.aclose()


async def test_a_client_that_leaves_is_noticed() -> None:
    """While its request waits."""
    application = Echo()
    async with listening(application) as port:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        client = Client(stream)
        client.ask("/gone")
        await client.say()
        await trio.sleep(0.2)
        await stream.aclose()
        await trio.sleep(1)
    assert application.left == 1


@pytest.mark.parametrize("noise", [b"\xff" * 64, b"\x00" * 64, b"GET / HTTP/1.1\r\n\r\n"])
async def test_noise_behind_the_preface_ends_its_connection(noise: bytes) -> None:
    """And nothing else."""
    async with listening(Echo(), idle_s=1) as port:
        await exchange(port, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + noise)
        assert (await exchange(port, REQUEST % b"")).endswith(b"well")

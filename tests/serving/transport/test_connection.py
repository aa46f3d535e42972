"""Connections over real sockets: their answers, deadlines and ends, and their balance over processes."""

from __future__ import annotations

import socket
import struct
import time
import tracemalloc
from collections.abc import Hashable
from contextlib import AsyncExitStack, ExitStack, suppress
from functools import partial
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from svc.serving.transport import connection, server
from svc.serving.transport.connection import LINGER_S, PRECISION_S, VACANT, ConnectionLimits, Spread
from svc.serving.transport.http1 import CHUNKS_AT_ONCE, CONTINUE
from svc.serving.transport.messages import SLOWEST_BYTES_PER_S, Incoming, Response
from svc.serving.transport.pacing import Rank, TurnScheduler
from tests.serving.sockets import everything, exchange, listening
from tests.serving.transport.echo import KEPT, LARGE, REQUEST, Echo, Lateness

pytestmark = pytest.mark.anyio
POST = b"POST /body HTTP/1.1\r\nHost: a\r\n"


async def opened(port: int) -> trio.SocketStream:
    return await trio.open_tcp_stream("127.0.0.1", port)


async def test_bytes_that_are_not_read_count_until_they_are_sent() -> None:
    """The count bounds all large answers that clients leave unread. Bytes in the kernel do not count."""
    app = Echo()
    async with listening(app) as port:
        clients = [await opened(port) for _ in range(3)]
        for client in clients:
            await client.send_all(KEPT % b"large")
        await trio.sleep(0.1)
        assert 0 < app.unsent.count < 3 * len(LARGE)
        for client in clients[:2]:
            assert len(await everything_of(client, len(LARGE))) >= len(LARGE)
        await clients[2].aclose()
        await trio.sleep(1)
        assert app.unsent.count == 0
        for client in clients[:2]:
            await client.aclose()


async def everything_of(stream: trio.SocketStream, size: int) -> bytes:
    """Return at least `size` bytes."""
    found = bytearray()
    while len(found) < size:
        found += await stream.receive_some()
    return bytes(found)


class InParts(Echo):
    """Answers with a body of more parts than the kernel takes at once."""

    async def __call__(self, incoming: Incoming) -> Response | None:
        return Response(200, tuple(b"%d," % number for number in range(5000)))


async def test_a_body_in_many_parts_is_sent_whole() -> None:
    """The length is that of all parts."""
    async with listening(InParts()) as port:
        head, body = (await exchange(port, REQUEST % b"")).split(b"\r\n\r\n")
        assert body == b"".join(b"%d," % number for number in range(5000))
        assert b"content-length: %d\r\n" % len(body) in head


async def test_a_defect_in_one_connection_ends_no_other() -> None:
    """An unexpected exception closes its own connection and is logged once. Open and new connections go on."""
    with capture_logs() as records:
        async with listening(Echo()) as port, await opened(port) as other:
            await other.send_all((REQUEST % b"")[:10])
            assert await exchange(port, KEPT % b"broken") == b""
            await other.send_all((REQUEST % b"")[10:])
            assert (await everything(other)).endswith(b"well")
            assert (await exchange(port, REQUEST % b"")).endswith(b"well")
    assert [record["event"] for record in records] == ["connection_failed"]
    assert records[0]["error"] == "KeyError: 'unforeseen'"


@pytest.mark.parametrize("taken", [0, 1000], ids=["nothing", "a little now and then"])
async def test_an_answer_that_is_not_read_in_time_ends_its_connection(taken: int) -> None:
    """The limit is the client timeout plus a second for each MiB.

    A client that reads steadily but too slowly is disconnected, too.
    """
    async with listening(Echo(), unread_s=5) as port, await opened(port) as stream:
        await stream.send_all(REQUEST % b"large")
        read = len(await stream.receive_some(1000))
        for _ in range(5 + len(LARGE) // SLOWEST_BYTES_PER_S + 1):
            await trio.sleep(1)
            read += len(await stream.receive_some(taken)) if taken else 0
        assert read + len(await everything(stream)) < len(LARGE)
        assert (await exchange(port, REQUEST % b"")).endswith(b"well")


@pytest.mark.parametrize(("late_s", "is_whole"), [(16, True), (18, False)])
async def test_each_mib_of_an_answer_adds_a_second_to_its_limit(late_s: float, is_whole: bool) -> None:
    """An answer of 12 MiB may wait for 5 + 12 seconds."""
    async with listening(Echo(), unread_s=5) as port, await opened(port) as stream:
        await stream.send_all(REQUEST % b"large")
        await trio.sleep(late_s)
        assert (len(await everything(stream)) > len(LARGE)) == is_whole


async def test_a_client_that_has_closed_its_sending_side_is_answered() -> None:
    """Such a client still reads its answer."""
    async with listening(Echo()) as port, await opened(port) as stream:
        await stream.send_all(KEPT % b"slow" + KEPT % b"large")
        await stream.send_eof()
        assert len(await everything(stream)) > len(LARGE)


@pytest.mark.parametrize(
    "opening", [b"\x00" * 64, b"GET / HTTP/1.1\r\nHost: a..b\r\nHost: b\r\n\r\n", b"GET /\r\n\r\n"]
)
async def test_invalid_bytes_are_refused_and_their_connection_closed(opening: bytes) -> None:
    """The refusal comes before the client has sent all. Requests behind invalid bytes are not answered."""
    application = Echo()
    async with listening(application) as port:
        answer = await exchange(port, opening + KEPT % b"smuggled")
        assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert b"connection: close" in answer
        assert (await exchange(port, REQUEST % b"")).endswith(b"well")
    assert b"/smuggled" not in application.asked


async def test_the_answer_to_head_has_no_body() -> None:
    """The Content-Length is that of GET."""
    async with listening(Echo()) as port:
        answer = await exchange(port, (REQUEST % b"").replace(b"GET", b"HEAD"))
    assert b"content-length: 4\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")


async def test_pipelined_requests_are_answered_in_order() -> None:
    """A request may begin in the middle of a read. No request is answered after one that ends the connection."""
    application = Echo()
    async with listening(application) as port:
        bodies = b"".join(POST + b"Content-Length: 4\r\n\r\n%04d" % place for place in range(3000))
        answer = await exchange(port, bodies + REQUEST % b"" + KEPT % b"late")
    assert [part[:4] for part in answer.split(b"got ")[1:]] == [b"%04d" % place for place in range(3000)]
    assert answer.endswith(b"well")
    assert b"/late" not in application.asked


@pytest.mark.parametrize("opening", [b"", b"GET / HT", KEPT % b"" + b"GET /"], ids=["nothing", "a part", "a part more"])
async def test_a_head_that_is_not_complete_in_time_ends_its_connection(opening: bytes) -> None:
    """The idle time begins with the last answer, also for a head that arrives steadily byte by byte."""
    async with listening(Echo(), idle_s=5) as port, await opened(port) as stream:
        await stream.send_all(opening)
        answered = await stream.receive_some() if opening.startswith(KEPT % b"") else b""
        started = trio.current_time()
        with suppress(trio.BrokenResourceError):  # drips until the server closes the connection
            while opening and trio.current_time() < started + 8:
                await trio.sleep(1)
                await stream.send_all(b"x")
        assert await everything(stream) == b""
        assert not answered or answered.endswith(b"well")
        assert trio.current_time() - started < 10


async def test_an_idle_connection_is_closed_and_a_used_one_is_not() -> None:
    """The idle time starts anew with every answer, and does not run while the server makes one."""
    async with listening(Echo(), idle_s=0.5) as port, await opened(port) as used, await opened(port) as idle:
        for path in (b"", b"slow", b""):
            await trio.sleep(0.3)
            await used.send_all(KEPT % path)
            assert (await used.receive_some()).endswith(b"well")
        assert await idle.receive_some() == b""


async def test_100_continue_is_sent_only_if_the_body_is_read() -> None:
    """A refusal that does not need the body sends no `100 Continue`."""
    expects = b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    async with listening(Echo()) as port, await opened(port) as stream:
        await stream.send_all(POST + expects)
        assert await stream.receive_some() == b"HTTP/1.1 100 Continue\r\n\r\n"
        await stream.send_all(b"{}")
        assert (await stream.receive_some()).endswith(b"got {}")
        await stream.send_all(POST + expects + b"{}")
        assert (await stream.receive_some()).endswith(b"got {}")
        await stream.send_all(POST.replace(b"/body", b"/") + expects)
        refusal = await everything(stream)
    assert refusal.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in refusal


class Full(socket.socket):
    """A socket without room for the first bytes of an answer."""

    def sendmsg(self, *_: Any) -> int:
        raise BlockingIOError


async def test_an_answer_comes_whole_if_the_kernel_first_takes_no_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", Full)
    async with listening(Echo()) as port:
        answer = await exchange(port, REQUEST % b"large")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\n" + LARGE)


async def test_a_body_that_no_handler_reads_is_discarded() -> None:
    """If the whole body has arrived, the connection goes on.

    If it is still arriving, the server reads for a moment, so that the client gets the answer.
    """
    async with listening(Echo()) as port, await opened(port) as stream:
        await stream.send_all(POST.replace(b"/body", b"/") + b"Content-Length: 5\r\n\r\nhello" + KEPT % b"next")
        answers = b""
        while answers.count(b"well") < 2:
            answers += await stream.receive_some()
        await stream.send_all(POST.replace(b"/body", b"/") + b"Content-Length: 20000000\r\n\r\n")
        for _ in range(20):
            await stream.send_all(bytes(1 << 20))
        answer = await everything(stream)
    assert answer.endswith(b"well")
    assert b"connection: close" in answer


async def test_a_refused_client_that_sends_for_ever_is_disconnected() -> None:
    """The server closes the connection although the body never ends."""
    async with listening(Echo()) as port, await opened(port) as stream:
        started = trio.current_time()
        await stream.send_all(POST.replace(b"/body", b"/") + b"Content-Length: 1000000000\r\n\r\n")
        with pytest.raises(trio.BrokenResourceError):
            while True:
                await stream.send_all(b"x")
                await trio.sleep(0.5)
        assert LINGER_S <= trio.current_time() - started < LINGER_S + 5


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("opening", [KEPT % b"gone", POST + b"Content-Length: 100\r\n\r\nhalf"], ids=["waits", "body"])
async def test_a_client_that_disconnects_is_noticed(opening: bytes, reset: bool) -> None:
    """The server notices it while the request waits, and in the middle of the body."""
    application = Echo()
    async with listening(application) as port:
        stream = await opened(port)
        await stream.send_all(opening)
        await trio.sleep(0.5)
        if reset:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await stream.aclose()
        await trio.sleep(1)
    assert application.left == 1


class Patient(Echo):
    """Answers after three seconds, unless its client has disconnected."""

    async def __call__(self, incoming: Incoming) -> Response | None:
        with trio.move_on_after(3):
            await incoming.until_gone()
            self.left += 1
            return None
        return Response(200, b"well")


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_a_client_that_closes_only_its_sending_side_gets_its_answer(version: bytes) -> None:
    """Such a client still reads. Only HTTP/1.1 clients get interim answers."""
    application = Patient()
    async with listening(application) as port, await opened(port) as stream:
        await stream.send_all(KEPT.replace(b"1.1", version) % b"")
        await stream.send_eof()
        answer = await everything(stream)
    *interim, final = answer.split(CONTINUE)
    assert (final[:15], final[-4:]) == (b"HTTP/1.1 200 OK", b"well")
    assert bool(interim) == (version == b"1.1")
    assert not any(interim)


async def test_a_client_that_closes_its_sending_side_and_disconnects_later_is_noticed() -> None:
    application = Patient()
    async with listening(application) as port:
        stream = await opened(port)
        await stream.send_all(KEPT % b"")
        await stream.send_eof()
        await trio.sleep(1)
        await stream.aclose()
        await trio.sleep(1.5)
        assert application.left == 1


class Watching(Echo):
    """Waits for a while for its client to disconnect before it reads the body."""

    async def _body(self, incoming: Incoming) -> Response | None:
        with trio.move_on_after(1):
            await incoming.until_gone()
        return await super()._body(incoming)


async def test_bytes_that_arrive_while_the_client_is_watched_are_kept() -> None:
    """The bytes are the rest of a body and the next request."""
    async with listening(Watching()) as port, await opened(port) as stream:
        await stream.send_all(POST + b"Content-Length: 5\r\n\r\nhe")
        await trio.sleep(0.2)
        await stream.send_all(b"llo" + REQUEST % b"")
        answer = await everything(stream)
    assert answer.count(b"got hello") == 1
    assert answer.endswith(b"well")


async def test_an_answer_after_the_signal_ends_its_connection() -> None:
    """During a drain the answer closes the connection, so that clients send their next request to another server."""
    application = Echo()
    async with listening(application) as port:
        application.is_leaving = True
        assert b"connection: close" in await exchange(port, KEPT % b"")


@pytest.mark.parametrize(
    ("head", "late_s"),
    [
        (b"POST /slow HTTP/1.1\r\n", b"0"),
        (b"POST /slow HTTP/1.1\r\nx-request-TIMEOUT-ms: 4000\r\n", b"5"),
        (b"POST /slow HTTP/1.1\r\nX-Request-Timeout-Ms:4000\r\n", b"5"),
        (b"POST /slow HTTP/1.1\r\nX-Request-Timeout-Ms: 6000\r\n", b"0"),
        (b"GET /slow HTTP/1.1\r\nX-Request-Timeout-Ms: 4000\r\n", b"0"),
        (b"GET /probe HTTP/1.1\r\nX-Request-Timeout-Ms: 4000\r\n", b"0"),
    ],
)
async def test_the_application_decides_about_lateness_before_parsing(
    head: bytes, late_s: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The application gets method, target, header and wait, also for pipelined requests."""
    monkeypatch.setattr(TurnScheduler, "expected_wait_s", lambda _self, rank, _key: 0.0 if rank is Rank.PROBE else 5.0)
    async with listening(Lateness()) as port:
        answer = await exchange(port, head + b"Host: a\r\nConnection: close\r\n\r\n")
        assert answer.endswith(b"\r\n\r\n" + late_s)
        before = b"POST /slow HTTP/1.1\r\nHost: a\r\nX-Request-Timeout-Ms: 1\r\n\r\n"
        both = await exchange(port, before + head + b"Host: a\r\nConnection: close\r\n\r\n")
        assert both.endswith(b"\r\n\r\n" + late_s)


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> list[Rank]:
    """Return the ranks of all entries, in order."""
    entered: list[Rank] = []
    enter = TurnScheduler.enter

    async def noted(self: TurnScheduler, rank: Rank, key: Hashable) -> None:
        entered.append(rank)
        await enter(self, rank, key)

    monkeypatch.setattr(TurnScheduler, "enter", noted)
    return entered


async def test_a_connection_takes_turns_with_the_key_of_its_last_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key stays that of the last accepted request. Further packets of a body count for it, too."""
    entered, enter = list[Hashable](), TurnScheduler.enter

    async def noted(self: TurnScheduler, rank: Rank, key: Hashable) -> None:
        entered.append(key)
        await enter(self, rank, key)

    monkeypatch.setattr(TurnScheduler, "enter", noted)
    async with listening(Echo()) as port, await opened(port) as stream:
        for request in (KEPT % b"", KEPT % b"shop", KEPT % b""):
            await stream.send_all(request)
            assert (await stream.receive_some()).endswith(b"well")
        await stream.send_all(POST + b"Content-Length: 2\r\n\r\n")
        await trio.sleep(0.2)
        await stream.send_all(b"xx")
        assert (await stream.receive_some()).endswith(b"got xx")
    assert entered == [None, None, "shop", "shop", "shop"]


async def test_only_the_first_packet_of_a_body_goes_ahead(ranks: list[Rank]) -> None:
    """Bodies that arrive slowly or in many chunks do not delay short ones."""
    async with listening(Echo()) as port, await opened(port) as stream:
        await stream.send_all(POST + b"Content-Length: 4\r\n\r\n")
        for _ in range(4):
            await trio.sleep(0.2)
            await stream.send_all(b"x")
        assert (await stream.receive_some()).endswith(b"got xxxx")
        assert ranks == [Rank.NEWCOMER, Rank.KNOWN, Rank.GOING_ON, Rank.GOING_ON, Rank.GOING_ON]
        ranks.clear()
        await stream.send_all(POST + b"Transfer-Encoding: chunked\r\n\r\n")
        await trio.sleep(0.2)
        await stream.send_all(b"1\r\nx\r\n" * 4 * CHUNKS_AT_ONCE + b"0\r\n\r\n")
        assert (await stream.receive_some()).endswith(b"got " + b"x" * 4 * CHUNKS_AT_ONCE)
        assert ranks == [Rank.KNOWN, Rank.KNOWN] + [Rank.GOING_ON] * 3


async def test_each_request_enters_with_its_rank(ranks: list[Rank]) -> None:
    """Pipelined requests rank behind a client's first request. Its next request and a probe rank before it."""
    async with listening(Echo()) as port, await opened(port) as stream:
        for sent, count in ((KEPT % b"" * 3, 3), (KEPT % b"", 1), (KEPT % b"probe", 1)):
            answers = b""
            await stream.send_all(sent)
            while answers.count(b"well") < count:
                answers += await stream.receive_some()
            await trio.sleep(0.2)
    assert ranks == [Rank.NEWCOMER, Rank.GOING_ON, Rank.GOING_ON, Rank.KNOWN, Rank.PROBE]


async def test_a_body_that_is_not_read_is_discarded_in_turns(ranks: list[Rank]) -> None:
    """One packet may contain thousands of chunks, so other connections have turns meanwhile."""
    chunked = POST.replace(b"/body", b"/") + b"Transfer-Encoding: chunked\r\n\r\n"
    async with listening(Echo()) as port:
        await exchange(port, chunked + b"1\r\nx\r\n" * 4 * CHUNKS_AT_ONCE + b"0\r\n\r\n" + REQUEST % b"")
    assert ranks == [Rank.NEWCOMER] + [Rank.GOING_ON] * 5


@pytest.mark.parametrize("behind", [b"", b"GET /"], ids=["nothing", "a part of a head"])
async def test_an_idle_connection_frees_its_buffers(behind: bytes) -> None:
    """A large head and body are freed, although their last bytes came with the beginning of the next request."""
    request = POST + b"X: %b\r\nContent-Length: 30000\r\n\r\n" % (b"x" * 30_000) + bytes(30_000) + behind
    async with listening(Echo()) as port:
        streams = [await opened(port) for _ in range(20)]
        tracemalloc.start()
        for stream in streams:
            await stream.send_all(request)
            answer = b""
            while len(answer) < 30_000:
                answer += await stream.receive_some()
        await trio.sleep(1)
        del answer
        kept = tracemalloc.get_traced_memory()[0] / len(streams)
        tracemalloc.stop()
        for stream in streams:
            await stream.aclose()
    assert kept < 12_000


IDLE_S = 5.0


async def test_each_idle_connection_is_closed_at_its_own_deadline() -> None:
    """Many connections, new or answered, became idle at different moments."""
    ended: dict[int, float] = {}

    async def wait(number: int, stream: trio.SocketStream) -> None:
        since = trio.current_time()
        if number % 2:
            await stream.send_all(KEPT % b"")
            assert (await stream.receive_some()).endswith(b"well")
        assert await stream.receive_some() == b""
        ended[number] = trio.current_time() - since

    async with listening(Echo(), idle_s=IDLE_S) as port, AsyncExitStack() as stack, trio.open_nursery() as nursery:
        for number in range(20):
            stream = await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port))
            nursery.start_soon(wait, number, stream)
            await trio.sleep(0.25)
    assert len(ended) == 20
    assert all(IDLE_S - PRECISION_S <= waited <= IDLE_S + 1 for waited in ended.values())


LIMITS = ConnectionLimits(idle_s=30, unread_s=30, drain_s=5)


def counts_of(size: int) -> memoryview[int]:
    return memoryview(bytearray(8 * size)).cast("Q")


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise PATIENCE_S above the longest turn of the event loop on a busy machine."""
    monkeypatch.setattr(connection, "PATIENCE_S", 5.0)


async def answered(client: socket.socket) -> None:
    """Wait until a client has an answer, so that a process has accepted it."""
    client.setblocking(False)
    client.send(KEPT % b"")
    await trio.lowlevel.wait_readable(client)
    client.recv(1 << 16)


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("n_workers", [2, 3, 8])
async def test_connections_that_come_one_by_one_are_balanced(n_workers: int) -> None:
    """No process has two connections more than another. New ones replace ended ones."""
    counts, drain = counts_of(n_workers), trio.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as stack:
        async with trio.open_nursery() as nursery:
            for slot in range(n_workers):
                serve = partial(server.serve, until=drain.wait, spread=Spread(counts, slot))
                nursery.start_soon(serve, Echo(), listener.dup(), LIMITS)
            clients: list[socket.socket] = []
            for number in range(4 * n_workers):
                clients.append(stack.enter_context(socket.create_connection(listener.getsockname())))
                await answered(clients[-1])
                assert sum(counts) == number + 1
                assert max(counts) - min(counts) <= 1
            for client in clients[::2]:
                client.close()
            while sum(counts) > 2 * n_workers:
                await trio.lowlevel.checkpoint()
            for _ in range(2 * n_workers):
                client = stack.enter_context(socket.create_connection(listener.getsockname()))
                await answered(client)
            assert max(counts) - min(counts) <= 1
            drain.set()
    assert counts.tolist() == [0] * n_workers


@pytest.mark.usefixtures("patience")
async def test_a_burst_is_balanced_and_answered_in_a_drain() -> None:
    """No connection of the burst is accepted twice or reset."""
    counts, drain = counts_of(4), trio.Event()
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener, ExitStack() as stack:

        def burst() -> list[socket.socket]:
            return [stack.enter_context(socket.create_connection(listener.getsockname())) for _ in range(40)]

        async with trio.open_nursery() as nursery:
            for slot in range(4):
                serve = partial(server.serve, until=drain.wait, spread=Spread(counts, slot))
                nursery.start_soon(serve, Echo(), listener.dup(), LIMITS)
            for client in burst():
                await answered(client)
            assert sum(counts) == 40
            assert max(counts) - min(counts) <= 3
            late = burst()
            for client in late:
                client.send(KEPT % b"")
            drain.set()
            for client in late:
                await trio.lowlevel.wait_readable(client)
                assert client.recv(1 << 16).endswith(b"well")


async def test_no_process_waits_long_for_one_that_does_not_accept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process waits `PATIENCE_S` for another one with fewer connections, and not at all for one marked as vacant."""
    counts = counts_of(2)
    own = Spread(counts, 0)
    own.show(1)
    began = time.perf_counter()
    await own.wait_for_others()
    assert time.perf_counter() - began >= connection.PATIENCE_S
    counts[1] = VACANT
    monkeypatch.setattr(connection, "PATIENCE_S", 3600.0)
    with trio.fail_after(60):
        await own.wait_for_others()


async def test_a_slot_marked_vacant_shows_its_count_again() -> None:
    """A process may be marked as vacant by mistake while the whole machine stands still."""
    counts = counts_of(2)
    own = Spread(counts, 1)
    own.show(1)
    counts[1] = VACANT
    own.show()
    assert counts.tolist() == [0, 1]
    own.show(-1)
    assert counts.tolist() == [0, 0]

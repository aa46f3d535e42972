"""Bytes of many connections: everybody gets their own, probes first, and no turn is long."""

from __future__ import annotations

import math
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from itertools import permutations

import pytest
import trio
import trio.testing

from svc.serving import reception
from svc.serving.reception import FEWEST_A_TURN, MOST_A_TURN, PROBES_A_TURN, SPOKEN_IN_ONE_GO, Desk, Reception

pytestmark = pytest.mark.anyio

PROBE = b"GET /v1/health HTTP/1.1\r\n\r\n"
WORK = b"POST /v1/recipes/m:recommend HTTP/1.1\r\n\r\n"
MANY = 200


class Line:
    """One connection: what the client writes, the desk reads."""

    def __init__(self, desks: Reception, stack: ExitStack) -> None:
        self.client, self.server = (stack.enter_context(end) for end in socket.socketpair())
        self.server.setblocking(False)
        self.desk = Desk(desks, self.server.fileno())

    def close(self) -> None:
        """As the server does it."""
        self.desk.close()
        self.server.close()


@pytest.fixture
def lines() -> Iterator[Callable[[Reception, int], list[Line]]]:
    with ExitStack() as stack:
        yield lambda desks, count: [Line(desks, stack) for _ in range(count)]


@asynccontextmanager
async def receiving(desks: Reception) -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(desks.run)
        yield nursery
        nursery.cancel_scope.cancel()


Lines = Callable[[Reception, int], list[Line]]


async def all_wait(nursery: trio.Nursery, waiting: list[Line], took: Callable[[int, bytes], None]) -> None:
    """Let each line wait for its bytes; `took` is told the place of the line and what it got."""

    async def take(place: int, line: Line) -> None:
        took(place, await line.desk.receive())

    for place, line in enumerate(waiting):
        nursery.start_soon(take, place, line)
    await trio.testing.wait_all_tasks_blocked()


async def speak(line: Line, times: int) -> None:
    """So many messages, each taken before the next comes."""
    for _ in range(times):
        line.client.sendall(WORK)
        await line.desk.receive()


@pytest.mark.parametrize("reading_s", [reception.READING_S, -1.0], ids=["all at once", "one a turn"])
async def test_each_connection_gets_its_own_bytes_in_their_order(
    lines: Lines, monkeypatch: pytest.MonkeyPatch, reading_s: float
) -> None:
    """Many connections, several messages each, of which some come in parts, however much a turn may read."""
    monkeypatch.setattr(reception, "READING_S", reading_s)
    desks = Reception()
    got: dict[int, bytes] = {}

    async def take_all(place: int, line: Line) -> None:
        got[place] = b""
        while data := await line.desk.receive(5):
            assert len(data) <= 5
            got[place] += data

    waiting = lines(desks, MANY)
    async with receiving(desks), trio.open_nursery() as readers:
        for place, line in enumerate(waiting):
            readers.start_soon(take_all, place, line)
        for part in range(3):
            for place, line in enumerate(waiting):
                line.client.sendall(b"part %d of %d;" % (part, place))
            await trio.testing.wait_all_tasks_blocked()
        for line in waiting:
            line.client.close()
    assert got == {place: b"".join(b"part %d of %d;" % (part, place) for part in range(3)) for place in range(MANY)}


@pytest.mark.parametrize(("many", "one"), [(WORK, PROBE), (PROBE, WORK)], ids=["a probe", "work in a flood of probes"])
async def test_one_is_handed_over_before_many_others(
    lines: Lines, monkeypatch: pytest.MonkeyPatch, many: bytes, one: bytes
) -> None:
    """A probe goes first, however many spoke before it; but each turn has room for others than probes."""
    monkeypatch.setattr(reception, "READING_S", math.inf)
    desks = Reception()
    order: list[int] = []
    waiting = lines(desks, MANY)
    async with receiving(desks) as nursery:
        await all_wait(nursery, waiting, lambda place, _: order.append(place))
        for line in waiting[:-1]:
            line.client.sendall(many)
        waiting[-1].client.sendall(one)
        await trio.testing.wait_all_tasks_blocked()
    assert sorted(order) == list(range(MANY))
    assert order.index(MANY - 1) <= FEWEST_A_TURN + PROBES_A_TURN


KINDS = ("answered", "new", "going on")


@pytest.mark.parametrize(("many", "one"), list(permutations(KINDS, 2)))
async def test_one_of_another_kind_need_not_wait_for_many(
    lines: Lines, monkeypatch: pytest.MonkeyPatch, many: str, one: str
) -> None:
    """The last of many to speak has its turn in the first, whether it goes before them or is only not kept out."""
    monkeypatch.setattr(reception, "READING_S", math.inf)
    desks = Reception()
    order: list[Desk] = []
    *others, last = waiting = lines(desks, MANY)

    async def take(line: Line) -> None:
        await line.desk.receive()
        order.append(line.desk)

    async with receiving(desks) as nursery:
        for kind, of_it in ((many, others), (one, [last])):
            for line in of_it:
                if kind == "going on":
                    await speak(line, SPOKEN_IN_ONE_GO)
                if kind == "new":
                    line.desk.expect(order.append)
                else:
                    nursery.start_soon(take, line)
        await trio.testing.wait_all_tasks_blocked()
        for line in waiting:
            line.client.sendall(WORK)
        await trio.testing.wait_all_tasks_blocked()
    assert set(order) == {line.desk for line in waiting}
    assert len(order) == MANY
    assert order.index(last.desk) <= 2 * FEWEST_A_TURN


async def test_a_head_and_a_body_are_no_going_on(lines: Lines) -> None:
    """One message more is, until something is answered."""
    desks = Reception()
    (line,) = lines(desks, 1)
    async with receiving(desks):
        for _ in range(2):
            await speak(line, SPOKEN_IN_ONE_GO - 1)
            assert not line.desk.goes_on
            await speak(line, 1)
            assert line.desk.goes_on
            line.desk.answered()
            assert not line.desk.goes_on


@pytest.mark.parametrize(
    ("turn_s", "most"), [(1.0, FEWEST_A_TURN), (0.0, MOST_A_TURN)], ids=["long turns", "short turns"]
)
async def test_a_turn_hands_over_a_few_and_more_while_turns_are_short(
    lines: Lines, monkeypatch: pytest.MonkeyPatch, turn_s: float, most: int
) -> None:
    """The largest share of a turn; the clock is one that each look moves on."""
    now = [0.0]

    def clock() -> float:
        now[0] += turn_s
        return now[0]

    monkeypatch.setattr(reception.time, "perf_counter", clock)
    monkeypatch.setattr(reception, "READING_S", math.inf)
    desks = Reception()
    turns: list[int] = [0]

    class Turns(trio.abc.Instrument):
        def before_io_wait(self, timeout: float) -> None:
            turns.append(0)

    def count(_place: int, _data: bytes) -> None:
        turns[-1] += 1

    waiting = lines(desks, 5 * MANY)
    async with receiving(desks) as nursery:
        await all_wait(nursery, waiting, count)
        for line in waiting:
            line.client.sendall(WORK)
        trio.lowlevel.add_instrument(instrument := Turns())
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.remove_instrument(instrument)
    assert sum(turns) == len(waiting)
    assert max(turns) == most


async def test_what_came_for_a_cancelled_reader_is_for_the_next(lines: Lines) -> None:
    """Cancelled while nothing is there, and between the reading and the handing over."""
    desks = Reception()
    line, slow = lines(desks, 2)
    async with receiving(desks):
        with trio.move_on_after(0):
            await line.desk.receive()
        line.client.sendall(b"first")
        assert await line.desk.receive() == b"first"

        async with trio.open_nursery() as reading:
            reading.start_soon(slow.desk.receive)
            await trio.testing.wait_all_tasks_blocked()
            slow.client.sendall(b"second")
            slow.desk.read()
            reading.cancel_scope.cancel()
        assert await slow.desk.receive() == b"second"


async def test_a_closed_connection_tells_its_reader_and_frees_its_number(lines: Lines) -> None:
    """Whoever gets the number of the socket next gets none of the old bytes."""
    desks = Reception()
    (line,) = lines(desks, 1)
    number = line.server.fileno()
    async with receiving(desks) as nursery:
        closed = trio.Event()

        async def wait_for_the_end() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await line.desk.receive()
            closed.set()

        nursery.start_soon(wait_for_the_end)
        await trio.testing.wait_all_tasks_blocked()
        line.client.sendall(b"too late")
        line.close()
        line.close()
        await closed.wait()
        with pytest.raises(trio.ClosedResourceError):
            await line.desk.receive()

        with ExitStack() as stack:
            server, client = (stack.enter_context(end) for end in socket.socketpair())
            server.setblocking(False)
            assert server.fileno() == number
            client.sendall(b"new")
            desk = Desk(desks, number)
            assert await desk.receive() == b"new"
            desk.close()


async def test_a_reset_connection_is_broken() -> None:
    """And not the end of a body that was whole."""
    desks = Reception()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    with client, server:
        server.setblocking(False)
        desk = Desk(desks, server.fileno())
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        client.close()
        async with receiving(desks):
            with pytest.raises(trio.BrokenResourceError):
                await desk.receive()
        desk.close()


async def test_two_readers_of_one_connection_are_a_mistake(lines: Lines) -> None:
    desks = Reception()
    (line,) = lines(desks, 1)
    async with receiving(desks) as nursery:
        nursery.start_soon(line.desk.receive)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await line.desk.receive()

"""Orders to workers, and when all have carried them out; who takes connections that a lost worker has not taken."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import trio
import trio.testing

from svc.serving.transport.server import Acceptor
from svc.serving.workers import channel
from svc.serving.workers.counters import WorkerPage
from svc.serving.workers.fleet import Fleet, Order, Worker
from svc.serving.workers.memory import SharedPage


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return ("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})


ENDS: list[socket.socket] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """All sockets of a test are closed at its end."""
    yield
    for end in ENDS:
        end.close()
    ENDS.clear()


def add_worker(fleet: Fleet, pid: int) -> tuple[Worker, socket.socket]:
    """A worker that has been told nothing yet, and the other end of its connections."""
    orders, told = trio.open_memory_channel[Order](float("inf"))
    control, told_to = channel.pair()
    connections, theirs = channel.pair()
    ENDS.extend((control, told_to, connections, theirs))
    worker = Worker(pid, -1, control, connections, WorkerPage(SharedPage.of(8192)), orders, told)
    fleet._workers.add(worker)
    return worker, theirs


def kinds(worker: Worker) -> list[str]:
    found = []
    while True:
        try:
            found.append(worker.told.receive_nowait()[1][1])
        except trio.WouldBlock:
            return found


def carry_out(fleet: Fleet, worker: Worker) -> None:
    for seq in sorted(worker.pending):
        fleet._done(worker, seq)


@pytest.mark.anyio
async def test_what_was_told_is_settled_when_every_worker_that_answers_has_done_it() -> None:
    """Neither a worker that is still starting nor one that ends holds it up."""
    fleet = Fleet(3, {})
    (first, _), (second, _), (starting, _) = (add_worker(fleet, pid) for pid in (1, 2, 3))
    fleet.tell("keys", {})
    for worker in (first, second):
        carry_out(fleet, worker)
    assert first.is_ready and second.is_ready and not starting.is_ready
    fleet.tell("entry", "model A")
    order = []

    async def swap() -> None:
        await fleet.settled()
        order.append("settled")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(swap)
        await trio.testing.wait_all_tasks_blocked()
        carry_out(fleet, first)
        await trio.testing.wait_all_tasks_blocked()
        order.append("first is done")
        fleet._workers.discard(second)
        second.changed.set()
    assert order == ["first is done", "settled"]
    assert not starting.is_ready
    carry_out(fleet, starting)
    assert starting.is_ready


@pytest.mark.anyio
async def test_a_worker_to_come_is_told_the_last_of_everything() -> None:
    """Keys and policies once, in their last form, and only then to begin."""
    fleet = Fleet(1, {})
    fleet.tell("keys", {"a": b"1"})
    fleet.tell("keys", {"b": b"2"})
    fleet.tell_policies({})
    worker, _ = add_worker(fleet, 1)
    fleet._tell_everything(worker)
    assert kinds(worker) == ["keys", "policies", "skip", "begin"]


@pytest.mark.anyio
async def test_connections_go_to_the_emptiest_and_survive_a_worker_that_has_not_taken_them() -> None:
    """Nothing is lost between the parent and a worker."""
    fleet = Fleet(2, {})
    pairs = [add_worker(fleet, pid) for pid in (1, 2)]
    for worker, _ in pairs:
        fleet.tell("keys", {})
        carry_out(fleet, worker)
    (first, taking), (second, _) = pairs
    for _ in range(4):
        client, accepted = socket.socketpair()
        ENDS.extend((client, accepted))
        fleet._waiting.append(accepted)
    fleet._hand_waiting()
    assert (first.n_open, second.n_open) == (2, 2)
    given = channel.HandedConnections(taking, first.page.note_closed)
    connected, _ = given.accept()
    fleet._collect_receipts(first)
    assert len(first.untaken) == 1
    connected.close()
    assert first.n_open == 1
    fleet._workers.discard(first)
    fleet._waiting.extend(first.untaken)
    fleet._hand_waiting()
    assert second.n_open == 3


@pytest.mark.anyio
async def test_the_fullest_worker_gives_back_what_others_lack() -> None:
    """As when all clients of one worker have left and none has come."""
    fleet = Fleet(2, {})
    pairs = [add_worker(fleet, pid) for pid in (1, 2)]
    for worker, _ in pairs:
        fleet.tell("keys", {})
        carry_out(fleet, worker)
    (full, taking), (empty, leaving) = pairs
    kinds(full), kinds(empty)
    for _ in range(4):
        client, accepted = socket.socketpair()
        ENDS.extend((client, accepted))
        fleet.take(accepted)
    for worker, end in ((full, taking), (empty, leaving)):
        given = channel.HandedConnections(end, worker.page.note_closed)
        worker_has = [given.accept()[0] for _ in range(2)]
        fleet._collect_receipts(worker)
        ENDS.extend(worker_has)
        if worker is empty:
            for connected in worker_has:
                connected.close()
    fleet._even_out()
    fleet._even_out()
    assert (full.surplus, kinds(full), kinds(empty)) == (1, ["surplus"], [])
    socket.send_fds(taking, [b"b"], [client.fileno()])
    full.page.note_closed()
    fleet._collect_receipts(full)
    fleet._hand_waiting()
    assert (full.n_open, empty.n_open, full.surplus) == (1, 1, 0)
    ENDS.extend(empty.untaken)


@pytest.mark.anyio
async def test_a_worker_that_gives_back_more_than_it_was_given_is_refused() -> None:
    """The caller ends it."""
    fleet = Fleet(1, {})
    worker, theirs = add_worker(fleet, 1)
    socket.send_fds(theirs, [b"b"], [theirs.fileno()])
    with pytest.raises(ValueError, match="was not given"):
        fleet._collect_receipts(worker)
    ENDS.extend(fleet._waiting)


@pytest.mark.anyio
async def test_a_key_keeps_its_cells_when_policies_change() -> None:
    """What it has used of its rate stays used."""
    fleet = Fleet(1, {})
    worker, _ = add_worker(fleet, 1)
    fleet.tell_policies({"a": 1, "b": 2})
    fleet.tell_policies({"b": 3, "c": 4})
    cells = [worker.told.receive_nowait()[1][3] for _ in range(2)]
    assert cells[0]["b"] == cells[1]["b"]


def messages(rng: random.Random) -> bytes:
    """Anything that a worker might send: a message, a damaged one, nested lists, nothing, or bytes."""
    told = {"kind": "ask", "number": rng.choice([1, 1, -1, 10**300]), "what": rng.choice(["metrics", "\ud800"])}
    message = json.dumps(rng.choice([{**told, "name": "a"}, {**told, "name": "[" * 99}, {"kind": "done", "seq": 7}]))
    damaged = bytearray(message.encode())
    damaged[rng.randrange(len(damaged))] = rng.randrange(256)
    return rng.choice([message.encode(), bytes(damaged), b"[" * rng.randrange(2000), rng.randbytes(rng.randrange(99))])


@pytest.mark.anyio
@pytest.mark.parametrize("seed", range(20))
async def test_nothing_that_a_worker_sends_ends_the_parent(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ended itself when it sends what no worker sends, or nothing more. The same number twice is no fault."""
    rng, fleet, killed = random.Random(seed), Fleet(1, {}), list[int]()
    monkeypatch.setattr(Worker, "kill", lambda worker: killed.append(worker.pid))

    async def answer(what: str, name: str) -> str:
        await trio.sleep(rng.random())
        return what + name

    fleet.answer = answer
    for number in range(50):
        worker, theirs = add_worker(fleet, number)[0], ENDS[-3]
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fleet._hear, worker)
                with suppress(BlockingIOError, BrokenPipeError):
                    for _ in range(rng.randrange(1, 20)):
                        theirs.send(messages(rng))
                await trio.sleep(10)
                theirs.close()
    assert killed == list(range(50))


@pytest.mark.anyio
async def test_until_a_worker_answers_connections_wait_in_the_queue_of_the_kernel() -> None:
    """The parent accepts none that nobody could answer."""
    fleet = Fleet(1, {})
    worker, _ = add_worker(fleet, 1)
    fleet.tell("begin")
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
        listener.setblocking(False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Acceptor(listener, fleet.take, lambda: 16, fleet.can_take).run)
            await trio.testing.wait_all_tasks_blocked()
            assert worker.n_given == 0
            carry_out(fleet, worker)
            while not worker.n_given:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    ENDS.extend(worker.untaken)

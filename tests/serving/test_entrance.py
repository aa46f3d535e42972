"""Connections before they have said anything: many, idle, gone again, or more than the machine can have."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from svc.serving import reception
from svc.serving.entrance import ACCEPTED_A_TURN, PAUSE_S, Entrance
from svc.serving.reception import Desk, Reception

pytestmark = pytest.mark.anyio

MANY = 200


class Door:
    """An entrance at a port, and who has spoken there."""

    def __init__(self, listener: socket.socket, silence_s: float = 30.0) -> None:
        self.reception = Reception()
        self.port = listener.getsockname()[1]
        self.spoken: list[bytes] = []
        self.streams: list[trio.SocketStream] = []
        self.entrance = Entrance(listener, self.reception, self._begin, silence_s)

    def _begin(self, stream: trio.SocketStream, desk: Desk) -> None:
        assert isinstance(desk.outcome, bytes)
        self.spoken.append(desk.outcome)
        self.streams.append(stream)

    def connect(self, stack: ExitStack) -> socket.socket:
        return stack.enter_context(socket.create_connection(("127.0.0.1", self.port), timeout=5))

    @property
    def silent(self) -> int:
        return len(self.entrance._silent)


@asynccontextmanager
async def opened(listener: socket.socket, silence_s: float = 30.0) -> AsyncIterator[tuple[Door, ExitStack]]:
    with listener, ExitStack() as stack:
        door = Door(listener, silence_s)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(door.reception.run)
            nursery.start_soon(door.entrance.run)
            yield door, stack
            nursery.cancel_scope.cancel()
        for stream in door.streams:
            await trio.aclose_forcefully(stream)
        await door.entrance.close()
        assert not door.silent


def listening() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0), backlog=2 * MANY)


async def turns(count: int) -> None:
    for _ in range(count):
        await trio.lowlevel.checkpoint()


async def test_who_says_nothing_costs_no_task_and_keeps_nobody_out() -> None:
    """Connections are accepted many at a time, and begin with their first bytes, which stay at their desks."""
    async with opened(listening()) as (door, stack):
        await trio.testing.wait_all_tasks_blocked()
        tasks = trio.lowlevel.current_statistics().tasks_living
        clients = [door.connect(stack) for _ in range(MANY)]
        await turns(MANY // ACCEPTED_A_TURN + 5)
        assert door.silent == MANY
        assert trio.lowlevel.current_statistics().tasks_living == tasks
        clients[-1].sendall(b"last")
        clients[0].sendall(b"first")
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(door.spoken) == [b"first", b"last"]
        assert door.silent == MANY - 2


async def test_a_crowd_that_speaks_waits_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """While nobody's words are taken, those who have spoken become more by one a turn, and then all are heard."""
    monkeypatch.setattr(reception, "FEWEST_A_TURN", 0)
    monkeypatch.setattr(reception, "MOST_A_TURN", 0)
    async with opened(listening()) as (door, stack):
        for _ in range(MANY):
            door.connect(stack).sendall(b"here")
        while not door.reception.crowded:
            await turns(1)
        inside = door.silent
        await turns(20)
        assert door.silent <= inside + 25
        monkeypatch.setattr(reception, "MOST_A_TURN", MANY)
        monkeypatch.setattr(reception, "FEWEST_A_TURN", 2)
        await trio.testing.wait_all_tasks_blocked()
        assert door.spoken == [b"here"] * MANY


@pytest.mark.parametrize("reset", [False, True])
async def test_who_leaves_without_a_word_is_forgotten(reset: bool) -> None:
    """Whether the connection was closed or reset; and its number may be another's afterwards."""
    async with opened(listening()) as (door, stack):
        for _ in range(3):
            client = door.connect(stack)
            await trio.testing.wait_all_tasks_blocked()
            assert door.silent == 1
            if reset:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            await trio.testing.wait_all_tasks_blocked()
            assert door.silent == 0
        door.connect(stack).sendall(b"here")
        await trio.testing.wait_all_tasks_blocked()
        assert door.spoken == [b"here"]


async def test_silence_ends() -> None:
    """Each has its own time, which the first word ends."""
    async with opened(listening(), silence_s=0.5) as (door, stack):
        first, speaker = door.connect(stack), door.connect(stack)
        await trio.sleep(0.3)
        later = door.connect(stack)
        speaker.sendall(b"here")
        await trio.sleep(0.3)
        assert first.recv(1) == b""
        assert door.silent == 1
        assert door.spoken == [b"here"]
        await trio.sleep(0.3)
        assert later.recv(1) == b""
        assert door.silent == 0


class Exhausted(socket.socket):
    """A listener whose accept fails a few times."""

    failures: list[int]

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures:
            number = self.failures.pop()
            raise OSError(number, "fault")
        return super().accept()


async def test_too_many_open_files_are_said_once_and_waited_out() -> None:
    """Who waited in the kernel's queue meanwhile still comes in; one that has left is no fault."""
    listener = Exhausted()
    listener.failures = [errno.ECONNABORTED, errno.ENFILE, errno.EMFILE, errno.EMFILE]
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    with capture_logs() as records:
        async with opened(listener) as (door, stack):
            client = door.connect(stack)
            client.sendall(b"here")
            await trio.sleep(3 * PAUSE_S)
            await trio.testing.wait_all_tasks_blocked()
    assert door.spoken == [b"here"]
    assert [(record["event"], record["error"]) for record in records] == [
        ("connection_failed", f"OSError: [Errno {errno.EMFILE}] fault")
    ]

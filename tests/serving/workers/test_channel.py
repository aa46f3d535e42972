"""Messages between the parent and a worker: what a worker may say is short and of known kinds."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
import trio

from svc.serving.workers import channel
from svc.serving.workers.memory import SealedMemory

REFUSED = [
    b"",
    b"[]",
    b"null",
    b"\xff",
    b'{"kind": "other"}',
    b'{"kind": "done"}',
    b'{"kind": "done", "seq": "1"}',
    b'{"kind": "done", "seq": true}',
    b'{"kind": "done", "seq": 1, "more": 2}',
    b'{"kind": ["done"], "seq": 1}',
    json.dumps({"kind": "ask", "number": 1, "what": "metrics", "name": "n" * 2000}).encode(),
    b"[" * 1000,
    b'{"kind": ' * 100 + b"[" * 100,
]


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


@pytest.mark.parametrize("data", REFUSED)
def test_what_no_worker_says_is_refused(data: bytes) -> None:
    """The parent ends a worker that says it."""
    with pytest.raises(ValueError):  # json has its own subclass
        channel.checked(data)


@pytest.mark.anyio
async def test_messages_arrive_in_order_whatever_their_length() -> None:
    """Long ones come in a sealed file of their own, beside the files that belong to them."""
    ours, theirs = channel.pair()
    with ours, theirs:
        file = SealedMemory.of([b"array"])
        for size in (1, 1 << 20, 10):
            await channel.send(ours, ("x" * size,), (file,))
        for size in (1, 1 << 20, 10):
            received = await channel.receive(theirs)
            assert received is not None
            assert received.value == ("x" * size,)
            assert [bytes(one) for one in received.files] == [b"array"]
        ours.close()
        assert await channel.receive(theirs) is None


@pytest.mark.anyio
async def test_a_worker_tells_and_the_parent_hears() -> None:
    """Until the worker is gone."""
    ours, theirs = channel.pair()
    with ours, theirs:
        channel.tell(theirs, "done", seq=3)
        assert await channel.hear(ours) == ("done", {"seq": 3})
        theirs.close()
        assert await channel.hear(ours) is None


@pytest.mark.anyio
async def test_a_connection_that_was_handed_over_ends_when_the_worker_closes_it() -> None:
    """The parent lets go of it when the worker says that it has it, and learns of its end."""
    ours, theirs = channel.pair()
    client, server = socket.socketpair()
    closed: list[int] = []
    with ours, theirs, client:
        channel.hand(ours, server)
        given = channel.HandedConnections(theirs, lambda: closed.append(1))
        with trio.fail_after(5):
            await trio.lowlevel.wait_readable(given)
        connected, _ = given.accept()
        assert ours.recv(1) == b"t"
        server.close()
        client.send(b"hello")
        assert connected.recv(5) == b"hello"
        connected.close()
        connected.close()
        assert closed == [1]
        assert client.recv(1) == b""
        with pytest.raises(BlockingIOError):
            given.accept()
        assert not os.get_inheritable(theirs.fileno())


def test_a_worker_gives_back_as_many_connections_as_the_parent_wants() -> None:
    """The connection stays open meanwhile, and counts as closed for the worker that had it."""
    ours, theirs = channel.pair()
    client, server = socket.socketpair()
    closed: list[int] = []
    with ours, theirs, client:
        channel.hand(ours, server)
        server.close()
        given = channel.HandedConnections(theirs, lambda: closed.append(1))
        connected, _ = given.accept()
        assert channel.receipt(ours) == channel.Receipt(None)
        assert not given.give_back(connected)
        given.surplus = 1
        assert given.give_back(connected)
        assert not given.give_back(connected)
        connected.close()
        assert closed == [1]
        receipt = channel.receipt(ours)
        assert receipt is not None
        assert receipt.given_back is not None
        with receipt.given_back as back:
            back.send(b"hello")
            assert client.recv(5) == b"hello"
        with pytest.raises(BlockingIOError):
            channel.receipt(ours)
        theirs.close()
        assert channel.receipt(ours) is None


@pytest.mark.parametrize(("data", "with_file"), [(b"x", False), (b"b", False), (b"t", True), (b"b", True)])
def test_what_is_no_receipt_is_refused(data: bytes, with_file: bool, tmp_path: Path) -> None:
    """A file is no connection; none stays open."""
    ours, theirs = channel.pair()
    with ours, theirs, (tmp_path / "file").open("w") as file:
        socket.send_fds(theirs, [data], [file.fileno()] if with_file else [])
        before = len(list(Path("/proc/self/fd").iterdir()))
        with pytest.raises(ValueError, match="no kind"):
            channel.receipt(ours)
        assert len(list(Path("/proc/self/fd").iterdir())) == before

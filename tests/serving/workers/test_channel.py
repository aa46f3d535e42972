"""Messages between the parent and a worker. Messages of a worker are short and of known kinds."""

from __future__ import annotations

import json

import pytest

from svc.processes import SealedMemory
from svc.serving.workers import channel

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


@pytest.mark.parametrize("data", REFUSED)
def test_invalid_messages_of_a_worker_are_refused(data: bytes) -> None:
    """The parent kills a worker that sends one."""
    with pytest.raises(ValueError):  # json has its own subclass
        channel.parse_message(data)


@pytest.mark.anyio
async def test_messages_of_any_length_arrive_in_order() -> None:
    """Long ones are sent as a sealed file, besides their own files."""
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
async def test_the_parent_receives_messages_until_the_worker_ends() -> None:
    ours, theirs = channel.pair()
    with ours, theirs:
        channel.tell(theirs, "done", seq=3)
        assert await channel.hear(ours) == ("done", {"seq": 3})
        theirs.close()
        assert await channel.hear(ours) is None

"""Messages between the parent and a worker: what a worker may say is short and of known kinds."""

from __future__ import annotations

import json

import pytest

from svc.processes.memory import SealedMemory
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

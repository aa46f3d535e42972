"""Messages between the parent process and a worker."""

from __future__ import annotations

import json

import pytest

from svc.processes import SealedMemory
from svc.serving.workers import channel

pytestmark = pytest.mark.anyio

REFUSED = [
    *(b"", b"[]", b"null", b"\xff", b"1", b"{}", b'["1"]', b"[true]", b"[1.0]", b"[1, 2]", b'[1, "metrics"]'),
    *(b'[1, "metrics", ["a"]]', b'[1, "metrics", "a", 2]', json.dumps([1, "metrics", "n" * 2000]).encode()),
    *(b"[" * 1000, b'{"a": ' * 100 + b"[" * 100),
]


@pytest.mark.parametrize("data", REFUSED)
def test_invalid_messages_of_a_worker_are_refused(data: bytes) -> None:
    """Parsing raises ValueError, at which the parent kills the worker."""
    with pytest.raises(ValueError):  # json has its own subclass
        channel.parse_message(data)


async def test_messages_of_any_length_arrive_in_order() -> None:
    """A long message is sent as a sealed file, beside the files that it carries."""
    ours, theirs = channel.pair()
    with ours, theirs:
        file = SealedMemory.of([b"array"])
        for size in (1, 1 << 20, 10):
            await channel.send(ours, ("x" * size,), (file,))
        for size in (1, 1 << 20, 10):
            received = await channel.receive(theirs)
            assert received is not None
            value, files = received
            assert value == ("x" * size,)
            assert [bytes(one) for one in files] == [b"array"]
        ours.close()
        assert await channel.receive(theirs) is None


async def test_the_parent_receives_messages_until_the_worker_ends() -> None:
    ours, theirs = channel.pair()
    with ours, theirs:
        channel.tell(theirs, 3)
        channel.tell(theirs, 4, "versions", "a")
        assert await channel.hear(ours) == [3]
        assert await channel.hear(ours) == [4, "versions", "a"]
        theirs.close()
        assert await channel.hear(ours) is None

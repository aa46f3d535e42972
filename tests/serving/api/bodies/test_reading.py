"""Reading of bodies: whole, in parts, too large, too slow or incomplete."""

from __future__ import annotations

import json

import pytest
import trio
from trio.testing import MockClock

from svc.errors import BodyTimeout, PayloadTooLargeForRequest, ValidationFailed
from svc.serving.api.bodies import large_bodies
from svc.serving.api.bodies.large_bodies import LargeBody
from svc.serving.api.bodies.reading import SMALL_BYTES, Bodies, Body
from svc.serving.precedence import Precedence
from svc.serving.transport.messages import ClientGone
from svc.settings import Settings
from tests.serving.sent import Sent

CAP = 4 << 20
LARGE = json.dumps({"user_features": {"text": ["x" * 8000] * 100}}).encode()


def sent(body: bytes, *, part: int = 1 << 16, pause_s: float = 0.0, breaks_off: bool = False) -> Sent:
    """Return a request whose body comes in parts of `step` bytes."""
    parts = [body[start : start + part] for start in range(0, len(body), part)]
    return Sent("POST", b"/", parts=parts, pause_s=pause_s, breaks_off=breaks_off)


def take(client: Sent, clock: MockClock | None = None, **headers: str) -> Body:
    bodies = Bodies(Settings(max_body_bytes=CAP, client_timeout_s=10), Precedence())
    named = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    return trio.run(bodies.take, client.receive, named, clock=clock or MockClock(autojump_threshold=0))


@pytest.mark.parametrize("body", [b"", b"{}", b"x" * SMALL_BYTES])
@pytest.mark.parametrize("part", [1000, SMALL_BYTES])
def test_small_bodies_are_returned_as_bytes(body: bytes, part: int) -> None:
    """The result is the same for every size of parts, with and without Content-Length."""
    assert take(sent(body, part=part)) == body
    assert take(sent(body, part=part), content_length=str(len(body))) == body


@pytest.mark.parametrize("part", [100, 5000, 1 << 16, 1 << 20])
def test_large_bodies_are_parsed(part: int) -> None:
    """Reading a large body returns the parsed object."""
    assert take(sent(LARGE, part=part)) == json.loads(LARGE)


def test_a_body_that_came_with_its_head_is_returned_at_once() -> None:
    """Such a body is refused if its declared length is too large."""
    bodies = Bodies(Settings(max_body_bytes=CAP), Precedence())
    client = sent(b"other")
    assert trio.run(bodies.take, client.receive, {b"content-length": b"2"}, b"{}") == b"{}"
    with pytest.raises(PayloadTooLargeForRequest):
        trio.run(bodies.take, client.receive, {b"content-length": b"%d" % (CAP + 1)}, b"{}")
    assert client.taken == 0


def test_a_refused_body_is_read_to_its_end() -> None:
    """A client that reads only after it has sent its body still gets the error."""
    client = sent(b'{"exclude_items":[%b"i"]}' % (b'"i"],' * 400_000))
    with pytest.raises(ValidationFailed, match="Invalid JSON at or after byte 0"):
        take(client)
    assert client.taken == 31
    with pytest.raises(ValidationFailed, match="Invalid JSON at or after byte 79"):
        take(sent(LARGE[:-1]))


@pytest.mark.parametrize("size", [0, 10, 100_000])
def test_a_client_that_disconnects_ends_the_reading(size: int) -> None:
    """Reading raises ClientGone instead of the error of an incomplete body."""
    with pytest.raises(ClientGone):
        take(sent(b"[" * size, breaks_off=True))


def test_a_body_that_is_too_large_is_refused() -> None:
    """A declared length is refused before reading, an undeclared one at the limit."""
    for declared in (str(CAP + 1), "9" * 5000):
        client = sent(LARGE)
        with pytest.raises(PayloadTooLargeForRequest, match=f"larger than {CAP} bytes"):
            take(client, content_length=declared)
        assert client.taken == 0
    with pytest.raises(PayloadTooLargeForRequest):
        take(sent(b'"' + b'"a' * CAP))


def test_a_slow_body_is_refused_after_the_timeout() -> None:
    """The limit is the client timeout plus a second for each received MiB."""
    with pytest.raises(BodyTimeout, match="within 10 seconds"):
        take(sent(b"{}", pause_s=11))
    spaced = b" " * 60_000 + b'"x"'
    assert take(sent(b'{"a":[%b]}' % b",".join([spaced] * 35), pause_s=0.33)) == {"a": ["x"] * 35}
    clock = MockClock(autojump_threshold=0)
    with pytest.raises(BodyTimeout):
        take(sent(b" " * CAP, part=1 << 18, pause_s=1), clock)
    assert clock.current_time() == pytest.approx(10 + 12 / 4, abs=0.5)  # 12 parts arrived in time


class Turns(trio.abc.Instrument):
    """Counts the turns of the event loop."""

    count = 0

    def after_io_wait(self, timeout: float) -> None:
        self.count += 1


def test_large_bodies_are_parsed_in_separate_turns_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four bodies at once never take two steps in the same turn."""
    turns, steps = Turns(), []
    work = LargeBody.work

    def counted(body: LargeBody) -> None:
        steps.append(turns.count)
        work(body)

    monkeypatch.setattr(large_bodies, "PIECE_BYTES", 8100)
    monkeypatch.setattr(LargeBody, "work", counted)

    async def main() -> None:
        bodies = Bodies(Settings(max_body_bytes=CAP, client_timeout_s=10), Precedence())
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(bodies.take, sent(LARGE).receive, {})

    trio.run(main, instruments=[turns])
    assert len(steps) > 20
    assert len(set(steps)) == len(steps)

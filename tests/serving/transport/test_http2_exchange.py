"""One request of HTTP/2: its head is checked, its body comes in parts, and its client may leave."""

from __future__ import annotations

import pytest
import trio

from svc.errors import HeadersTooLarge, MalformedRequest
from svc.serving.transport.http1 import MAX_HEADERS
from svc.serving.transport.http2_exchange import Exchange, head_of
from svc.serving.transport.messages import ClientGone

PSEUDO = [(b":method", b"POST"), (b":path", b"/v1/a"), (b":scheme", b"http"), (b":authority", b"shop")]


def exchange(taken: list[int], headers: list[tuple[bytes, bytes]] | None = None) -> Exchange:
    async def take(size: int) -> None:
        taken.append(size)

    return Exchange(head_of([*PSEUDO, *(headers or [])]), "client", take)


def test_the_authority_is_the_host() -> None:
    """Other fields stay as they came."""
    head = head_of([*PSEUDO, (b"x-a", b"1")])
    assert (head.method, head.target) == ("POST", b"/v1/a")
    assert list(head.headers) == [(b"host", b"shop"), (b"x-a", b"1")]


def test_connect_has_the_authority_as_its_target() -> None:
    """It has no path."""
    assert head_of([(b":method", b"CONNECT"), (b":authority", b"shop:80")]).target == b"shop:80"


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ([*PSEUDO, (b"host", b"other")], MalformedRequest),
        ([(b":method", b"G\xff"), (b":path", b"/")], MalformedRequest),
        ([(b":method", b"GET"), (b":path", b"/\xff")], MalformedRequest),
        ([*PSEUDO, *[(b"x-a", b"1")] * MAX_HEADERS], HeadersTooLarge),
    ],
)
def test_a_head_that_http1_would_refuse_is_refused(fields: list[tuple[bytes, bytes]], error: type[Exception]) -> None:
    """Two hosts, bytes that no method or path has, too many headers."""
    with pytest.raises(error):
        head_of(fields)


@pytest.mark.anyio
async def test_the_body_comes_in_parts_and_taken_bytes_are_reported() -> None:
    """Padding counts for flow control although it is no part of the body."""
    taken: list[int] = []
    request = exchange(taken)
    request.feed(b"ab", 2)
    request.feed(b"", 5)
    request.feed(b"cd", 10)
    assert await request.receive() == b"abcd"
    assert taken == [17]
    request.end()
    assert await request.receive() == b""


@pytest.mark.anyio
async def test_a_waiting_application_learns_of_what_comes_and_of_a_client_that_leaves() -> None:
    """Padding alone is taken but is no part that the application gets."""
    taken: list[int] = []
    request = exchange(taken)

    async def client() -> None:
        await trio.sleep(1)
        request.feed(b"", 3)
        await trio.sleep(1)
        request.feed(b"a", 1)
        await trio.sleep(1)
        request.leave()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(client)
        assert await request.receive() == b"a"
        assert taken == [3, 1]
        assert not request.is_gone
        with pytest.raises(ClientGone):
            await request.receive()
        await request.until_gone()
    assert request.is_gone


@pytest.mark.anyio
async def test_the_timeout_is_a_header() -> None:
    """None where the client gave none."""
    assert exchange([]).timeout() is None
    assert exchange([], [(b"x-request-timeout-ms", b"50")]).timeout() == b"50"

"""The HTTP/1.1 parser without sockets, which is never more lenient than h11, and the form of answers.

`SVC_TEST_MESSAGES` sets how many mutated messages are compared.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from svc.errors import AmbiguousLength, ApiError, HeadersTooLarge, MalformedRequest, TargetTooLong
from svc.serving.transport.http1 import MAX_HEAD_BYTES, MAX_HEADERS, Heads, RequestReader, encode_head, parse_head
from svc.serving.transport.messages import Head, Response
from tests.serving.messages import CHUNKED, REFUSED, Taken, by_h11, compared, mutated

MESSAGES = int(os.environ.get("SVC_TEST_MESSAGES", "3000"))


HEADS = Heads()
"""A cache of parsed heads, as in a server."""


def by_ours(message: bytes, step: int = 0) -> Iterator[Taken | None]:
    """Return the requests in a message, with None for a refused or incomplete one."""
    reader = RequestReader(HEADS.parse)
    parts = [message[at : at + step] for at in range(0, len(message), step)] if step else [message]
    coming = iter(parts)

    def fed() -> bool:
        part = next(coming, b"")
        reader.feed(part)
        return bool(part)

    try:
        while True:
            while (head := reader.head()) is None:
                if not fed():
                    yield None
                    return
            body = b""
            while not reader.body_ended:
                if (part := reader.part()) is None and not fed():
                    yield None
                    return
                body += part or b""
            headers = [*head.headers, *([head.credential] if head.credential else [])]
            yield Taken(head.method, head.target, compared(headers), body, head.keeps_alive)
            if not head.keeps_alive:
                return
    except ApiError:
        yield None


@pytest.mark.timeout(1800)
def test_no_request_is_accepted_that_h11_refuses() -> None:
    """An accepted request equals that of h11: method, target, headers, body, and whether the connection ends."""
    pick = random.Random(11)
    both = 0
    for _ in range(MESSAGES):
        message = mutated(pick)
        for ours, theirs in zip(by_ours(message), by_h11(message), strict=False):
            if ours is None:
                break
            assert theirs is not None, f"h11 refuses {message!r}"
            assert ours[:4] == theirs[:4], message
            assert not ours.keeps_alive or theirs.keeps_alive, message
            both += 1
    assert both > MESSAGES / 5


def test_the_requests_do_not_depend_on_the_division_of_bytes() -> None:
    """Requests are the same byte by byte and in small parts."""
    pick = random.Random(12)
    for _ in range(MESSAGES // 10):
        message = mutated(pick)
        whole = list(by_ours(message))
        for step in (1, 7):
            assert list(by_ours(message, step)) == whole, message


@pytest.mark.parametrize("message", REFUSED.values(), ids=REFUSED.keys())
def test_malformed_messages_are_refused_at_once(message: bytes) -> None:
    """The answer to the first invalid byte is 400, for any division of the bytes."""
    for step in (1, len(message)):
        reader = RequestReader()
        with pytest.raises(ApiError) as caught:
            for at in range(0, len(message), step):
                reader.feed(message[at : at + step])
                while (reader.head() is not None) if reader.body_ended else reader.part():
                    pass
        assert caught.value.http_status == 400


def test_two_lengths_have_their_own_error_code() -> None:
    """A proxy in front may have used the other length."""
    for name in ("both lengths", "both lengths, turned"):
        reader = RequestReader()
        reader.feed(REFUSED[name])
        with pytest.raises(AmbiguousLength):
            reader.head()


def head(message: bytes) -> Head:
    reader = RequestReader()
    reader.feed(message)
    found = reader.head()
    assert found is not None
    return found


@pytest.mark.parametrize("method", ["get", "Post", "G-T", "PROPFIND", "M-SEARCH", "BREW", "CONNECT", "QUERY"])
def test_any_token_is_a_method(method: str) -> None:
    """The case of a method stays. The application refuses unknown methods."""
    assert head(b"%b / HTTP/1.1\r\nHost: a\r\n\r\n" % method.encode()).method == method


@pytest.mark.parametrize("target", [b"/", b"//a/../b", b"http://h/a", b"*", b"http://u@h", b"/a#b", b"/%zz"])
def test_targets_are_not_changed(target: bytes) -> None:
    """The application decodes targets."""
    assert head(b"OPTIONS %b HTTP/1.1\r\nHost: a\r\n\r\n" % target).target == target


def test_only_keys_keep_blanks_at_their_end() -> None:
    """A blank at the end of X-API-Key is part of the key. Blanks before a value, and after any other, are not."""
    reader = RequestReader()
    reader.feed(b"GET / HTTP/1.1\r\nHost: a\t \r\nX-API-Key:  k \r\nX-Request-Timeout-Ms: 9 \t\r\nEmpty: \r\n\r\n")
    assert reader.timeout() == b"9"
    found = reader.head()
    assert found is not None
    assert found.headers == [(b"host", b"a"), (b"x-api-key", b"k "), (b"x-request-timeout-ms", b"9"), (b"empty", b"")]


@pytest.mark.parametrize(
    ("rest", "alive"),
    [
        (b"1.1\r\nHost: a\r\n", True),
        (b"1.1\r\nHost: a\r\nConnection: x, CLOSE\r\n", False),
        (b"1.1\r\nHost: a\r\nConnection: x\r\nConnection: close\r\n", False),
        (b"1.0\r\n", False),
        (b"1.0\r\nConnection: keep-alive\r\n", False),
    ],
)
def test_a_connection_stays_open_unless_either_side_asks_to_close_it(rest: bytes, alive: bool) -> None:
    """HTTP/1.0 needs no Host. Its connections always end, because `keep-alive` was never standardized there."""
    assert head(b"GET / HTTP/" + rest + b"\r\n").keeps_alive is alive


def test_bodies_have_a_length_or_chunks() -> None:
    """GET may have a body, too. Extensions and trailers of chunks are dropped."""
    reader = RequestReader()
    reader.feed(b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhel")
    assert reader.head() is not None
    assert (reader.part(), reader.part(), reader.body_ended) == (b"hel", None, False)
    reader.feed(b"lo" + CHUNKED + b'5;a;b=c;d="e f"\r\nhello\r\n6\r\n world\r\n0\r\nX: y\r\n\r\nGET')
    assert (reader.part(), reader.part(), reader.body_ended) == (b"lo", b"", True)
    assert reader.head() is not None
    assert (reader.part(), reader.part(), reader.body_ended) == (b"hello world", b"", True)
    assert reader.waiting == 3


def test_many_small_chunks_are_taken_in_several_parts() -> None:
    """Each part has a bounded size, so that taking it is quick."""
    reader = RequestReader()
    reader.feed(CHUNKED + b"1\r\nx\r\n" * 5000 + b"0\r\n\r\n")
    assert reader.head() is not None
    parts = []
    while part := reader.part():
        parts.append(part)
    assert b"".join(parts) == b"x" * 5000
    assert max(map(len, parts)) < 1000


@pytest.mark.parametrize("step", [1000, 1 << 20])
def test_long_targets_and_heads_have_their_own_statuses(step: int) -> None:
    """A first line of 64 KiB is 414. A head of that size or with more than a hundred headers is 431."""
    long = b"x" * MAX_HEAD_BYTES
    many = b"".join(b"X-%d: y\r\n" % place for place in range(MAX_HEADERS + 1))
    for message, error in (
        (b"GET /" + long + b" HTTP/1.1\r\nHost: a\r\n\r\n", TargetTooLong),
        (b"GET /" + long, TargetTooLong),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + long + b"\r\n\r\n", HeadersTooLarge),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + long, HeadersTooLarge),
        (b"GET / HTTP/1.1\r\n" + many + b"Host: a\r\n\r\n", HeadersTooLarge),
    ):
        reader = RequestReader()
        with pytest.raises(error):
            for at in range(0, len(message), step):
                reader.feed(message[at : at + step])
                reader.head()


def test_a_hundred_headers_and_64_kib_are_accepted_and_no_more() -> None:
    many = b"".join(b"X-%d: y\r\n" % place for place in range(MAX_HEADERS - 1))
    assert len(head(b"GET / HTTP/1.1\r\nHost: a\r\n" + many + b"\r\n").headers) == MAX_HEADERS
    start, end = b"GET / HTTP/1.1\r\nHost: a\r\nX: ", b"\r\n\r\n"
    longest = b"x" * (MAX_HEAD_BYTES - len(start + end))
    assert head(start + longest + end).headers[-1] == (b"x", longest)
    with pytest.raises(HeadersTooLarge):
        head(start + longest + b"x" + end)


def test_a_head_that_arrives_byte_by_byte_is_searched_once() -> None:
    """With each new byte, only the last three bytes before it are searched again."""
    reader = RequestReader()
    assert reader.waiting == 0
    for count, byte in enumerate(b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 1000, start=1):
        reader.feed(bytes([byte]))
        assert reader.waiting == count
        assert reader.head() is None
        assert reader._searched == max(count - 3, 0)


def test_an_answer_without_content_has_no_length() -> None:
    """RFC 9110, 8.6 forbids Content-Length in such answers."""
    assert b"content-length" not in encode_head(Response(204), closing=False)


def test_an_answer_has_content_length_and_connection_close() -> None:
    """The headers that every answer has come before its own headers."""
    response = Response(404, b"{}", [(b"x-request-id", b"r1")])
    lines = encode_head(response, closing=True).split(b"\r\n")
    assert lines[:4] == [
        b"HTTP/1.1 404 Not Found",
        b"content-type: application/json",
        b"content-length: 2",
        b"x-request-id: r1",
    ]
    assert lines[4].startswith(b"date: ")
    assert lines[5:] == [b"connection: close", b"", b""]
    assert b"connection" not in encode_head(response, closing=False)
    with pytest.raises(MalformedRequest):
        head(b"GET / HTTP/1.1\r\nHost: a\r\nX: \x01\r\n\r\n")


@pytest.mark.parametrize("name", [b"X-API-Key", b"authorization", b"AUTHORIZATION"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_heads_that_differ_only_in_their_key_are_parsed_once(name: bytes, place: int) -> None:
    """The parsed heads in the cache contain no key. A head that is printed shows no key and no notes."""
    heads = Heads()
    for key in (b"one", b"two ", b"", b"\xff"):
        lines = [b"Host: a", b"Accept: */*"]
        lines.insert(place, name + b": " + key)
        raw = b"\r\n".join([b"GET / HTTP/1.1", *lines, b"", b""])
        found, parsed = heads.parse(raw), parse_head(raw)
        assert found.credential == (name.lower(), key)
        assert sorted([*found.headers, found.credential]) == sorted(parsed.headers)
        assert "credential" not in repr(found) and "notes" not in repr(found)
        found.notes["asked"] = found.notes.get("asked", 0) + 1
    assert heads.parse(raw).notes == {"asked": 4}
    assert heads._kept.cache_info().misses == 1


@pytest.mark.parametrize("lines", [b"X-API-Key: a\r\nX-API-Key: b\r\n", b"X-API-Key: a\r\nAuthorization: Bearer b\r\n"])
def test_a_head_with_several_keys_keeps_them_among_its_headers(lines: bytes) -> None:
    head = Heads().parse(b"GET / HTTP/1.1\r\nHost: a\r\n" + lines + b"\r\n")
    assert head.credential is None
    assert len(head.headers) == 3


@pytest.mark.parametrize(
    "line", [b"X-API-Key : a\r\n", b"X-API-Key: a\r\n b\r\n", b"X-API-Key: a\0b\r\n", b"X-API-Key: a\rb\r\n"]
)
def test_a_header_with_a_key_is_checked_like_any_other(line: bytes) -> None:
    with pytest.raises(MalformedRequest):
        Heads().parse(b"GET / HTTP/1.1\r\nHost: a\r\n" + line + b"\r\n")


def test_a_key_counts_as_one_of_the_headers() -> None:
    def with_others(count: int) -> bytes:
        return b"GET / HTTP/1.1\r\nHost: a\r\nX-API-Key: k\r\n" + b"a:\r\n" * count + b"\r\n"

    assert len(Heads().parse(with_others(MAX_HEADERS - 2)).headers) == MAX_HEADERS - 1
    with pytest.raises(HeadersTooLarge):
        Heads().parse(with_others(MAX_HEADERS - 1))

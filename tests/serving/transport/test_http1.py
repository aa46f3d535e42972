"""HTTP/1.1 without sockets: never more lenient than h11, named cases, and what answers look like.

`SVC_TEST_MESSAGES` sets how many mutated messages are compared.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import NamedTuple

import h11
import pytest

from svc.errors import AmbiguousLength, ApiError, HeadersTooLarge, MalformedRequest, TargetTooLong
from svc.serving.transport.http1 import MAX_HEAD_BYTES, MAX_HEADERS, Heads, RequestReader, encode_head, parse_head
from svc.serving.transport.messages import Head, Response

MESSAGES = int(os.environ.get("SVC_TEST_MESSAGES", "3000"))
POST = b"POST /v1/x HTTP/1.1\r\nHost: a\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


class Taken(NamedTuple):
    """One request as it was understood. Blanks around values are not compared, nor the case of codings."""

    method: str
    target: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    keeps_alive: bool


def compared(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """By name, those of one name in their order."""
    found = [(bytes(name), bytes(value).strip(b" \t")) for name, value in headers]
    found = [(name, value.lower() if name == b"transfer-encoding" else value) for name, value in found]
    return sorted(found, key=lambda header: header[0])


HEADS = Heads()
"""As in a server, heads that came before are not parsed again."""


def by_ours(message: bytes, step: int = 0) -> Iterator[Taken | None]:
    """The requests in a message, and None for what is refused or not whole."""
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


def by_h11(message: bytes) -> Iterator[Taken | None]:
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    connection.receive_data(message)
    try:
        while True:
            request = connection.next_event()
            if not isinstance(request, h11.Request):
                yield None
                return
            body = b""
            while not isinstance(event := connection.next_event(), h11.EndOfMessage):
                if not isinstance(event, h11.Data):
                    yield None
                    return
                body += event.data
            connection.send(h11.Response(status_code=404, headers=[("content-length", "0")]))
            connection.send(h11.EndOfMessage())
            alive = connection.our_state is h11.DONE
            yield Taken(request.method.decode(), request.target, compared(list(request.headers)), body, alive)
            if not alive:
                return
            connection.start_next_cycle()
    except h11.RemoteProtocolError:
        yield None


SEEDS = (
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /v1/recipes?q=a%20b HTTP/1.1\r\nHost: a:80\r\nX-API-Key: k \r\nConnection: keep-alive\r\n\r\n",
    b"GET http://h/x HTTP/1.1\r\nHost: h\r\nAccept: */*\r\nCookie:\r\n\r\n" * 2,
    b"HEAD / HTTP/1.0\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\nGET / HTTP/1.1\r\n\r\n",
    POST + b"Content-Length: 5\r\n\r\nhello" + b"GET / HTTP/1.1\r\nHost: b\r\n\r\n",
    POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
    CHUNKED + b"5\r\nhello\r\n0\r\n\r\n" + b"GET / HTTP/1.1\r\nHost: b\r\n\r\n",
    CHUNKED + b"A;x=1\r\n0123456789\r\n001\r\n!\r\n0\r\nTrailer: yes\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n",
)
PIECES = (
    *(
        b"\r",
        b"\n",
        b"\r\n",
        b"\r\n\r\n",
        b" ",
        b"\t",
        b"  ",
        b"\x00",
        b"\x0b",
        b"\x0c",
        b"\x7f",
        b"\xff",
        b"\x85",
        b":",
    ),
    *(b";", b",", b"0", b"1", b"-", b"+", b"x", b"\r\n ", b" HTTP/1.1", b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"%"),
    *(b"Content-Length: 5\r\n", b"content-length: 6\r\n", b"Content-Length: 5, 5\r\n", b"Content-Length: +5\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n", b"transfer-encoding:\tChunked\r\n"),
    *(
        b"Transfer-Encoding : chunked\r\n",
        b"Host: b\r\n",
        b"host:\r\n",
        b"Connection: close\r\n",
        b"Connection: x,\r\n",
    ),
    *(
        b"0000000000000000000000",
        b"fffffffffffffffff",
        b"Expect: 100-continue\r\n",
        b" folded\r\n",
        b"0\r\n\r\n",
        b";a=b",
    ),
)


def mutated(pick: random.Random) -> bytes:
    message = bytearray(pick.choice(SEEDS))
    for _ in range(pick.choice((1, 1, 1, 2, 2, 3, 5))):
        place = pick.randrange(len(message) + 1)
        match pick.randrange(6):
            case 0:
                message[place:place] = pick.choice(PIECES)
            case 1:
                del message[place : place + pick.choice((1, 1, 2, 5))]
            case 2:
                message[place : place + 1] = bytes([pick.randrange(256)])
            case 3:
                end = message.find(b"\r\n", place)
                message[end + 2 : end + 2] = pick.choice(PIECES)
            case 4:
                start = message.rfind(b"\r\n", 0, place) + 2
                end = message.find(b"\r\n", place) + 2
                message[end:end] = message[start:end]
            case _:
                message[place:] = pick.choice(SEEDS)[pick.randrange(20) :]
    return bytes(message)


@pytest.mark.timeout(1800)
def test_nothing_is_taken_that_h11_refuses() -> None:
    """What both take means the same: method, target, headers, body, and whether the connection goes on."""
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


def test_it_does_not_matter_how_bytes_are_divided() -> None:
    """Byte by byte, or in small parts, the same requests come out, or none."""
    pick = random.Random(12)
    for _ in range(MESSAGES // 10):
        message = mutated(pick)
        whole = list(by_ours(message))
        for step in (1, 7):
            assert list(by_ours(message, step)) == whole, message


REFUSED = {
    "both lengths": POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "both lengths, turned": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    "two different lengths": POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    "the same length twice": POST + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "a list of lengths": POST + b"Content-Length: 5, 5\r\n\r\nhello",
    "a signed length": POST + b"Content-Length: +5\r\n\r\nhello",
    "an empty length": POST + b"Content-Length:\r\n\r\n",
    "a length of many digits": POST + b"Content-Length: 99999999999999999999\r\n\r\n",
    "chunked not last": POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n",
    "gzip and chunked": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked twice": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "an unknown coding": POST + b"Transfer-Encoding: identity\r\n\r\n",
    "no chunk size": CHUNKED + b"\r\nhello\r\n0\r\n\r\n",
    "a chunk size that is no number": CHUNKED + b"zz\r\n",
    "a signed chunk size": CHUNKED + b"+5\r\nhello\r\n0\r\n\r\n",
    "a chunk size as in C": CHUNKED + b"0x5\r\nhello\r\n0\r\n\r\n",
    "a blank before a chunk size": CHUNKED + b" 5\r\nhello\r\n0\r\n\r\n",
    "more than 20 digits of a chunk size": CHUNKED + b"0" * 20 + b"5\r\nhello\r\n0\r\n\r\n",
    "a chunk size beyond 64 bits": CHUNKED + b"f" * 17 + b"\r\nhello",
    "a chunk longer than its size": CHUNKED + b"4\r\nhello\r\n0\r\n\r\n",
    "a chunk extension with a control": CHUNKED + b"5;a=\x00\r\nhello\r\n0\r\n\r\n",
    "an endless chunk extension": CHUNKED + b"5;" + b"a" * 5000,
    "a bare LF behind a chunk size": CHUNKED + b"5\nhello\r\n0\r\n\r\n",
    "a trailer that is no header": CHUNKED + b"0\r\nnothing\r\n\r\n",
    "a length as trailer": CHUNKED + b"0\r\nContent-Length: 5\r\n\r\n",
    "a bare LF": b"GET / HTTP/1.1\nHost: a\n\n",
    "one bare LF": b"GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
    "a bare CR": b"GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n",
    "a folded header": b"GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n c\r\n\r\n",
    "a blank before the colon": b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
    "a header without a name": b"GET / HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n",
    "a header without a colon": b"GET / HTTP/1.1\r\nHost: a\r\nnothing\r\n\r\n",
    "NUL in a value": b"GET / HTTP/1.1\r\nHost: a\r\nX: \x00\r\n\r\n",
    "NUL in the target": b"GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n",
    "letters beyond ASCII in the target": b"GET /\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/0.9 with its name": b"GET / HTTP/0.9\r\n\r\n",
    "HTTP/2.0 by name": b"GET / HTTP/2.0\r\nHost: a\r\n\r\n",
    "HTTP/9.9": b"GET / HTTP/9.9\r\nHost: a\r\n\r\n",
    "RTSP": b"OPTIONS rtsp://a/b RTSP/1.0\r\nHost: a\r\n\r\n",
    "an empty line before the request": b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "several blanks in the line": b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
    "a blank at the end of the line": b"GET / HTTP/1.1 \r\nHost: a\r\n\r\n",
    "a tab in the line": b"GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a target without a slash": b"GET ?a=b HTTP/1.1\r\nHost: a\r\n\r\n",
    "an authority as target": b"GET h:80 HTTP/1.1\r\nHost: a\r\n\r\n",
    "no method": b"(GET) / HTTP/1.1\r\nHost: a\r\n\r\n",
}


@pytest.mark.parametrize("message", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_well_formed_is_refused_at_once(message: bytes) -> None:
    """With 400, as soon as it shows, however it comes."""
    for step in (1, len(message)):
        reader = RequestReader()
        with pytest.raises(ApiError) as caught:
            for at in range(0, len(message), step):
                reader.feed(message[at : at + step])
                while (reader.head() is not None) if reader.body_ended else reader.part():
                    pass
        assert caught.value.http_status == 400


def test_two_ways_to_tell_a_length_have_their_own_code() -> None:
    """A proxy in front may have believed the other one."""
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
    """Its letters stay as they are: which methods there are is the application's to say."""
    assert head(b"%b / HTTP/1.1\r\nHost: a\r\n\r\n" % method.encode()).method == method


@pytest.mark.parametrize("target", [b"/", b"//a/../b", b"http://h/a", b"*", b"http://u@h", b"/a#b", b"/%zz"])
def test_targets_come_as_they_were_sent(target: bytes) -> None:
    """In every form: what a path is, is the application's to say."""
    assert head(b"OPTIONS %b HTTP/1.1\r\nHost: a\r\n\r\n" % target).target == target


def test_values_keep_the_blanks_behind_them() -> None:
    """A blank at the end of X-API-Key is part of the key; one before it is not."""
    found = head(b"GET / HTTP/1.1\r\nHost: \r\nX-API-Key:  k \r\nEmpty:\r\n\r\n")
    assert found.headers == [(b"host", b""), (b"x-api-key", b"k "), (b"empty", b"")]


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
def test_a_connection_goes_on_unless_somebody_says_otherwise(rest: bytes, alive: bool) -> None:
    """HTTP/1.0 needs no Host, and its connections end: `keep-alive` was never standardized there."""
    assert head(b"GET / HTTP/" + rest + b"\r\n").keeps_alive is alive


def test_bodies_have_their_length_or_their_chunks() -> None:
    """Also on GET; chunks may have extensions and trailers, which are not kept."""
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
    """So that no part of a body takes long."""
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
    """414 for a first line of 64 KiB, 431 for a head of as much or of more than a hundred headers."""
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


def test_a_hundred_headers_are_taken() -> None:
    """And no more."""
    many = b"".join(b"X-%d: y\r\n" % place for place in range(MAX_HEADERS - 1))
    assert len(head(b"GET / HTTP/1.1\r\nHost: a\r\n" + many + b"\r\n").headers) == MAX_HEADERS


def test_a_dripping_head_is_not_searched_again_and_again() -> None:
    """Byte by byte, 60 KiB take a fraction of a second."""
    reader = RequestReader()
    for byte in b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 60_000:
        reader.feed(bytes([byte]))
        assert reader.head() is None


def test_an_answer_without_content_has_no_length() -> None:
    """RFC 9110, 8.6."""
    assert b"content-length" not in encode_head(Response(204), closing=False)


def test_only_the_first_bytes_of_a_connection_lead_to_http2() -> None:
    """Behind a request of HTTP/1.1 the preface is a request that is not well formed."""
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    reader = RequestReader()
    reader.feed(preface)
    assert reader.take_http2() == preface
    reader = RequestReader()
    reader.feed(SEEDS[0])
    assert reader.head() is not None
    reader.feed(preface)
    assert not reader.take_http2()
    with pytest.raises(MalformedRequest):
        reader.head()


def test_an_answer_says_its_length_and_whether_the_connection_ends() -> None:
    """In this order: what every answer has first."""
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
def test_heads_that_differ_in_their_key_share_all_but_the_key(name: bytes, place: int) -> None:
    """Who sends the same head again is known without parsing it, and no key is kept."""
    heads = Heads()
    for key in (b"one", b"two ", b"", b"\xff"):
        lines = [b"Host: a", b"Accept: */*"]
        lines.insert(place, name + b": " + key)
        raw = b"\r\n".join([b"GET / HTTP/1.1", *lines, b"", b""])
        found, parsed = heads.parse(raw), parse_head(raw)
        assert found.credential == (name.lower(), key)
        assert sorted([*found.headers, found.credential]) == sorted(parsed.headers)
        found.notes["asked"] = found.notes.get("asked", 0) + 1
    assert heads.parse(raw).notes == {"asked": 4}
    assert heads._kept.cache_info().misses == 1


@pytest.mark.parametrize(
    "lines",
    [
        b"X-API-Key: a\r\nX-API-Key: b\r\n",
        b"X-API-Key: a\r\nAuthorization: Bearer b\r\n",
    ],
)
def test_of_several_keys_none_is_apart(lines: bytes) -> None:
    head = Heads().parse(b"GET / HTTP/1.1\r\nHost: a\r\n" + lines + b"\r\n")
    assert head.credential is None
    assert len(head.headers) == 3


@pytest.mark.parametrize(
    "line", [b"X-API-Key : a\r\n", b"X-API-Key: a\r\n b\r\n", b"X-API-Key: a\0b\r\n", b"X-API-Key: a\rb\r\n"]
)
def test_a_line_with_a_key_is_as_strict_as_any(line: bytes) -> None:
    with pytest.raises(MalformedRequest):
        Heads().parse(b"GET / HTTP/1.1\r\nHost: a\r\n" + line + b"\r\n")


def test_a_key_counts_among_the_headers() -> None:
    def with_others(count: int) -> bytes:
        return b"GET / HTTP/1.1\r\nHost: a\r\nX-API-Key: k\r\n" + b"a:\r\n" * count + b"\r\n"

    assert len(Heads().parse(with_others(MAX_HEADERS - 2)).headers) == MAX_HEADERS - 1
    with pytest.raises(HeadersTooLarge):
        Heads().parse(with_others(MAX_HEADERS - 1))

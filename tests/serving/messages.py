"""HTTP/1.1 messages for comparing the server with h11: well formed, mutated and refused ones."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

import h11

POST = b"POST /v1/x HTTP/1.1\r\nHost: a\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


class Taken(NamedTuple):
    """A request as a parser read it, without blanks around values and with codings in lower case."""

    method: str
    target: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    keeps_alive: bool


def compared(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return headers by name, the values of one name in their order."""
    found = [(bytes(name), bytes(value).strip(b" \t")) for name, value in headers]
    found = [(name, value.lower() if name == b"transfer-encoding" else value) for name, value in found]
    return sorted(found, key=lambda header: header[0])


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
    *(b"\r", b"\n", b"\r\n", b"\r\n\r\n", b" ", b"\t", b"  ", b"\x00", b"\x0b", b"\x0c", b"\x7f", b"\xff", b"\x85"),
    *(b":", b";", b",", b"0", b"1", b"-", b"+", b"x", b"\r\n ", b" HTTP/1.1", b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0"),
    *(b"%", b"Content-Length: 5\r\n", b"content-length: 6\r\n", b"Content-Length: 5, 5\r\n", b"Content-Length: +5\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n", b"transfer-encoding:\tChunked\r\n"),
    *(b"Transfer-Encoding : chunked\r\n", b"Host: b\r\n", b"host:\r\n", b"Connection: close\r\n"),
    *(b"Connection: x,\r\n", b"0000000000000000000000", b"fffffffffffffffff", b"Expect: 100-continue\r\n"),
    *(b" folded\r\n", b"0\r\n\r\n", b";a=b"),
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

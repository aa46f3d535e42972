"""HTTP/1.1 without sockets: a parser of received requests and an encoder of responses.

httptools, the Python binding of llhttp, parses the head of a request. Checks before and after llhttp refuse all
requests that h11 refuses (compared in `tests/serving/transport/test_http1.py`). After a malformed request, the reader
of that connection refuses everything that follows.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import TypeVar

import httptools

from svc.errors import AmbiguousLength, ApiError, HeadersTooLarge, MalformedRequest, TargetTooLong
from svc.serving.transport.messages import Head, Response

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 100
MAX_LINE_BYTES = 4096
"""Longest line within a chunked body: the line with the size and extensions of a chunk, or a trailer."""
WHOLE_BYTES = 64 * 1024
"""Longest body that `whole_body` returns."""
CHUNKS_AT_ONCE = 32
"""Maximum number of chunks that are parsed in one turn of the event loop.

Without this bound, a flood of one-byte chunks would make the turn long."""
KEPT_HEADS, KEPT_BYTES = 256, 1024
"""Maximum number of heads in the cache, and length in bytes of the longest head that is cached."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
T = TypeVar("T")

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_request_line = re.compile(rb"(%b) ([!-~]+) HTTP/1\.([01])\r\n" % _TOKEN)
_token = re.compile(_TOKEN)
_bare_newline = re.compile(rb"(?<!\r)\n")
_QUOTED = rb'"(?:[\t !#-\[\]-~\x80-\xff]|\\[\t -~\x80-\xff])*"'
_chunk = re.compile(
    rb"(?=[0-9A-Fa-f]{1,20}(?:;|\Z))0*([0-9A-Fa-f]{1,16})(?:;%b(?:=(?:%b|%b))?)*" % (_TOKEN, _TOKEN, _QUOTED)
)
"""The line before a chunk (RFC 9112, 7.1).

h11 refuses two forms that the RFC permits, and so does this expression: blanks before an extension, and sizes of more
than 20 digits."""
_trailer = re.compile(rb"(?!(?i:content-length|transfer-encoding):)%b:[\t -~\x80-\xff]*" % _TOKEN)
_KEY_HEADERS = (b"x-api-key", b"authorization")
# A folded value does not match. llhttp sees it then, and refuses it.
_credential = re.compile(rb"\r\n((?i:x-api-key|authorization)):[\t ]*+([\t -~\x80-\xff]*+)(?=\r\n[^\t ])")
_length = re.compile(rb"[0-9]{1,19}")
_timeout = re.compile(rb"\r\n(?i:x-request-timeout-ms):[\t ]{0,8}([^\r\n]{0,32})(?=\r\n)")


class Heads:
    """A parser of heads with a cache, because most clients send the same head with every request.

    API keys are never cached. The header with the key is cut out before the cache is asked, so clients that differ only
    in their key share one cached head.
    """

    def __init__(self) -> None:
        # The cache gives 4 to 11% more answers a second (1 to 64 connections).
        self._kept = lru_cache(maxsize=KEPT_HEADS)(parse_head)

    def parse(self, raw: bytes) -> Head:
        """Return the parsed head, from the cache if possible. Raises an ApiError if the head is invalid.

        A header that may have an API key (X-API-Key or Authorization) is in `credential` of the result if it is the
        only one and the head has at most KEPT_BYTES. Otherwise all such headers are in `headers`.
        """
        if len(raw) > KEPT_BYTES:
            return parse_head(raw)
        first = _credential.search(raw)
        if first is None:
            return self._kept(raw)
        if _credential.search(raw, first.end()):
            return parse_head(raw)
        shared = self._kept(raw[: first.start()] + raw[first.end() :])
        if len(shared.headers) == MAX_HEADERS:  # the header that was cut out is one too many
            raise HeadersTooLarge
        return replace(shared, credential=(first[1].lower(), first[2]))


class RequestReader:
    """An incremental parser of the requests of one connection.

    The caller passes received bytes to `feed`. For each request the caller takes the head from `head`, and then the
    body from `whole_body`, or from `part` until it returns empty bytes. After an ApiError all further bytes are
    dropped, and these methods raise an ApiError again.
    """

    def __init__(self, parse: Callable[[bytes], Head] | None = None) -> None:
        self._parse = parse or parse_head
        # `_at` is the end of the bytes that were taken. Cutting them off would copy the pipelined rest each time.
        self._data, self._at = b"", 0
        # Bytes that were searched for the end of the head. A head that drips in byte by byte is searched only once.
        self._searched = 0
        self._parts: Iterator[bytes | None] = iter(())
        self._length: int | None = 0
        self._broken = False
        self.body_ended = True

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        if self._broken:
            return
        self._data, self._at = (self._data[self._at :] + data if self._data else data), 0

    @property
    def waiting(self) -> int:
        """Number of received bytes that neither a head nor a body has taken yet."""
        return len(self._data) - self._at

    def starts_with(self, beginnings: tuple[bytes, ...]) -> bool:
        """Return True if the next request begins with one of these byte strings."""
        return self._data.startswith(beginnings, self._at)

    def method_and_target(self) -> tuple[bytes, bytes]:
        """Return method and target of the next request, but do not parse its head.

        Both are empty unless the first line, cut after MAX_LINE_BYTES, has three parts.
        """
        line = self._data[self._at : self._at + MAX_LINE_BYTES].partition(b"\r\n")[0]
        parts = line.split(b" ")
        return (parts[0], parts[1]) if len(parts) == 3 else (b"", b"")

    def timeout(self) -> bytes | None:
        """Return the value of X-Request-Timeout-Ms in the next request, but do not parse its head.

        Returns the last of several values, without blanks. Returns None if there is no value of at most 32 bytes, or if
        the head is incomplete.
        """
        matches = _timeout.findall(self._data, self._at, self._data.find(b"\r\n\r\n", self._at) + 2)
        return matches[-1].rstrip() if matches else None

    def head(self) -> Head | None:
        """Return the next head, or None while it is incomplete. Raises an ApiError if it is invalid."""
        return self._unless_broken(self._head)

    def part(self) -> bytes | None:
        """Return the next bytes of the body, None if more bytes must arrive first, or empty bytes after the last.

        Raises an ApiError if the body is malformed.
        """
        return self._unless_broken(self._part)

    def whole_body(self) -> bytes | None:
        """Return the whole body of the current request, or None if it must be read by `part`.

        The result is None if the body is chunked, longer than WHOLE_BYTES, or not completely received.
        """
        return self._unless_broken(self._whole_body)

    def _unless_broken(self, read: Callable[[], T]) -> T:
        """Return the result of `read`. Raises an ApiError if `read` fails or an earlier read failed.

        After an error the reader cannot know where the next request begins. Guessing would permit request smuggling.
        """
        if self._broken:
            raise MalformedRequest("an earlier message on this connection is not valid")
        try:
            return read()
        except ApiError:
            self._broken, self._data, self._at, self._parts = True, b"", 0, iter(())
            self.body_ended = False
            raise

    def _head(self) -> Head | None:
        end = self._data.find(b"\r\n\r\n", self._at + self._searched) - self._at
        if end < 0 or end > MAX_HEAD_BYTES:
            self._refuse_early()
            self._searched = max(self.waiting - 3, 0)  # the last 3 bytes may begin the CR LF CR LF that ends the head
            self._data, self._at = self._data[self._at :], 0  # frees the bytes of earlier requests
            return None
        self._searched = 0
        head = self._parse(self._take(end + 4))
        self._parts = self._in_chunks() if head.length is None else self._of_length(head.length)
        self._length = head.length
        self.body_ended = head.length == 0
        return head

    def _part(self) -> bytes | None:
        pieces: list[bytes] = []
        for part in self._parts:
            if part is None or len(pieces) >= CHUNKS_AT_ONCE:
                return b"".join(pieces) + (part or b"") if pieces else None
            pieces.append(part)
        self.body_ended = True
        return b"".join(pieces)

    def _whole_body(self) -> bytes | None:
        if self.body_ended:
            return b""
        if self._length is None or self._length > min(self.waiting, WHOLE_BYTES):
            return None
        self.body_ended = True
        return self._take(self._length)

    def _refuse_early(self) -> None:
        """Raise an ApiError if the received part of a head shows that the head is invalid or too long."""
        if self._data and not _token.match(self._data, self._at):
            raise MalformedRequest("the request does not begin with a method")
        if _bare_newline.search(self._data, self._at + self._searched):
            raise MalformedRequest("a line of the head does not end in CR and LF")
        if self.waiting > MAX_HEAD_BYTES:
            in_line = self._data.find(b"\r\n", self._at, self._at + MAX_HEAD_BYTES) < 0
            raise TargetTooLong if in_line else HeadersTooLarge

    def _take(self, most: int) -> bytes:
        taken = self._data[self._at : self._at + most]
        self._at += len(taken)
        if self._at == len(self._data):
            self._data, self._at = b"", 0  # frees the bytes that were read
        return taken

    def _of_length(self, missing: int) -> Iterator[bytes | None]:
        """Yield the next `missing` bytes in parts. Yields None if more bytes must arrive first."""
        while missing:
            part = self._take(missing)
            missing -= len(part)
            yield part or None

    def _in_chunks(self) -> Iterator[bytes | None]:
        """Yield the content of the chunks, then check and discard the trailers (RFC 9112, 7.1).

        Yields None if more bytes must arrive first.
        """
        while True:
            line = yield from self._line()
            size = _chunk.fullmatch(line)
            if size is None:
                raise MalformedRequest("the size of a chunk is not valid")
            n_bytes = int(size[1], 16)
            if not n_bytes:
                break
            yield from self._of_length(n_bytes)
            if (yield from self._line()):
                raise MalformedRequest("a chunk is longer than its size")
        for _ in range(MAX_HEADERS):
            trailer = yield from self._line()
            if not trailer:
                return
            if not _trailer.fullmatch(trailer):
                break
        raise MalformedRequest("the trailers of the body are not valid")

    def _line(self) -> Generator[None, None, bytes]:
        """Return the next line without its end. Yields None until the line is complete."""
        while (end := self._data.find(b"\r\n", self._at, self._at + MAX_LINE_BYTES)) < 0:
            if self.waiting >= MAX_LINE_BYTES or _bare_newline.search(self._data, self._at):
                raise MalformedRequest("a line within the body is not valid")
            yield None
        line = self._take(end - self._at + 2)
        return line[:-2]


class _Collected:
    """A receiver of httptools' callbacks, which collects the headers of one head."""

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self.headers.append((name, value if name in _KEY_HEADERS else value.rstrip()))


def parse_head(raw: bytes) -> Head:
    """Parse a complete head, which ends with an empty line. Raises an ApiError if the head is invalid.

    Blanks at the end of a value are dropped (RFC 9110, 5.5), but not at the end of an API key, which they make invalid.
    """
    line = _request_line.match(raw)
    if line is None:
        raise MalformedRequest("the first line is not a request of HTTP/1.1")
    if len(raw) > MAX_HEAD_BYTES:
        raise TargetTooLong if line.end() > MAX_HEAD_BYTES else HeadersTooLarge
    if raw.count(b"\r\n") - 2 > MAX_HEADERS:  # counted before llhttp parses, because parsing takes much longer
        raise HeadersTooLarge
    headers = _parse_headers(raw, line)
    method, target, is_1_1 = line[1].decode(), line[2], line[3] == b"1"
    named: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        named.setdefault(name, []).append(value)
    hosts = len(named.get(b"host", ()))
    if hosts > 1 or (is_1_1 and not hosts):
        raise MalformedRequest("a request must have one Host header")
    closes = any(option.strip().lower() == b"close" for option in b",".join(named.get(b"connection", ())).split(b","))
    return Head(
        method,
        target,
        headers,
        _body_length(named),
        # Bytes behind CONNECT may be meant for a tunnel, so they must not be read as requests.
        keeps_alive=is_1_1 and not closes and method != "CONNECT",
        takes_interim=is_1_1,
        expects_continue=is_1_1 and named.get(b"expect", [b""])[-1].lower() == b"100-continue",
    )


def _parse_headers(raw: bytes, line: re.Match[bytes]) -> list[tuple[bytes, bytes]]:
    collected = _Collected()
    try:
        httptools.HttpRequestParser(collected).feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass  # a server may ignore a request to upgrade (RFC 9110, 7.8)
    except httptools.HttpParserInvalidMethodError:
        # llhttp refuses unknown methods, but the application answers them with 405. So the headers are parsed as those
        # of a GET.
        return _parse_headers(b"GET / HTTP/1.1\r\n" + raw[line.end() :], line)
    except httptools.HttpParserError as error:
        lower = raw.lower()
        if b"\ncontent-length" in lower and b"\ntransfer-encoding" in lower:
            raise AmbiguousLength from None
        raise MalformedRequest(f"the head of the request is not valid: {error}") from None
    return collected.headers


def _body_length(named: dict[bytes, list[bytes]]) -> int | None:
    """Return the length of the body in bytes, or None if the body is chunked.

    `named` has the values of the headers by name in lower case. Raises an ApiError if they give no clear length.
    """
    codings = named.get(b"transfer-encoding")
    if codings:
        if b"content-length" in named:
            # A proxy in front may trust Content-Length and split the bytes into other requests (request smuggling).
            raise AmbiguousLength
        if len(codings) > 1 or codings[0].lower() != b"chunked":
            raise MalformedRequest("the only Transfer-Encoding that this server knows is chunked")
        return None
    length = named.get(b"content-length", [b"0"])[-1]
    if not _length.fullmatch(length):
        raise MalformedRequest("Content-Length is not a number")
    return int(length)


def encode_head(response: Response, *, closing: bool) -> bytes:
    """Return the status line and headers of an answer. With `closing` they announce the end of the connection."""
    length = b"" if response.status == HTTPStatus.NO_CONTENT else b"content-length: %d\r\n" % response.size
    return b"%bcontent-type: %b\r\n%b%bdate: %b\r\n%b\r\n" % (
        _status_line(response.status),
        response.content_type,
        length,
        b"".join([b"%b: %b\r\n" % header for header in response.headers]),
        http_date(int(time.time())),
        b"connection: close\r\n" if closing else b"",
    )


@lru_cache(maxsize=64)
def _status_line(status: int) -> bytes:
    return b"HTTP/1.1 %d %b\r\n" % (status, HTTPStatus(status).phrase.encode())


@lru_cache(maxsize=1)  # all answers of one second have the same date
def http_date(second: int) -> bytes:
    """Return the value of a Date header for a Unix time in seconds."""
    return formatdate(second, usegmt=True).encode()

"""Bytes behind a broken message are never answered, over sockets and with the whole application.

`SVC_TEST_MESSAGES` sets how many mutated messages are compared with h11.
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import chain, cycle, product, zip_longest
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from svc.errors import ApiError
from svc.metrics import Metrics
from svc.serving.api import authentication
from svc.serving.api.application import Application
from svc.serving.api.authentication import hash_api_key, new_api_key, parse_api_keys
from svc.serving.api.endpoint import Endpoint
from svc.serving.api.endpoints import ENDPOINTS, PAGES, VERBS
from svc.serving.transport.http1 import RequestReader
from svc.serving.transport.messages import Incoming, Response
from svc.settings import Settings
from tests.serving.client import serving
from tests.serving.messages import REFUSED, Taken, by_h11, compared, mutated
from tests.serving.sockets import everything, exchange, listening

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(900)]

MESSAGES = int(os.environ.get("SVC_TEST_MESSAGES", "600"))
AT_ONCE = 16
KEY = new_api_key()
MARK = b"\r\nx-request-id: marked\r\n"
BEHIND = b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: marked\r\n\r\n"
QUESTION = b'{"user_id":"u3","limit":2}'
WITH_QUESTION = {
    "a broken size behind a question": b"1a\r\n%b\r\nzz\r\n" % QUESTION,
    "a question longer than its chunk": b"19\r\n%b\r\n0\r\n\r\n" % QUESTION,
    "a broken trailer behind a question": b"1a\r\n%b\r\n0\r\nnothing\r\n\r\n" % QUESTION,
    "a bare LF behind a question": b"1a\r\n%b\r\n0\n\n" % QUESTION,
}
API = [*(row for row in ENDPOINTS if row not in PAGES), PAGES[0]]
"""Endpoints of the API, and one of the pages, which are all served alike."""
REFUSED_TARGETS = (b"%b#x", b"%b%%zz", b"%b%%ff", b"http://localhost:1@evil%b", b"http://a..b%b", b"x%b", b"*")
"""Well-formed targets that the application refuses. `%b` stands for a path."""
REFUSED_HOSTS = (b"a..b", b"localhost:80@evil", b"[::1].evil", b"x" * 300)
VALID_FRAMING = {
    "leading zeros": b"0000000001a\r\n%b\r\n00\r\n\r\n" % QUESTION,
    "a thousand leading zeros": b"0" * 1000 + b"1a\r\n%b\r\n0\r\n\r\n" % QUESTION,
    "a blank before the extension": b"1a ;a=b\r\n%b\r\n0\r\n\r\n" % QUESTION,
    "blanks around the extension": b"1a\t; a = b\r\n%b\r\n0\r\n\r\n" % QUESTION,
    "a quoted pair": b'1a;a="\\"\\\\;\\\t"\r\n%b\r\n0;x="\\ "\r\n\r\n' % QUESTION,
    "letters beyond ASCII in quotes": b'1a;a="\xc3\xa9"\r\n%b\r\n0\r\n\r\n' % QUESTION,
    "a trailer": b"1a\r\n%b\r\n0\r\nX-Sum: 1\r\n\r\n" % QUESTION,
}


@pytest.fixture
def anyio_backend() -> str:
    """Use the clock of the machine, because virtual time would jump ahead while a thread compares a key."""
    return "trio"


class Noted:
    """A request as the application got it, with the part of its body that was read."""

    def __init__(self, incoming: Incoming) -> None:
        self._incoming = incoming
        self.body = incoming.whole_body or b""
        self.is_whole = incoming.whole_body is not None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._incoming, name)

    async def receive(self) -> bytes:
        part = await self._incoming.receive()
        self.body += part
        self.is_whole = not part
        return part

    @property
    def taken(self) -> Taken:
        head = self._incoming.head
        headers = [*head.headers, *([head.credential] if head.credential else [])]
        return Taken(head.method, head.target, compared(headers), self.body, head.keeps_alive)


class Recording:
    """An application that records requests and passes them on to another one."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self.seen: list[Noted] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._application, name)

    async def __call__(self, incoming: Incoming) -> Response | None:
        noted = Noted(incoming)
        self.seen.append(noted)
        return await self._application(noted)  # type: ignore[arg-type]

    def refuse(self, error: ApiError, client: str) -> Response:
        return self._application.refuse(error, client)


@asynccontextmanager
async def opened(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Recording, int]]:
    """Serve an application that needs keys, and yield its port."""
    monkeypatch.setattr(authentication, "REFUSALS_PER_S", 1e6)
    keys = parse_api_keys(f"k:{hash_api_key(KEY)}")
    async with serving(Settings(), keys, Metrics.create()) as (client, _):
        application = Recording(client.app)
        async with listening(application) as port:  # type: ignore[arg-type]
            yield application, port


def addressed(message: bytes, endpoint: Endpoint, key: str | None) -> bytes:
    """Return the message for this endpoint and key."""
    path = endpoint.path.replace("{name}", "movies").encode()
    line = b"%b %b HTTP/1.1\r\n" % (endpoint.method.encode(), path)
    for before in (b"POST /v1/x HTTP/1.1\r\n", b"GET / HTTP/1.1\r\n"):
        message = message.replace(before, line)
    header = b"" if key is None else b"X-API-Key: %b\r\n" % key.encode()
    return message.replace(b"Host: a\r\n", b"Host: localhost\r\n" + header)


def chunked(body: bytes) -> bytes:
    return b"POST /v1/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + body


async def in_parts(port: int, parts: list[bytes]) -> bytes:
    """Return the answer to a message that the server reads in these parts."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        with suppress(trio.BrokenResourceError):
            for part in parts:
                await stream.send_all(part)
                await wait_all_tasks_blocked()
        return await everything(stream)


def broken_messages() -> Iterator[tuple[str, bytes]]:
    """Generate named broken messages, each with the marked request behind it."""
    rows, bodies = cycle(API), product((chunked(body) for body in WITH_QUESTION.values()), API, (KEY, None))
    # The parser refuses these before it reads a key, so each gets two endpoints, one of them with a key.
    refused = ((message, next(rows), key) for message in REFUSED.values() for key in (KEY, None))
    for message, endpoint, key in chain(bodies, refused):
        yield f"{message!r}, {endpoint.name}, {key}", addressed(message, endpoint, key) + BEHIND


def refused_heads() -> Iterator[tuple[str, bytes]]:
    """Generate requests whose target or host the application refuses, with the marked request behind each."""
    for endpoint in API[::4]:
        path = endpoint.path.replace("{name}", "movies").encode()
        targets = [target.replace(b"%b", path).replace(b"%%", b"%") for target in REFUSED_TARGETS]
        heads = [(target, b"localhost") for target in targets] + [(path, host) for host in REFUSED_HOSTS]
        for target, host in heads:
            head = b"%b %b HTTP/1.1\r\nHost: %b\r\nX-API-Key: %b\r\n"
            message = head % (endpoint.method.encode(), target, host, KEY.encode())
            yield f"{target!r}, {host!r}", message + b"\r\n" + BEHIND
            yield f"{target!r}, {host!r}, body", message + b"Content-Length: 2\r\n\r\n{}" + BEHIND


def is_ended(answer: bytes) -> bool:
    """Return True if the last answer is complete and ends the connection, and no answer has the mark."""
    last = answer.rpartition(b"HTTP/1.1 ")[2]
    return MARK not in answer and b"\r\nconnection: close\r\n" in last


async def test_a_broken_message_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser or the application refuses the message, at every endpoint, with and without a key."""
    wrong: list[str] = []
    messages = chain(broken_messages(), refused_heads())

    async def client() -> None:
        for name, message in messages:
            answer = await exchange(port, message)
            if not is_ended(answer):
                wrong.append(f"{name}: {answer!r}")

    async with opened(monkeypatch) as (_, port), trio.open_nursery() as nursery:
        for _ in range(AT_ONCE):
            nursery.start_soon(client)
    assert not wrong, f"{len(wrong)}: {wrong[0]}"


def divided(pick: random.Random, message: bytes, step: int | None) -> list[bytes]:
    """Divide the message into parts of `step` bytes, or into two parts."""
    if step is None:
        place = pick.randrange(1, len(message))
        return [message[:place], message[place:]]
    return [message[at : at + step] for at in range(0, len(message), step)]


@pytest.mark.parametrize(("step", "share"), [(None, 2), (1, 10)], ids=["in two parts", "byte by byte"])
async def test_a_divided_broken_message_ends_its_connection(
    step: int | None, share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection ends wherever the message is cut."""
    pick = random.Random(30)
    messages = [pair for pair in broken_messages() if len(pair[1]) < 1000 and not pick.randrange(share)]
    async with opened(monkeypatch) as (_, port):
        for name, message in messages:
            answer = await in_parts(port, divided(pick, message, step))
            assert is_ended(answer), f"{name}: {answer!r}"


async def test_valid_chunks_are_accepted_and_others_end_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Valid is defined by RFC 9112. After a valid body, the next request is answered."""
    behind = BEHIND.replace(b"Host:", b"Connection: close\r\nHost:")
    accepted: set[str] = set()
    async with opened(monkeypatch) as (application, port):
        for verb, (name, body) in product(VERBS, VALID_FRAMING.items()):
            application.seen.clear()
            answer = await exchange(port, addressed(chunked(body), verb, KEY) + behind)
            if len(application.seen) > 1:
                accepted.add(name)
                assert application.seen[0].body == QUESTION
                assert MARK in answer
            else:
                assert is_ended(answer), name
    assert accepted == {"leading zeros", "a quoted pair", "letters beyond ASCII in quotes", "a trailer"}


def difference(message: bytes, seen: list[Noted], answer: bytes) -> str:
    """Return requests that were answered although h11 refuses them or reads them differently."""
    answers = [one for one in answer.split(b"HTTP/1.1 ")[1:] if not one.startswith(b"100 ")]
    if len(answers) > len(seen) + 1:
        return "there are more answers than requests"
    for place, (ours, theirs) in enumerate(zip_longest(seen, by_h11(message))):
        if ours is None:
            break
        if theirs is None:
            is_last = place + 1 == len(seen) and len(answers) <= len(seen)
            is_closed = place >= len(answers) or b"\r\nconnection: close\r\n" in answers[-1]
            return "" if is_last and is_closed else "h11 refuses what did not end the connection"
        if ours.taken[:3] != theirs[:3] or (ours.is_whole and ours.body != theirs.body):
            return f"{ours.taken} is not {theirs}"
    return ""


async def test_connections_answer_no_request_that_h11_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server and h11 also divide the bytes into the same requests."""
    pick = random.Random(112)
    several = 0
    async with opened(monkeypatch) as (application, port):
        for _ in range(MESSAGES):
            message = addressed(mutated(pick), pick.choice((*ENDPOINTS, *VERBS * 8)), pick.choice((KEY, KEY, None)))
            message += pick.choice((b"", BEHIND))
            application.seen.clear()
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                with suppress(trio.BrokenResourceError):
                    await stream.send_all(message)
                    await stream.send_eof()
                answer = await everything(stream)
            found = difference(message, application.seen, answer)
            assert not found, f"{found}: {message!r} -> {answer!r}"
            several += len(application.seen) > 1
    assert several > MESSAGES / 50


def test_a_reader_raises_again_after_an_error() -> None:
    """Every later call raises an error, and the reader keeps no bytes."""
    for name, message in REFUSED.items():
        reader = RequestReader()
        reader.feed(message + BEHIND)
        with pytest.raises(ApiError):
            while (reader.head() is not None) if reader.body_ended else reader.part():
                pass
        for ask in (reader.head, reader.part, reader.whole_body):
            reader.feed(BEHIND)
            with pytest.raises(ApiError):
                ask()
        assert not reader.body_ended, name
        assert reader.waiting == 0, name

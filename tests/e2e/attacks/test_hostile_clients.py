"""Malformed, idle and greedy clients of a real server lose their connection and do not disturb others."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.e2e.server import Server, make_home, until
from tests.serving.artifacts import popularity_model

PATIENCE_S = 20
ENV = {"SVC_KEEP_ALIVE_SECONDS": "2", "SVC_MAX_BODY_BYTES": "64MiB"}
HEAD = b"POST /v1/recipes/shop:recommend HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CONNECTION_BYTES = 32 << 10
GOOD = b'{"user_id":"u1"}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    recipes = make_home(tmp_path_factory.mktemp("hostile"), "shop", popularity_model(n_items=2000))
    with Server(recipes, env=ENV, fresh=True) as running:
        yield running


def connect(server: Server) -> socket.socket:
    address = urlsplit(server.url)
    client = socket.create_connection((address.hostname, address.port))
    client.settimeout(PATIENCE_S)
    return client


def read_to_end(client: socket.socket) -> bytes:
    """Return all bytes until the server closes the connection."""
    found = b""
    try:
        while part := client.recv(1 << 16):
            found += part
    except ConnectionResetError:
        pass
    return found


def assert_healthy(server: Server) -> None:
    """Check that a request over a new connection gets 200. An idle connection might be closing at that moment."""
    answer = httpx.post(
        f"{server.url}/v1/recipes/shop:recommend", json={"user_id": "u1"}, verify=False, timeout=PATIENCE_S
    )
    assert answer.status_code == 200


UPGRADE = b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: "
WEBSOCKET = UPGRADE + b"websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
BROKEN: list[tuple[bytes, bytes, set[int]]] = [
    # two packets, and the statuses of an answer, which may also be missing
    (HEAD + b"Content-Length: 16\r\nContent-Length: 17\r\n\r\n", GOOD, {400}),
    (HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", b"0\r\n\r\n", {400}),
    (HEAD + b"Transfer-Encoding: gzip, chunked\r\n", b"\r\n", {400, 501}),
    (HEAD + b"X-Big: ", b"x" * 100_000 + b"\r\n\r\n", {400, 431}),
    (HEAD, b"", {400, 408}),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"", {400}),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", bytes(900), {400, 505}),
    (UPGRADE + b"h2c\r\nHTTP2-Settings: AAM\r\n", b"\r\n", {200}),
    (UPGRADE + b"h2c\r\n\r\n", bytes(100), {200}),
    (WEBSOCKET + b"Content-Length: 5\r\n\r\n", b"hello", {200}),
    (WEBSOCKET + b"\r\n", b"\xff" * 100, {200}),
]


def test_malformed_packets_end_only_their_own_connection(server: Server) -> None:
    """Conflicting lengths, endless heads, TLS, HTTP/2, h2c and WebSocket packets get a status or nothing.

    Requests for an upgrade are answered like plain ones (RFC 9110, 7.8). A client with half a request is answered.
    """
    with contextlib.ExitStack() as stack:
        bystander = stack.enter_context(connect(server))
        bystander.sendall(HEAD + b"Content-Length: 16\r\n\r\n")
        clients = [stack.enter_context(connect(server)) for _ in BROKEN]
        for place in (0, 1):
            for client, packets in zip(clients, BROKEN, strict=True):
                with contextlib.suppress(OSError):  # the server may have closed the connection already
                    client.sendall(packets[place])
            assert_healthy(server)
        bystander.sendall(GOOD)
        assert bystander.recv(65536).startswith(b"HTTP/1.1 200")
        for client, (first, _, statuses) in zip(clients, BROKEN, strict=True):
            answer = read_to_end(client)
            assert int(answer.split()[1]) in statuses if answer else statuses != {200}, (first, answer)
    assert server.process.poll() is None


def test_many_connections_at_once_leave_room_for_others(server: Server) -> None:
    """Idle connections cost little memory, are closed in time, and leave no open file.

    Other clients are served meanwhile. SVC_TEST_CONNECTIONS is the number of connections.
    """
    count = int(os.environ.get("SVC_TEST_CONNECTIONS", "1000"))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    before = server.resident_bytes()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(server)) for _ in range(count)]
        assert_healthy(server)
        assert server.resident_bytes() - before < count * CONNECTION_BYTES + (4 << 20)
        for client in clients:
            assert read_to_end(client) == b""
    files = Path(f"/proc/{server.process.pid}/fd")
    until(lambda: len(list(files.iterdir())) < 100)
    assert_healthy(server)


def test_eight_large_bodies_at_once_have_bounded_memory(server: Server) -> None:
    """Eight large invalid bodies at once, long texts and long lists, get 422, and others are served meanwhile.

    The peak of memory stays below the size of the bodies, because none is kept whole. SVC_TEST_BODY_MIB is the size of
    one.
    """
    size = int(os.environ.get("SVC_TEST_BODY_MIB", "16")) << 20
    status = Path(f"/proc/{server.process.pid}/status")
    Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")  # resets VmHWM
    before = server.resident_bytes()
    text = b'{"user_id":"' + b"x" * (size - 14) + b'"}'
    names = b'{"user_id":"u1","exclude_items":["' + (b"x" * 200 + b'","') * (size // 203 - 1) + b'"]}'
    answers: list[bytes] = []

    def send(body: bytes) -> None:
        with connect(server) as client:
            client.sendall(HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            answers.append(read_to_end(client))

    threads = [threading.Thread(target=send, args=(body,)) for body in 4 * (text, names)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert_healthy(server)
    assert [answer[:12] for answer in answers] == [b"HTTP/1.1 422"] * 8
    peak = int(status.read_text().split("VmHWM:")[1].split()[0]) * 1024
    print(f"{(peak - before) >> 20} MiB")  # noqa: T201 - `-rP` shows it
    assert peak - before < 8 * size

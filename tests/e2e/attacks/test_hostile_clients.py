"""Slow, greedy and malformed clients lose their connection and do not disturb others."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.e2e.server import Server, make_home, until
from tests.serving.artifacts import popularity_model

PATIENCE_S = 20
ENV = {"SVC_KEEP_ALIVE_SECONDS": "2", "SVC_CLIENT_TIMEOUT_SECONDS": "2", "SVC_MAX_BODY_BYTES": "64MiB"}
HEAD = b"POST /v1/recipes/shop:recommend HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CONNECTION_BYTES = 32 << 10
GOOD = b'{"user_id":"u1"}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    recipes = make_home(tmp_path_factory.mktemp("hostile"), "shop", popularity_model(n_items=2000))
    with Server(recipes, env=ENV, fresh=True) as running:
        yield running


@pytest.fixture(scope="module")
def patient_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run a server that waits 60 s for slow clients, longer than any test takes on a busy machine."""
    recipes = make_home(tmp_path_factory.mktemp("patient"), "shop", popularity_model(n_items=2000))
    with Server(recipes, env={**ENV, "SVC_CLIENT_TIMEOUT_SECONDS": "60"}) as running:
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


@pytest.mark.parametrize("start", [b"", b"POST /v1/rec", HEAD], ids=["nothing", "half a line", "half a header"])
def test_a_header_that_never_ends_is_cut_off(server: Server, start: bytes) -> None:
    """A connection whose header never ends is closed after SVC_KEEP_ALIVE_SECONDS."""
    with connect(server) as client:
        client.sendall(start)
        begun = time.monotonic()
        stop = threading.Event()

        def trickle() -> None:
            while start and not stop.wait(0.2):
                try:
                    client.send(b"x")
                except OSError:
                    return

        thread = threading.Thread(target=trickle)
        thread.start()
        read_to_end(client)
        stop.set()
        thread.join()
        assert time.monotonic() - begun < PATIENCE_S / 2
    assert_healthy(server)


def test_a_body_that_never_ends_is_answered_408(server: Server) -> None:
    """A request whose body is incomplete after SVC_CLIENT_TIMEOUT_SECONDS gets 408, and its connection is closed."""
    with connect(server) as client:
        client.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
        answer = read_to_end(client)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"REQUEST_TIMEOUT" in answer
    assert_healthy(server)


def test_a_client_that_does_not_read_loses_its_connection(server: Server) -> None:
    """A client that does not read a large answer loses its connection, and others are answered meanwhile."""
    body = json.dumps({"requests": [{"user_id": "u1", "limit": 1000}] * 256}).encode()
    request = HEAD.replace(b":recommend", b":batch-recommend") + b"Content-Length: %d\r\n\r\n" % len(body) + body
    address = urlsplit(server.url)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((address.hostname, address.port))
        client.sendall(request)
        deadline = time.monotonic() + 2 * PATIENCE_S
        while is_connected(client):
            assert time.monotonic() < deadline
            time.sleep(0.2)
            assert_healthy(server)


def is_connected(client: socket.socket) -> bool:
    """Return whether the server's side of the connection exists. The kernel drops it without telling the client."""
    ours = f":{client.getsockname()[1]:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(row[2].endswith(ours) and row[3] != "06" for row in rows)


def test_a_client_that_sends_too_large_a_body_can_read_the_413(server: Server) -> None:
    """A client that sends a whole body above the limit can read the 413, with a length and in chunks."""
    size = (64 << 20) + 1
    with connect(server) as client:
        client.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % size)
        client.sendall(bytes(size))
        by_length = read_to_end(client)
    with connect(server) as client:
        client.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(65):
            client.sendall(b"100000\r\n" + bytes(1 << 20) + b"\r\n")
        client.sendall(b"0\r\n\r\n")
        by_count = read_to_end(client)
    for answer in (by_length, by_count):
        assert answer.startswith(b"HTTP/1.1 413")
        assert b"PAYLOAD_TOO_LARGE" in answer
    assert_healthy(server)


def test_a_large_body_costs_at_most_twice_its_size(server: Server) -> None:
    """A body just below the limit raises the peak memory by less than twice its size."""
    size = 60 << 20
    status = Path(f"/proc/{server.process.pid}/status")

    def kib(name: str) -> int:
        return int(status.read_text().split(f"{name}:")[1].split()[0])

    Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")  # resets VmHWM
    before = kib("VmRSS")
    body = b'{"user_id":"' + b"x" * (size - 14) + b'"}'
    assert server.client.post("/v1/recipes/shop:recommend", content=body).status_code == 422
    assert (kib("VmHWM") - before) * 1024 < 2 * size
    assert_healthy(server)


@pytest.mark.parametrize(
    ("request_bytes", "statuses"),
    [
        (HEAD + b"Content-Length: 16\r\nContent-Length: 17\r\n\r\n" + GOOD, {400}),
        (HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", {400}),
        (HEAD + b"Content-Length: -1\r\n\r\n", {400}),
        (HEAD + b"Content-Length: 1e3\r\n\r\n", {400}),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", {400}),
        (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n", {400, 501}),
        (HEAD + b"X-Big: " + b"x" * 100_000 + b"\r\n\r\n", {400, 431}),
        (b"GET / HTTP/9.9\r\n\r\n", {400, 505}),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", {400}),
    ],
    ids=[
        "two lengths",
        "length and chunks",
        "negative",
        "float",
        "bad chunk",
        "gzip chunked",
        "huge header",
        "version",
        "tls",
    ],
)
def test_malformed_requests_are_refused(server: Server, request_bytes: bytes, statuses: set[int]) -> None:
    """Malformed framing gets a 4xx or 5xx status or a closed connection, and never a guessed interpretation."""
    with connect(server) as client:
        client.sendall(request_bytes)
        answer = read_to_end(client)
    assert not answer or int(answer.split()[1]) in statuses
    assert_healthy(server)


def test_pipelined_requests_are_answered_in_order(server: Server) -> None:
    """Pipelined requests get their answers in order, each with its own request id."""
    requests = b"".join(
        HEAD
        + b"X-Request-ID: r%d\r\nContent-Length: 16\r\n%b\r\n" % (i, b"Connection: close\r\n" if i == 19 else b"")
        + GOOD
        for i in range(20)
    )
    with connect(server) as client:
        client.sendall(requests)
        answer = read_to_end(client)
    found = [part.split(b'"')[1] for part in answer.split(b'{"request_id":')[1:]]
    assert found == [b"r%d" % i for i in range(20)]


def test_chunked_bodies_are_read(server: Server) -> None:
    """A body in chunks of one byte is read like any other."""
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in GOOD)
    with connect(server) as client:
        client.sendall(HEAD + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
        assert read_to_end(client).startswith(b"HTTP/1.1 200")


UPGRADE = b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: "
WEBSOCKET = UPGRADE + b"websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"


@pytest.mark.parametrize(
    "packets",
    [
        [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", bytes(9) * 100],
        [UPGRADE + b"h2c\r\nHTTP2-Settings: AAM\r\n\r\n"],
        [UPGRADE + b"h2c\r\n\r\n", b"\x00" * 100],
        [WEBSOCKET + b"Content-Length: 5\r\n\r\nhello"],
        [WEBSOCKET + b"\r\n", b"\xff" * 100],
    ],
    ids=[
        "HTTP/2",
        "settings of h2c",
        "noise as HTTP/2",
        "a body with a handshake",
        "noise as WebSocket",
    ],
)
def test_no_malformed_packet_ends_the_server(patient_server: Server, packets: list[bytes]) -> None:
    """Malformed HTTP/2, h2c and WebSocket packets end only their own connection."""
    with connect(patient_server) as bystander, connect(patient_server) as client:
        bystander.sendall(HEAD + b"Content-Length: 16\r\n\r\n")
        for packet in packets:
            with contextlib.suppress(OSError):  # the server may have closed the connection already
                client.sendall(packet)
            assert_healthy(patient_server)
        bystander.sendall(GOOD)
        assert bystander.recv(65536).startswith(b"HTTP/1.1 200")
        read_to_end(client)
    assert patient_server.process.poll() is None


@pytest.mark.parametrize("rest", [b"\r\n", b"Content-Length: 5\r\n\r\nhello"], ids=["no body", "a body"])
def test_a_request_to_upgrade_is_answered_as_a_plain_one(server: Server, rest: bytes) -> None:
    """A WebSocket handshake is answered like a plain request (RFC 9110, 7.8), and its idle connection is closed."""
    with connect(server) as client:
        client.sendall(WEBSOCKET + rest)
        answer = read_to_end(client)
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.count(b"HTTP/1.1") == 1
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
    """Eight large invalid bodies at once get 422, and others are served meanwhile.

    The peak of memory stays below three times the size of the bodies. SVC_TEST_BODY_MIB is the size of one.
    """
    size = int(os.environ.get("SVC_TEST_BODY_MIB", "16")) << 20
    status = Path(f"/proc/{server.process.pid}/status")
    Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")  # resets VmHWM
    before = server.resident_bytes()
    body = b'{"user_id":"u1","exclude_items":["' + (b"x" * 200 + b'","') * (size // 203 - 1) + b'"]}'
    answers: list[bytes] = []

    def send() -> None:
        with connect(server) as client:
            client.sendall(HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            answers.append(read_to_end(client))

    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert_healthy(server)
    assert [answer[:12] for answer in answers] == [b"HTTP/1.1 422"] * 8
    peak = int(status.read_text().split("VmHWM:")[1].split()[0]) * 1024
    assert peak - before < 3 * 8 * size + (64 << 20)

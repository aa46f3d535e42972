"""Distinct recipe names, keys and client addresses do not make the memory of the server grow."""

from __future__ import annotations

import http.client
import json
import secrets
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from svc.serving.api.authentication import hash_api_key, new_api_key
from tests.e2e.server import Server

pytestmark = pytest.mark.timeout(900)  # a test takes a minute, and many times that on a busy machine

DISTINCT, KEYS = 2_500, 5_000
WELL_FORMED = 250
ALLOWED_BYTES = 420
"""Allowed growth for each name, client or key. Measured for 2,500 names: up to 230 KiB."""


def _names(server: Server, count: int) -> Iterator[int]:
    with closing(http.client.HTTPConnection(urlsplit(server.url).netloc)) as connection:
        for _ in range(count):
            name = secrets.token_hex(16)
            connection.request("POST", f"/v1/recipes/{name}:recommend", json.dumps({"user_id": name}))
            answer = connection.getresponse()
            answer.read()
            yield answer.status


def _keys(server: Server, count: int) -> None:
    """Send requests with distinct wrong keys and close each connection at once, because refusals are slow on purpose.

    Every twentieth key is well-formed, so the server has to hash it.
    """
    address = urlsplit(server.url)
    for number in range(count):
        key = new_api_key() if number % (KEYS // WELL_FORMED) == 0 else secrets.token_hex(40)
        with socket.create_connection((address.hostname, address.port)) as client:
            client.sendall(f"GET /v1/recipes HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {key}\r\n\r\n".encode())
        if number % 50 == 0:
            server.client.get("/v1/health/live")  # lets the server catch up with the pending connections


def _growth(server: Server) -> int:
    """Return by how many bytes the memory of the server grows with KEYS further wrong keys."""
    before = server.resident_bytes()
    _keys(server, KEYS)
    return server.resident_bytes() - before


def _refused(server: Server, count: int) -> set[int]:
    """Send `count` requests with wrong keys one after the other and return the set of their statuses."""
    return {
        server.client.get("/v1/recipes", headers={"X-API-Key": new_api_key()}, timeout=60).status_code
        for _ in range(count)
    }


def _clients(server: Server, count: int) -> Iterator[int]:
    """Send each request from a different loopback address and yield its status."""
    address = urlsplit(server.url)
    for number in range(count):
        source = f"127.{number // 250 % 250 + 1}.{number % 250 + 1}.9"
        with socket.create_connection((address.hostname, address.port), source_address=(source, 0)) as client:
            client.sendall(b"GET /v1/recipes HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = b""
            while part := client.recv(65536):
                answer += part
        yield int(answer.split()[1])


def test_unknown_names_and_clients_leave_memory_flat(home: Path) -> None:
    """Unknown recipe names and new client addresses do not raise the memory of a server without keys.

    The test sends 2,500 of each after 1,000 to warm up. The metrics do not grow either.
    """
    with Server(home, env={"SVC_LOG_LEVEL": "info"}, fresh=True) as server:
        for visit, status in ((_names, 404), (_clients, 200)):
            assert set(visit(server, 1000)) == {status}
            before = server.resident_bytes()
            assert set(visit(server, DISTINCT)) == {status}
            assert server.resident_bytes() - before < DISTINCT * ALLOWED_BYTES
        assert len(server.client.get("/v1/metrics").text) < 50_000


def test_wrong_keys_leave_memory_flat(home: Path) -> None:
    """5,000 distinct wrong keys, some of them well-formed, do not raise the memory of the server."""
    keys = f"test:{hash_api_key(new_api_key())}"
    with Server(home, env={"SVC_API_KEYS": keys}, fresh=True) as server:
        _keys(server, 2 * KEYS)
        # The heap grows in steps of up to 4 MB, about once in 40,000 keys. A leak would show in each round.
        assert any(_growth(server) < KEYS * ALLOWED_BYTES for _ in range(2))
        assert _refused(server, 100) == {401}

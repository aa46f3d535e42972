"""SIGTERM and SIGINT to a real server: which requests are answered, and how the process ends."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.e2e.load import Load, only_200
from tests.e2e.server import Server, write_recipe
from tests.e2e.tables import missing_tests
from tests.serving.artifacts import popularity_model, write_artifact

# step of the specification's shutdown | test, without its `test_`
TABLE = """
no new connections                | a_drain_answers_requests_in_flight_and_closes_idle_connections
new clients at the signal         | new_clients_are_answered_or_refused_and_never_wait
watcher stopped, stats discarded  | a_hung_store_does_not_delay_the_drain
in-flight requests finish         | a_drain_answers_requests_in_flight_and_closes_idle_connections
in-flight requests, any moment    | a_drain_under_load_answers_every_accepted_request
the window ends, the rest closes  | a_drain_ends_after_svc_drain_seconds
a client that reads nothing       | a_client_that_does_not_read_does_not_prolong_the_drain
serve_shutdown, exit code 0       | a_drain_answers_requests_in_flight_and_closes_idle_connections
second signal                     | a_second_signal_ends_the_process_at_once
signal before the first answer    | a_signal_during_the_start_ends_the_process
"""
RETRANSMISSION_S = 1.0
"""Seconds after which the kernel repeats the first packet of a connection that got no answer."""
BODY = json.dumps({"user_id": "u3", "limit": 1}).encode()


def test_every_step_names_a_test_that_exists() -> None:
    """Each row of the table names a test of this file."""
    assert not missing_tests(TABLE, globals())


@contextmanager
def connection(server: Server) -> Iterator[socket.socket]:
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=30) as client:
        yield client


def begin(client: socket.socket) -> None:
    """Send a request up to the fifth byte of its body."""
    head = [
        "POST /v1/recipes/a:recommend HTTP/1.1",
        "host: localhost",
        "content-type: application/json",
        f"content-length: {len(BODY)}",
    ]
    client.sendall("\r\n".join([*head, "", ""]).encode() + BODY[:5])


def read_all(client: socket.socket) -> bytes:
    """Return all bytes until the server closes the connection."""
    received = b""
    while part := client.recv(65536):
        received += part
    return received


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_drain_answers_requests_in_flight_and_closes_idle_connections(home: Path, number: signal.Signals) -> None:
    """A drain answers a half-sent request, closes idle connections at once, and ends with exit code 0.

    It refuses new connections.
    """
    with Server(home) as server, connection(server) as busy, connection(server) as idle:
        server.get("/v1/health")  # leaves a keep-alive connection of another client idle
        begin(busy)
        server.get("/v1/health")  # the server has now read the half-sent request
        server.send(number)
        assert server.wait_for("serve_draining")["signal"] == number.name
        assert read_all(idle) == b""
        with pytest.raises(OSError), connection(server):
            pass
        busy.sendall(BODY[5:])
        answer = read_all(busy)
        assert answer.startswith(b"HTTP/1.1 200")
        assert b'"item_id":"i0"' in answer
        assert server.process.wait(20) == 0
        assert server.wait_for("serve_shutdown")["drain_seconds"] < 20


def ask_until_refused(address: tuple[str, int]) -> tuple[list[bytes], float]:
    """Connect and send requests until the server refuses a connection.

    Return the first bytes of each answer and the seconds of the longest handshake.
    """
    answers, longest_s = [], 0.0
    while True:
        began = time.monotonic()
        with socket.socket() as client:
            refused = client.connect_ex(address)
            longest_s = max(longest_s, time.monotonic() - began)
            if refused:
                return answers, longest_s
            client.sendall(b"GET /v1/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
            answers.append(client.recv(12))


@pytest.mark.parametrize("workers", ["1", "2"])
def test_new_clients_are_answered_or_refused_and_never_wait(home: Path, workers: str) -> None:
    """New clients during a drain are answered or refused, and none waits for a retransmission.

    A dropped packet would delay the handshake by a second.
    """
    with Server(home, env={"SVC_WORKERS": workers}) as server, ThreadPoolExecutor() as pool:
        address = urlsplit(server.url)
        asked = [pool.submit(ask_until_refused, (str(address.hostname), int(address.port or 0))) for _ in range(4)]
        time.sleep(0.3)
        server.send(signal.SIGTERM)
        results = [done.result(30) for done in asked]
        assert server.process.wait(20) == 0
    for answers, longest_s in results:
        assert set(answers) == {b"HTTP/1.1 200"}
        assert longest_s < RETRANSMISSION_S


def test_a_drain_ends_after_svc_drain_seconds(home: Path) -> None:
    """A client that never finishes its request cannot prolong the drain beyond SVC_DRAIN_SECONDS."""
    with Server(home, env={"SVC_DRAIN_SECONDS": "1"}) as server, connection(server) as busy:
        begin(busy)
        server.get("/v1/health")
        assert server.stop() == 0
        assert 1 <= server.said("serve_shutdown")[0]["drain_seconds"] < 10


def test_a_second_signal_ends_the_process_at_once(home: Path) -> None:
    """A second signal ends the process at once, even with requests in flight."""
    with Server(home) as server, connection(server) as busy:
        begin(busy)
        server.get("/v1/health")
        server.send(signal.SIGTERM)
        server.wait_for("serve_draining")
        began = time.monotonic()
        server.send(signal.SIGTERM)
        server.process.wait(20)
        assert time.monotonic() - began < 20  # the drain would take 30


def test_a_hung_store_does_not_delay_the_drain(home: Path) -> None:
    """A drain does not wait for a store that never answers."""
    with Server(home) as server:
        fifo = home.parent / "pipe.svc"
        os.mkfifo(fifo)
        write_recipe(home, "hung", fifo)
        server.wait_for("recipe_discovered", name="hung")
        assert server.stop() == 0
        assert server.said("serve_shutdown")[0]["drain_seconds"] < 20


@pytest.mark.parametrize("moment", range(int(os.environ.get("SIGNALS_UNDER_LOAD", "3"))))
def test_a_drain_under_load_answers_every_accepted_request(home: Path, moment: int) -> None:
    """A drain under load answers every accepted request and ends with exit code 0 in time.

    The kernel resets a client that connects between the last accept and the shutdown of the listener. These are
    microseconds, unless a busy machine stops the process there, so the test allows one reset connection.

    SIGNALS_UNDER_LOAD is the number of random moments. With `-rP`, pytest prints the result of each.
    """
    one = {"user_id": "u3", "limit": 1}
    requests = [("/v1/recipes/a:recommend", one), ("/v1/recipes/a:batch-recommend", {"requests": [one] * 64})]
    random_s = random.Random(moment)
    with Server(home, env={"SVC_DRAIN_SECONDS": "20"}) as server:
        with Load(server.url, requests, clients=8, judge=only_200) as load:
            time.sleep(random_s.uniform(0.0, 0.6))
            code = server.stop(random_s.choice((signal.SIGTERM, signal.SIGINT)))
        seconds = server.said("serve_shutdown")[0]["drain_seconds"]
        tally = load.tally
        print(f"answered={tally.answered} unanswered={len(tally.failures)} exit={code} drain_s={seconds}")  # noqa: T201
        assert code == 0
        assert tally.failures in ([], ["ConnectionResetError: [Errno 104] Connection reset by peer"])
        assert seconds < 20


def test_a_signal_during_the_start_ends_the_process(home: Path) -> None:
    """SIGINT during the start ends the process with exit code 0, without `serve_started`."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        write_recipe(home, "hung", f"http://127.0.0.1:{silent.getsockname()[1]}/m.svc")
        env = {"SVC_HTTP_ALLOW_PRIVATE": "1", "SVC_WATCH_INTERVAL": "30"}
        with Server(home, env=env, ready="artifact_loaded") as server:
            assert server.stop(signal.SIGINT) == 0
            assert not server.said("serve_started")
            assert server.said("serve_shutdown")


def test_a_client_that_does_not_read_does_not_prolong_the_drain(home: Path) -> None:
    """A client that does not read its large answer cannot prolong the drain beyond SVC_DRAIN_SECONDS."""
    write_artifact(home.parent / "a.svc", popularity_model(0, n_items=2000))
    body = json.dumps({"requests": [{"user_id": "u3", "limit": 1000}] * 256}).encode()
    head = ["POST /v1/recipes/a:batch-recommend HTTP/1.1", "host: localhost", f"content-length: {len(body)}"]
    with Server(home, env={"SVC_DRAIN_SECONDS": "1"}) as server, connection(server) as unread:
        unread.sendall("\r\n".join([*head, "", ""]).encode() + body)
        assert unread.recv(1) == b"H"  # the server sends an answer that is larger than the buffers
        assert server.stop() == 0
        assert server.said("serve_shutdown")[0]["drain_seconds"] < 10

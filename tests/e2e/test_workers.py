"""A server with several workers: swaps, metrics, killed workers, and balanced connections."""

from __future__ import annotations

import http.client
import math
import os
import random
import signal
import socket
import time
from contextlib import ExitStack, suppress
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import numpy as np
import pytest

from svc.serving.api.authentication import hash_api_key
from tests.e2e.load import Load, only_200
from tests.e2e.server import Server, make_home, until, write_recipe
from tests.serving.artifacts import SIGNING_KEYS, factor_model, write_artifact

pytestmark = pytest.mark.system
N_WORKERS = 3
SHOP = "s" * 43
SWAPS = int(os.environ.get("SVC_TEST_SWAPS", "3"))
KILLS = int(os.environ.get("SVC_TEST_KILLS", "3"))
LISTENING = "0A"
AWAY_S = 1.0
"""The limit of the median time from the death of a worker until its successor is ready."""


def children(server: Server) -> list[int]:
    """Return the child processes of the server, first the template that workers are forked from."""
    path = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
    return [int(pid) for pid in path.read_text().split()]


def is_gone(pid: int) -> bool:
    """Return True if the process has ended, also if it is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def connections(server: Server, pid: int) -> int:
    """Return the number of a worker's client connections."""
    ending = f":{int(server.url.rpartition(':')[2]):04X}"
    table = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ours = {f"socket:[{fields[9]}]" for fields in table if fields[1].endswith(ending) and fields[3] != LISTENING}
    count = 0
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it has been closed meanwhile
            count += str(path.readlink()) in ours
    return count


def await_workers(server: Server, restarts: int) -> None:
    server.wait_for("worker_restarted", times=restarts)
    until(
        lambda: httpx.get(f"{server.url}/v1/health", verify=False).json()["workers"]["ready"] == N_WORKERS,
        server.log,
    )


def late(answers: list[tuple[float, str]], loaded: list[dict[str, Any]]) -> list[float]:
    """Return how many seconds after a swap each answer of the replaced model was requested.

    The swap counts from its event. Requests before it are left out.
    """
    events = [(datetime.fromisoformat(event["timestamp"]).timestamp(), event["model_version"]) for event in loaded]
    replaced_at = {earlier: since for (_, earlier), (since, _) in pairwise(events)}
    return [sent_at - since for sent_at, version in answers if sent_at > (since := replaced_at.get(version, math.inf))]


@pytest.mark.timeout(180 + 5 * SWAPS)
def test_all_workers_swap_before_the_event_is_logged(tmp_path: Path) -> None:
    """No request fails during swaps. Requests after the event get the new model. Each request is counted once.

    SVC_TEST_SWAPS is the number of swaps. A broken artifact is reported once.
    """
    server = Server(make_home(tmp_path, "a", factor_model(50, 60, 8)), args=["--workers", str(N_WORKERS)])
    answers: list[tuple[float, str]] = []

    def note(sent_at: float, document: dict[str, Any]) -> None:
        answers.append((sent_at, document["model_version"]))

    with server:
        assert server.said("serve_started")[0]["workers"] == N_WORKERS
        asked = [("/v1/recipes/a:recommend", {"user_id": "u3", "limit": 1})]
        with Load(server.url, asked, clients=6, judge=only_200, note=note) as load:
            for seed in range(1, SWAPS + 1):
                write_artifact(tmp_path / "a.svc", factor_model(50, 60, 8, seed=seed))
                server.wait_for("artifact_loaded", times=seed + 1)
            answered = len(answers)
            until(lambda: len(answers) > answered + 50)
        assert load.tally.failures == []
        assert late(answers, server.said("artifact_loaded")) == []
        assert len({version for _, version in answers}) > SWAPS / 2
        counted = 'svc_v1_requests_total{recipe="a",status="ok"}'
        assert server.metric(counted) == len(answers)
        assert {server.metric('svc_swap_total{result="ok"}') for _ in range(5)} == {SWAPS}

        serving = server.recommend("a").json()["model_version"]
        (tmp_path / "a.svc").write_bytes(b"no artifact")
        server.wait_for("artifact_load_failed")
        until(lambda: all("last_load_error" in server.recipe("a") for _ in range(6)))
        assert server.recommend("a").json()["model_version"] == serving
        assert len(server.said("artifact_load_failed")) == 1


def has_two_in_all(server: Server, workers: list[int]) -> bool:
    return sum(connections(server, pid) for pid in workers) == 2 * N_WORKERS


def has_answered(load: Load, count: int) -> bool:
    return load.tally.answered >= count


@pytest.mark.timeout(180 + 5 * KILLS)
def test_a_killed_worker_is_replaced_at_once_and_loses_only_its_requests(tmp_path: Path) -> None:
    """Metrics keep the counts of the killed worker. The process that forks workers is restarted too.

    SVC_TEST_KILLS is the number of killed workers.
    """
    rng = random.Random(2)
    with Server(make_home(tmp_path, "a", factor_model(50, 60, 8)), args=["--workers", str(N_WORKERS)]) as server:
        asked = [("/v1/recipes/a:recommend", {"user_id": "u3", "limit": 1})]
        away_s = []
        with Load(server.url, asked, clients=2 * N_WORKERS, judge=only_200) as load:
            tally = load.tally
            for number in range(1, KILLS + 1):
                template, *workers = children(server)
                until(partial(has_two_in_all, server, workers))
                failed, answered = len(tally.failures), tally.answered
                began, killed = time.monotonic(), rng.choice(workers)
                n_lost = connections(server, killed)
                os.kill(killed, signal.SIGKILL)
                await_workers(server, number)
                away_s.append(time.monotonic() - began)
                until(partial(has_answered, load, answered + 50))
                assert len(tally.failures) - failed <= n_lost
        assert load.tally.refused == 0
        assert not [failure for failure in load.tally.failures if failure.startswith("status")]
        assert median(away_s) < AWAY_S
        lost = len(load.tally.failures)
        print(f"{KILLS} kills: {lost} lost, away {median(away_s):.2f} s, at most {max(away_s):.2f} s")  # noqa: T201
        counted = 'svc_v1_requests_total{recipe="a",status="ok"}'
        assert 0 <= server.metric(counted) - load.tally.answered <= lost

        os.kill(template, signal.SIGKILL)
        server.wait_for("worker_template_restarted")
        until(lambda: len(children(server)) == 1 + N_WORKERS)
        os.kill(min(children(server)), signal.SIGKILL)
        await_workers(server, KILLS + 1)

        left = children(server)
        assert len(left) == 1 + N_WORKERS
        server.process.kill()
        until(lambda: all(map(is_gone, left)))


def test_a_stopped_worker_is_replaced_and_sigterm_drains_all_workers(tmp_path: Path) -> None:
    """A worker without heartbeats counts as stopped. All workers share one rate limit, and have no signing key."""
    (tmp_path / "policies.yaml").write_text("shop: {rate: 1/h, burst: 5}\n")
    env = {"SVC_API_KEYS": f"shop:{hash_api_key(SHOP)}", "SVC_API_KEY_POLICIES": str(tmp_path / "policies.yaml")}
    env |= {"SVC_WORKERS": "3", "SVC_METRICS_PORT": "0", "SVC_RECIPE_STORE_SECRET": "s3cr3t"}
    with Server(make_home(tmp_path, "a", factor_model(50, 60, 8)), env=env) as server:
        workers = children(server)[1:]
        for pid in workers:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
            assert SIGNING_KEYS.encode() not in environ
            assert b"s3cr3t" not in environ
            maps = [line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "memfd:svc-model" in line]
            assert maps
            assert all(line.split()[1] == "r--s" for line in maps)
        statuses = []
        for _ in range(12):
            with httpx.Client(base_url=server.url, headers={"x-api-key": SHOP}, verify=False) as client:
                statuses.append(client.post("/v1/recipes/a:recommend", json={"user_id": "u1"}).status_code)
        assert sorted(statuses) == [200] * 5 + [429] * 7

        os.kill(workers[0], signal.SIGSTOP)
        assert server.wait_for("worker_restarted", reason="silent")["pid"] == workers[0]
        monitoring = server.said("monitoring_started")[0]
        port = monitoring["port"]
        text = httpx.get(f"http://127.0.0.1:{port}/metrics", verify=False).text
        assert 'svc_key_refusals_total{code="RATE_LIMITED",kid="shop"} 7.0' in text
        until(lambda: httpx.get(f"http://127.0.0.1:{port}/v1/health", verify=False).json()["workers"]["ready"] == 3)

        left = children(server)
        server.send(signal.SIGTERM)
        assert server.process.wait(timeout=30) == 0
        assert server.said("serve_shutdown")
        until(lambda: all(map(is_gone, left)))


def opened_one_by_one(server: Server, count: int) -> list[http.client.HTTPConnection]:
    """Return `count` open connections, each opened after the answer on the one before."""
    clients = []
    for _ in range(count):
        clients.append(http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=30))
        clients[-1].request("GET", "/v1/health")
        assert clients[-1].getresponse().read()
    return clients


def is_level(server: Server, workers: list[int], count: int, most: int) -> bool:
    """Open and close connections. Return whether no worker has over `most` connections more than another."""
    clients = opened_one_by_one(server, count)
    counts = [connections(server, pid) for pid in workers]
    for client in clients:
        client.close()
    until(lambda: not sum(connections(server, pid) for pid in workers))
    return sum(counts) == count and max(counts) - min(counts) <= most


def test_connections_are_balanced_over_workers_and_a_drain_cuts_none(tmp_path: Path) -> None:
    """No worker has two connections more than another. A busy machine may need several attempts.

    Clients that connected before SIGTERM are answered. Later ones are refused.
    """
    with Server(make_home(tmp_path, "a", factor_model(50, 60, 8)), args=["--workers", "4"]) as server:
        workers = children(server)[1:]
        until(lambda: is_level(server, workers, 16, most=1), deadline_s=60)
        address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        with ExitStack() as stack:
            late = [stack.enter_context(socket.create_connection(address, timeout=30)) for _ in range(200)]
            for client in late:
                client.send(b"GET /v1/health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            server.send(signal.SIGTERM)
            for client in late:
                answer = b""
                while data := client.recv(1 << 16):
                    answer += data
                assert answer.startswith(b"HTTP/1.1 200 ")
                assert answer.endswith(b"}\n")
        assert server.process.wait(timeout=30) == 0
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)


def clients_of_all(server: Server, stack: ExitStack) -> list[httpx.Client]:
    """Return two clients, connected to one worker each."""
    workers = children(server)[1:]
    for _ in range(100):
        clients = [stack.enter_context(httpx.Client(base_url=server.url, timeout=30, verify=False)) for _ in range(2)]
        for client in clients:
            client.get("/v1/health")
        if [connections(server, pid) for pid in workers] == [1, 1]:
            break
        for client in clients:
            client.close()
    assert [connections(server, pid) for pid in workers] == [1, 1]
    return clients


def test_every_worker_reports_for_the_whole_server(tmp_path: Path) -> None:
    """Health, details, available items, versions and metrics agree on all workers. A request is logged once."""
    home = make_home(tmp_path, "a", factor_model(50, 60, 8))
    (tmp_path / "list.csv").write_text("id\n" + "\n".join(f"i{number}" for number in range(0, 60, 2)) + "\n")
    source = {"type": "csv", "path": str(tmp_path / "list.csv")}
    write_recipe(
        home,
        "a",
        tmp_path / "a.svc",
        serving={"availability": {"source": source, "id_column": "id", "mode": "allow"}},
    )
    env = {"SVC_WORKERS": "2", "SVC_ACCESS_LOG": "all", "SVC_CACHED_ANSWERS": "9"}
    with Server(home, env=env) as server, ExitStack() as stack:
        server.wait_for("availability_loaded")
        clients = clients_of_all(server, stack)

        def both(path: str) -> list[httpx.Response]:
            return [client.get(path) for client in clients]

        health = [answer.json() for answer in both("/v1/health")]
        assert health == 2 * [
            {"status": "ok", "total": 1, "loaded": 1, "workers": {"total": 2, "ready": 2, "failing": 0}}
        ]
        details = [answer.json()["recipes"]["a"] for answer in both("/v1/health/details")]
        ages = [[part.pop("age_seconds") for part in (recipe, recipe["availability"])] for recipe in details]
        assert details[0] == details[1]
        np.testing.assert_allclose(ages[0], ages[1], atol=2)  # the answers are given one after the other
        assert len({answer.text for answer in both("/v1/recipes/a/versions")}) == 1
        body = {"user_id": "u3", "limit": 30}
        for client in 3 * clients:
            items = client.post("/v1/recipes/a:recommend", json=body).json()["items"]
            assert {int(item["item_id"][1:]) % 2 for item in items} == {0}
        counted = 'svc_v1_requests_total{recipe="a",status="ok"} 6.0'
        assert all(counted in answer.text for answer in both("/v1/metrics"))
        until(lambda: len(server.said("request_answered", verb="recommend")) == 6, server.log)
        assert len(server.said("availability_loaded")) == 1

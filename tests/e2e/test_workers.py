"""`svc serve --workers 3` as a whole: one model, one swap, one count, and workers that may die."""

from __future__ import annotations

import os
import signal
import time
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from svc.serving.api.access.api_keys import hash_api_key
from tests.e2e.load import Load, only_200
from tests.e2e.server import Server, make_home, until
from tests.serving.artifacts import SIGNING_KEYS, factor_model, write_artifact

pytestmark = pytest.mark.system
N_WORKERS = 3
SHOP = "s" * 43
RECEIVED_S = 0.1
"""An answer may be on its way to a client, and wait there for its turn, for so long."""


def children(server: Server) -> list[int]:
    """All processes below the server, the one that workers are copied from first."""
    path = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
    return [int(pid) for pid in path.read_text().split()]


def is_gone(pid: int) -> bool:
    """True also of a process that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def await_workers(server: Server, restarts: int) -> None:
    server.wait_for("worker_restarted", times=restarts)
    until(lambda: server.health()[1]["workers"]["ready"] == N_WORKERS, server.log)


def test_workers_swap_as_one_and_outlive_kills(tmp_path: Path) -> None:
    """No answer fails in swaps, none is of the earlier model behind the event, and every answer is counted once."""
    server = Server(make_home(tmp_path, "a", factor_model(50, 60, 8)), args=["--workers", str(N_WORKERS)])
    answers: list[tuple[float, str]] = []

    def note(status: int, body: dict[str, object]) -> str | None:
        answers.append((time.time(), str(body.get("model_version"))))
        return only_200(status, body)

    with server:
        assert server.said("serve_started")[0]["workers"] == N_WORKERS
        asked = [("/v1/recipes/a:recommend", {"user_id": "u3", "limit": 1})]
        with Load(server.url, asked, clients=6, judge=note) as load:
            for seed in range(1, 4):
                write_artifact(tmp_path / "a.svc", factor_model(50, 60, 8, seed=seed))
                server.wait_for("artifact_loaded", times=seed + 1)
            answered = len(answers)
            until(lambda: len(answers) > answered + 50)
        assert load.tally.failures == []
        loaded = [
            (datetime.fromisoformat(record["timestamp"]).timestamp(), record["model_version"])
            for record in server.said("artifact_loaded")
        ]
        for (_, earlier), (since, later) in pairwise(loaded):
            assert [late for at, version in answers if version == earlier and (late := at - since) > RECEIVED_S] == []
            assert [early for at, version in answers if version == later and (early := since - at) > 0.5] == []
        counted = 'svc_v1_requests_total{recipe="a",status="ok"}'
        assert server.metric(counted) == len(answers)

        serving = server.recommend("a").json()["model_version"]
        (tmp_path / "a.svc").write_bytes(b"no artifact")
        server.wait_for("artifact_load_failed")
        until(lambda: all("last_load_error" in server.recipe("a") for _ in range(6)))
        assert server.recommend("a").json()["model_version"] == serving
        assert len(server.said("artifact_load_failed")) == 1

        template, *workers = children(server)
        for number, pid in enumerate(workers, start=1):
            os.kill(pid, signal.SIGKILL)
            await_workers(server, number)
        assert server.metric(counted) == len(answers) + 2
        assert {server.metric('svc_swap_total{result="ok"}') for _ in range(5)} == {3.0}

        os.kill(template, signal.SIGKILL)
        until(lambda: is_gone(template))
        os.kill(children(server)[-1], signal.SIGKILL)
        await_workers(server, len(workers) + 1)
        assert server.recommend("a").status_code == 200

        left = children(server)
        assert len(left) == 1 + N_WORKERS
        server.process.kill()
        until(lambda: all(map(is_gone, left)))


def test_a_silent_worker_is_replaced_and_a_signal_drains_all(tmp_path: Path) -> None:
    """SIGSTOP is found by silence; a rate holds for all workers; SIGTERM ends every process with exit code 0."""
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
            with httpx.Client(base_url=server.url, headers={"x-api-key": SHOP}) as client:
                statuses.append(client.post("/v1/recipes/a:recommend", json={"user_id": "u1"}).status_code)
        assert sorted(statuses) == [200] * 5 + [429] * 7

        os.kill(workers[0], signal.SIGSTOP)
        assert server.wait_for("worker_restarted", reason="silent")["pid"] == workers[0]
        monitoring = server.said("monitoring_started")[0]
        port = monitoring["port"]
        text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        assert 'svc_key_refusals_total{code="RATE_LIMITED",kid="shop"} 7.0' in text
        until(lambda: httpx.get(f"http://127.0.0.1:{port}/v1/health").json()["workers"]["ready"] == 3)

        left = children(server)
        server.send(signal.SIGTERM)
        assert server.process.wait(timeout=30) == 0
        assert server.said("serve_shutdown")
        until(lambda: all(map(is_gone, left)))

"""Faults inside the serving process: which request fails, what is counted, and that others are answered."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from svc.model.model import Model
from tests.e2e.load import Load
from tests.e2e.server import Server, put, until, write_recipe
from tests.serving.artifacts import factor_model, popularity_model, write_artifact
from tests.serving.live import live

pytestmark = pytest.mark.integration

MIB = 1 << 20
LEAN = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_ARENA_MAX": "1"}
"""Makes the C library return freed large blocks to the system, so new ones count against the limit."""
NO_MEMORY = ("MemoryError", "can't start new thread")
"""How Python says that memory is short: for an array, and for the stack of 8 MiB of a thread if no idle one is left."""
ERRORS = 'svc_v1_requests_total{{recipe="{}",status="error"}}'


def model_that_raises_for_u1() -> Model:
    """Return a model that raises for user u1, whose history contains an item that does not exist."""
    model = popularity_model(0)
    columns = np.array(model.history.columns)
    columns[model.history.offsets[1]] = 1_000_000
    model.history.columns = columns
    return model


def test_an_error_while_scoring_fails_only_its_request(home: Path) -> None:
    """An error while scoring fails only its own request: 500 for the caller, logged and counted.

    The answer does not show the exception, and the log does.
    """
    write_recipe(home, "bad", home.parent / "bad.svc")
    write_artifact(home.parent / "bad.svc", model_that_raises_for_u1())
    with live(home) as server:
        for number in range(1, 4):
            answer = server.recommend("bad", "u1")
            body = answer.json()
            assert (answer.status_code, body["code"]) == (500, "INTERNAL_ERROR")
            assert "IndexError" not in answer.text
            record = server.wait_for("request_failed", times=number)
            assert (record["request_id"], "IndexError" in record["error"]) == (body["request_id"], True)
            assert server.recommend("bad", "u3").status_code == 200
            assert server.recommend("a", "u1").status_code == 200
        requests = [{"user_id": f"u{number}", "limit": 1} for number in range(4)]
        for name, status in (("bad", 500), ("a", 200)):
            answer = server.ask("POST", f"/v1/recipes/{name}:batch-recommend", {"requests": requests})
            assert answer.status_code == status
        assert server.metric(ERRORS.format("bad")) == 4
        assert server.metric(ERRORS.format("a")) == 0
        assert server.health()[0] == 200


@contextmanager
def memory_capped(pid: int, more: int) -> Iterator[None]:
    """Limit the address space of the process to its present size plus `more` bytes inside the block."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[0])
    before = resource.prlimit(pid, resource.RLIMIT_AS)
    resource.prlimit(pid, resource.RLIMIT_AS, (pages * resource.getpagesize() + more, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_AS, before)


def test_a_request_without_memory_gets_500_and_others_are_answered(home: Path) -> None:
    """A request that runs out of memory gets 500 and is counted, and smaller ones are answered meanwhile."""
    write_recipe(home, "large", home.parent / "large.svc")
    write_artifact(home.parent / "large.svc", factor_model(300, 100_000, 16))
    bulk = {"requests": [{"user_id": f"u{number}", "limit": 1000} for number in range(256)]}
    with Server(home, env={"SVC_WATCH_INTERVAL": "30", **LEAN}, fresh=True) as server:
        # Starts the threads, whose stacks would not fit under the cap.
        for name in ("large", "a"):
            small = server.client.post(f"/v1/recipes/{name}:batch-recommend", json={"requests": bulk["requests"][:2]})
            assert (small.status_code, server.recommend(name).status_code) == (200, 200)
        with memory_capped(server.process.pid, 8 * MIB):
            answer = server.client.post("/v1/recipes/large:batch-recommend", json=bulk)
            assert (answer.status_code, answer.json()["code"]) == (500, "INTERNAL_ERROR")
            assert server.recommend("a").status_code == 200
            assert server.get("/v1/health/live").status_code == 200
        error = server.wait_for("request_failed")["error"]
        assert any(words in error for words in NO_MEMORY)
        assert server.client.post("/v1/recipes/large:batch-recommend", json=bulk).status_code == 200
        assert server.metric(ERRORS.format("large")) == 1
        assert server.stop() == 0


def test_a_server_killed_under_load_has_the_same_state_after_a_restart(home: Path) -> None:
    """A server that is killed under load gives the same answers, health and details after a restart.

    The kill leaves no file behind.
    """
    put(home / "broken.yaml", "name: [")
    write_recipe(home, "stub", home.parent / "none.svc")
    files = sorted(home.parent.rglob("*"))
    seen = []
    for _ in range(2):
        with Server(home) as server:
            answer = server.recommend("a").json()
            status, details = server.details()
            assert details["recipes"]["a"].pop("age_seconds") > 0
            seen.append((answer["items"], answer["model_version"], server.health(), status, details))
            one = ("/v1/recipes/a:recommend", {"user_id": "u3", "limit": 1})
            with Load(server.url, [one], clients=4, judge=lambda *_: None) as load:
                until(lambda load=load: load.tally.answered > 50)
                server.send(signal.SIGKILL)
                assert server.process.wait() == -signal.SIGKILL
    assert seen[0] == seen[1]
    assert sorted(home.parent.rglob("*")) == files

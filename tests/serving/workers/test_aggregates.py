"""The parent's answers to its workers: summed metrics and versions."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from svc.errors import ArtifactReadError
from svc.metrics import REQUESTS, Metrics
from svc.serving.api.access.authentication import Authenticator
from svc.serving.api.request.state import ServerState
from svc.serving.models.registry import Registry
from svc.serving.workers.aggregates import Collector, answer
from svc.serving.workers.fleet import Fleet
from svc.settings import Settings


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as bound_to_nothing:
        yield bound_to_nothing


@pytest.mark.anyio
async def test_sums_include_ended_and_running_workers(listener: socket.socket) -> None:
    """Counts of a killed worker stay in the sums. Resources of processes are summed too."""
    fleet = Fleet(2, {}, listener)
    fleet._past = {(REQUESTS.name, "a", "ok"): (41.0,)}
    text = (await trio.to_thread.run_sync(Metrics.create(Collector(fleet)).render)).decode()
    assert 'svc_v1_requests_total{recipe="a",status="ok"} 41.0' in text
    assert text.count("# TYPE process_cpu_seconds_total counter") == 1
    assert text.count("# TYPE svc_v1_requests_total counter") == 1


@pytest.mark.anyio
async def test_a_failed_query_has_its_reason() -> None:
    """The answer is a text for a store that fails, `unknown` for an unknown recipe, and `failed` for a defect, which is
    logged.
    """

    def versions(name: str) -> dict[str, Any]:
        if name == "gone":
            raise LookupError(name)
        if name == "broken":
            raise ValueError("Out of range float values are not JSON compliant")
        raise ArtifactReadError("the store is away")

    auth = Authenticator({}, trio.CapacityLimiter(1))
    state = ServerState(Registry(), Settings(), Metrics.disabled(), auth, versions=versions)
    assert await answer(state, "versions", "gone") == "unknown"
    assert await answer(state, "versions", "a") == "the store is away"
    with capture_logs() as log:
        assert await answer(state, "versions", "broken") == "failed"
    assert [event["event"] for event in log] == ["request_failed"]
    assert await answer(state, "files", "/etc/passwd") == "unknown"
    assert await answer(state, "metrics", "") == b""

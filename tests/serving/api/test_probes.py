"""The health documents for orchestrators."""

from __future__ import annotations

import pytest

from tests.serving.client import serving

pytestmark = pytest.mark.anyio


async def test_health_documents_follow_loading_and_draining() -> None:
    """Health counts models, live is always ok, and ready follows loading and draining."""
    async with serving() as (client, state):
        health = await client.get("/v1/health")
        assert (health.status, health.json) == (503, {"status": "degraded", "total": 4, "loaded": 3})
        assert (await client.get("/v1/health/live")).status == 200
        assert (await client.get("/v1/health/ready")).status == 200
        details = await client.get("/v1/health/details")
        assert details.status == 503
        assert details.json["recipes"]["stub"] == {"loaded": False, "error": "signature mismatch"}
        state.draining = True
        assert (await client.get("/v1/health/ready")).status == 503


async def test_probes_may_name_any_host() -> None:
    """An orchestrator uses the address of the process as host."""
    async with serving() as (client, _):
        for path, status in (("/v1/health", 503), ("/v1/health/live", 200), ("/v1/health/ready", 200)):
            assert (await client.get(path, headers={"host": "10.1.2.3:8080"})).status == status
        assert (await client.get("/v1/health/details", headers={"host": "10.1.2.3:8080"})).status == 400

"""Refusals are counted in the log instead of logged one by one."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from svc.errors import KeyNotAllowed, RateLimited
from svc.serving.api.request.state import REPORT_S, Refusals

pytestmark = pytest.mark.anyio


async def test_a_thousand_refusals_are_one_line_for_each_code_and_key() -> None:
    """The line has the number since the last line, and is written at the end of the server too."""
    refusals = Refusals()
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refusals.run)
            for _ in range(1000):
                refusals.note(RateLimited(fields={"kid": "shop"}))
            refusals.note(KeyNotAllowed(fields={"kid": "feed"}))
            await trio.sleep(2 * REPORT_S)
            assert len(logs) == 2
            refusals.note(RateLimited(fields={"kid": "shop"}))
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    assert [(line["code"], line["kid"], line["count"], line["seconds"]) for line in logs] == [
        ("RATE_LIMITED", "shop", 1000, REPORT_S),
        ("KEY_NOT_ALLOWED", "feed", 1, REPORT_S),
        ("RATE_LIMITED", "shop", 1, 0.0),
    ]

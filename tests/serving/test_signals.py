"""What runs until something else is over; the signals themselves are sent to real processes in tests/e2e."""

from __future__ import annotations

import pytest
import trio

from svc.serving.signals import run_until

pytestmark = pytest.mark.anyio


async def test_work_ends_by_itself_or_when_something_else_is_over() -> None:
    """Whichever comes first, and nothing of the other goes on."""
    ended: list[str] = []
    began = trio.current_time()

    async def after(seconds: float, what: str) -> None:
        await trio.sleep(seconds)
        ended.append(what)

    await run_until(lambda: after(2, "over"), lambda: after(1, "work"))
    assert ended == ["work"]
    await run_until(lambda: after(1, "over"), lambda: after(2, "work"))
    assert ended == ["work", "over"]
    assert trio.current_time() - began == pytest.approx(2)

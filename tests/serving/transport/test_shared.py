"""What the connections of one server share: who waits, and what the end of the server means to them."""

from __future__ import annotations

from typing import Any, cast

import pytest
import trio

from svc.serving.transport.pacing import Turnstile
from svc.serving.transport.shared import Limits, Shared

pytestmark = pytest.mark.anyio


def made() -> Shared:
    return Shared(cast(Any, None), Limits(idle_s=5, unread_s=5, drain_s=1), Turnstile())


async def test_who_waits_can_be_woken() -> None:
    """Only while it waits: afterwards its scope is not known any more."""
    shared = made()
    with trio.CancelScope() as scope, shared.waiting(scope):
        assert shared.idle == {scope}
        scope.cancel()
        await trio.sleep_forever()
    assert scope.cancelled_caught
    assert shared.idle == set()


async def test_nobody_begins_to_wait_once_the_server_ends() -> None:
    """A connection that is late ends as those do that wait already."""
    shared = made()
    shared.ending = True
    with trio.move_on_after(60) as scope, shared.waiting(scope):
        await trio.sleep_forever()
    assert scope.cancelled_caught
    assert trio.current_time() < scope.deadline

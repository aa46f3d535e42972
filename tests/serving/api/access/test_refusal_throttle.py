"""The delays of refusals in a flood, in virtual time."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from svc.serving.api.access.refusal_throttle import RefusalThrottle

pytestmark = pytest.mark.anyio
PER_S, BURST, LONGEST_S = 10.0, 5.0, 3.0


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    return ("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})


async def test_a_burst_is_answered_at_once_and_a_flood_at_a_rate() -> None:
    """The burst has no delay. Further refusals come one each 0.1 s, and none later than the longest wait."""
    throttle = RefusalThrottle(PER_S, BURST, LONGEST_S)
    waits = [throttle.next_wait_s() for _ in range(60)]
    assert waits[:5] == [0.0] * 5
    assert waits[5:35] == pytest.approx([number / PER_S for number in range(1, 31)])
    assert waits[35:] == [LONGEST_S] * 25


async def test_a_burst_after_the_end_of_a_flood_is_answered_at_once() -> None:
    """It is so as soon as the last refusal of the flood is due."""
    throttle = RefusalThrottle(PER_S, BURST, LONGEST_S)
    for _ in range(1_000):
        throttle.next_wait_s()
    await trio.sleep(LONGEST_S + BURST / PER_S)
    assert [throttle.next_wait_s() for _ in range(5)] == pytest.approx([0.0] * 5)


async def test_occasional_refusals_are_never_delayed() -> None:
    throttle = RefusalThrottle(PER_S, BURST, LONGEST_S)
    for _ in range(100):
        assert throttle.next_wait_s() == 0.0
        await trio.sleep(1 / PER_S)

"""How a flood of refusals is slowed down, in virtual time."""

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


async def test_a_few_are_answered_at_once_and_a_flood_at_its_rate() -> None:
    """Those of the burst wait for nothing, then one each tenth of a second, and nobody longer than the longest wait."""
    throttle = RefusalThrottle(PER_S, BURST, LONGEST_S)
    waits = [throttle.next_wait_s() for _ in range(60)]
    assert waits[:5] == [0.0] * 5
    assert waits[5:35] == pytest.approx([number / PER_S for number in range(1, 31)])
    assert waits[35:] == [LONGEST_S] * 25


async def test_a_flood_is_forgotten() -> None:
    """Once it has ended and its last refusal is due, a burst is answered at once again."""
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

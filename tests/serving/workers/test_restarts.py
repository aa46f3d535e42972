"""Pauses before a worker is restarted, and detection of silent workers."""

from __future__ import annotations

from svc.serving.workers.restarts import DOUBTFUL_CHECKS, SILENT_CHECKS, Pauses, Pulse


def test_a_worker_that_served_is_replaced_at_once() -> None:
    """It is so after many deaths, too."""
    pauses = Pauses()
    assert [pauses.after(served_s=60.0) for _ in range(100)] == [0.0] * 100


def test_early_deaths_cause_growing_pauses() -> None:
    """They grow up to half a minute. A worker that has served resets them."""
    pauses = Pauses()
    found = [pauses.after(served_s=0.0) for _ in range(14)]
    assert found[:3] == [0.0, 0.0, 0.0]
    assert found[3:6] == [0.1, 0.2, 0.4]
    assert found == sorted(found)
    assert found[-1] == 30.0
    assert pauses.is_failing
    assert pauses.after(served_s=5.0) == 0.0
    assert not pauses.is_failing


def test_silence_is_counted_in_checks() -> None:
    """A worker with a heartbeat between two checks is not silent, however late the check is."""
    pulse = Pulse()
    for beats in range(100):
        pulse.check(beats)
        assert not pulse.is_doubtful
    for _ in range(DOUBTFUL_CHECKS):
        pulse.check(99)
    assert pulse.is_doubtful and not pulse.is_silent
    for _ in range(SILENT_CHECKS - DOUBTFUL_CHECKS):
        pulse.check(99)
    assert pulse.is_silent
    pulse.check(100)
    assert not pulse.is_doubtful

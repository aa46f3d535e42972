"""Batches pause while a single request is in progress, up to a bounded share of the time."""

from __future__ import annotations

import math
import time

import pytest
import trio
import trio.testing

from svc.serving.precedence import PAUSE_SHARE, Precedence

pytestmark = pytest.mark.anyio


async def test_without_single_requests_batches_do_not_pause() -> None:
    precedence = Precedence()
    with trio.fail_after(0):
        await precedence.give_way(math.inf)
    precedence.give_way_in_thread(math.inf)


async def test_a_batch_on_the_event_loop_continues_after_the_last_single_request() -> None:
    precedence, began = Precedence(), trio.current_time()

    async def single(seconds: float) -> None:
        with precedence:
            await trio.sleep(seconds)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(single, 1)
        nursery.start_soon(single, 2)
        await trio.testing.wait_all_tasks_blocked()
        await precedence.give_way(100)
        assert trio.current_time() - began == pytest.approx(2)


async def test_single_requests_pause_a_batch_for_at_most_the_share() -> None:
    """A pausing thread leaves the processor to the single request."""
    precedence = Precedence()
    with precedence:
        began = trio.current_time()
        await precedence.give_way(1)
        assert trio.current_time() - began == pytest.approx(PAUSE_SHARE)
        started, busy = time.perf_counter(), time.thread_time()
        precedence.give_way_in_thread(0.02)
        assert time.perf_counter() - started >= PAUSE_SHARE * 0.02
        assert time.thread_time() - busy < 0.5 * PAUSE_SHARE * 0.02


async def test_a_batch_in_a_thread_continues_after_the_single_request() -> None:
    precedence, order = Precedence(), list[str]()

    def work() -> None:
        precedence.give_way_in_thread(60)
        order.append("batch")

    async with trio.open_nursery() as nursery:
        with precedence:
            nursery.start_soon(trio.to_thread.run_sync, work)
            await trio.to_thread.run_sync(time.sleep, 0.02)
            order.append("single")
    assert order == ["single", "batch"]


async def test_a_failed_single_request_no_longer_counts() -> None:
    precedence = Precedence()
    with pytest.raises(KeyError), precedence:
        raise KeyError
    with trio.fail_after(0):
        await precedence.give_way(math.inf)

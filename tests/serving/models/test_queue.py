"""The queue of a lane: callers take turns by key, and queries without time in a call stay in place."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import trio
import trio.testing

from svc.errors import ApiError, RecipeUnavailable
from svc.model.ranking.query import Query, Ranking
from svc.serving.models.calls import Caller, Outcome, PendingQuery
from svc.serving.models.queue import Queue, Turns

pytestmark = pytest.mark.anyio


class Of(NamedTuple):
    """A request of this key that waits for ever."""

    key: str

    def refusal(self) -> ApiError | None:
        return None


def caller(key: str, count: int = 1, limit: int = 10) -> Caller:
    return Caller([Query(limit=limit, user=user) for user in range(count)], Of(key))


def ranking(user: int) -> Ranking:
    return Ranking(np.array([user], np.int32), np.array([1.0]))


async def test_keys_take_turns_and_callers_of_a_key_are_served_in_order() -> None:
    turns = Turns()
    waiting = [caller(key) for key in "aaab"]
    for one in waiting:
        turns.append(one)
    first = caller("c")
    turns.append_first(first)
    assert (len(turns), turns.weight) == (5, 5)
    turns.remove(waiting[1])
    turns.remove(waiting[1])
    assert [turns.pop() for _ in range(4)] == [first, waiting[0], waiting[3], waiting[2]]
    assert not turns


async def test_every_key_has_the_same_number_of_turns() -> None:
    """A query of a key waits for one query of each other key, however long that key's queue is."""
    turns = Turns()
    turns.append(caller("a", 256))
    assert turns.weight_ahead("b", 1) == 1
    assert turns.weight_ahead("b", 100) == 100
    assert turns.weight_ahead("a", 1) == 1
    turns.append(caller("c", 10, limit=100))
    assert turns.weight_ahead("b", 2) == 2 + 2 * 4
    assert turns.weight_ahead("a", 300) == 256 + 10 * 4


async def test_queries_for_which_a_call_had_no_time_are_next() -> None:
    """The queries keep their order. Queries of cancelled callers are dropped."""
    queue, calls = Queue(), list[list[int]]()
    stays, leaves = caller("a", 3), caller("b", 3)
    queue.add(stays, queue.batches)
    queue.add(leaves, queue.batches)

    def take() -> list[PendingQuery]:
        return [asked for _ in range(len(queue.batches)) for asked in queue.batches.pop().take(9)]

    async def score(asked: list[PendingQuery]) -> list[Outcome]:
        calls.append([one.position for one in asked])
        queue.remove(leaves)
        return [ranking(asked[0].position)]

    queue.close()
    await queue.run(take, score)
    assert calls == [[0, 1, 2, 0, 1, 2], [1, 2], [2]]
    assert [int(one.items[0]) for one in stays.rankings()] == [0, 1, 2]


async def test_the_expected_end_of_a_call_depends_on_the_cost_of_its_queries() -> None:
    queue, waiting = Queue(), caller("a", 3, limit=100)
    queue.add(waiting, queue.batches)
    seen: list[float] = []

    async def score(asked: list[PendingQuery]) -> list[Outcome]:
        seen.append(queue.running_s(1.0))
        return [ranking(0)] * len(asked)

    assert queue.running_s(1.0) == 0
    queue.close()
    await queue.run(lambda: queue.batches.pop().take(3) if queue.batches else [], score)
    assert seen == [pytest.approx(12, abs=0.1)]


async def test_a_cancelled_queue_fails_waiting_callers() -> None:
    queue, waiting = Queue(), [caller("a"), caller("b")]
    queue.add(waiting[0], queue.singles)
    queue.add(waiting[1], queue.batches)

    async def score(_: list[PendingQuery]) -> list[Outcome]:
        raise AssertionError("nothing was taken")

    with trio.move_on_after(0):
        await queue.run(list, score)
    for one in waiting:
        with pytest.raises(RecipeUnavailable):
            one.rankings()
    assert not queue
    assert queue.closing

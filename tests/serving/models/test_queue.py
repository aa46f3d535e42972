"""The queue of a lane: callers take turns by key and get their own rankings, and an invalid query fails only them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
import trio
import trio.testing

from svc.asking.costs import Cost
from svc.errors import ApiError, RecipeUnavailable
from svc.model.ranking.query import Query, Ranking
from svc.serving.models import queue as queues
from svc.serving.models.queue import Caller, Callers, Outcome, PendingQuery, Queue, fail, rank_groups, require_all

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


async def test_every_key_has_the_same_number_of_turns() -> None:
    """A query of a key waits for one query of each other key, however long that key's queue is."""
    turns = Callers()
    turns.append("a", caller("a", 256))
    assert turns.weight == 256
    assert turns.weight_ahead("b", 1) == 1
    assert turns.weight_ahead("b", 100) == 100
    assert turns.weight_ahead("a", 1) == 1
    turns.append("c", caller("c", 10, limit=100))
    assert turns.weight_ahead("b", 2) == 2 + 2 * 4
    assert turns.weight_ahead("a", 300) == 256 + 10 * 4


async def test_queries_left_over_by_a_call_are_in_the_next_one() -> None:
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


FAULTY = 13


class Echo:
    """Answers each query with its own user. An invalid query fails the whole call, as in a scorer."""

    def rank(self, queries: Sequence[Query]) -> list[Ranking]:
        if any(query.user == FAULTY for query in queries):
            raise MemoryError
        return [Ranking(np.array([query.user], np.int32), np.array([1.0])) for query in queries]


def ask(user: int, limit: int = 10) -> Query:
    return Query(limit=limit, user=user)


async def test_a_caller_gets_its_rankings_in_order_after_the_last_one() -> None:
    """The order holds if a taken query returns to the queue, too."""
    caller = Caller([ask(1), ask(2, 500), ask(3)])
    assert (caller.cost, caller.key, caller.has_begun) == (Cost.LONG, None, False)
    first = caller.take(2)
    assert [asked.cost for asked in first] == [Cost.PLAIN, Cost.LONG]
    caller.put_back(first.pop().position)
    for taken in (first, caller.take(5)):
        assert not caller.done.is_set()
        assert caller.has_begun
        ((outcomes, _),) = rank_groups(Echo(), [[asked.query for asked in taken]])
        for asked, outcome in zip(taken, outcomes, strict=True):
            caller.give(asked.position, outcome)
    assert caller.waiting == 0
    assert caller.done.is_set()
    assert [int(ranking.items[0]) for ranking in caller.rankings()] == [1, 2, 3]


async def test_a_caller_with_several_invalid_queries_gets_the_first_error() -> None:
    caller = Caller([ask(1), ask(2)])
    caller.give(0, ValueError("first"))
    assert caller.done.is_set()
    fail([caller])
    with pytest.raises(ValueError, match="first"):
        caller.rankings()
    stopped = Caller([ask(1)])
    fail([stopped])
    with pytest.raises(RecipeUnavailable):
        stopped.rankings()


def test_only_the_invalid_query_of_a_group_fails() -> None:
    ((outcomes, seconds), (others, _)) = rank_groups(Echo(), [[ask(1), ask(FAULTY), ask(2)], [ask(3)]])
    assert [type(outcome) for outcome in outcomes] == [Ranking, MemoryError, Ranking]
    assert isinstance(others[0], Ranking)
    assert seconds >= 0


def test_no_group_is_scored_after_the_time_limit_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first group of a call is always scored, however long it takes."""
    clock = iter(range(100))
    monkeypatch.setattr(queues.time, "thread_time", lambda: next(clock))
    groups = [[ask(user)] for user in range(9)]
    assert [seconds for _, seconds in rank_groups(Echo(), groups, 3.5)] == [1] * 4
    assert len(rank_groups(Echo(), groups, 0.0)) == 1


def test_a_model_that_returns_too_few_rankings_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="1 of 2"):
        require_all([Ranking(np.empty(0, np.int32), np.empty(0))], 2)

"""Dear questions keep nobody waiting: they have a thread of their own, and callers take turns there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pytest
import trio
import trio.testing

from svc.errors import RecipeUnavailable
from svc.model.ranking.item_sets import ItemSet
from svc.model.ranking.query import Query, Ranking
from svc.model.ranking.rerank import Boost, Rules
from svc.serving.models import calls, lanes
from svc.serving.models.costs import PLAIN, kind_of
from svc.serving.models.dear import CALL_S
from svc.serving.models.lanes import BULK_SLICE, Lane
from svc.serving.models.threads import ScoringThreads

pytestmark = pytest.mark.anyio
BOOSTED = Query(limit=10, user=1, rules=Rules(boosts=(Boost(ItemSet.of_columns(np.arange(3), 10), 2.0),)))
DIVERSE = Query(limit=1000, user=1, rules=Rules(diversity=0.5))


def boosted(user: int) -> Query:
    return BOOSTED._replace(user=user)


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    """The clock jumps at once."""
    return ("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})


class Watched:
    """Answers each query with its own user; notes each call with its users and whether the event loop made it.

    Its calls take processor time on a clock of its own: `plain_s` for a question without rules, else `dear_s`.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, plain_s: float = 1e-4, dear_s: float = 5e-3) -> None:
        self.calls: list[list[int]] = []
        self.on_the_loop: list[bool] = []
        self._plain_s, self._dear_s = plain_s, dear_s
        self._now = 0.0
        for module in (calls, lanes):
            monkeypatch.setattr(module, "time", self)

    def thread_time(self) -> float:
        return self._now

    def rank(self, queries: Sequence[Query]) -> list[Ranking]:
        self._now += sum(self._plain_s if query.rules is None else self._dear_s for query in queries)
        self.calls.append([query.user for query in queries])
        self.on_the_loop.append(threading.current_thread() is threading.main_thread())
        return [Ranking(np.array([query.user], np.int32), np.array([1.0])) for query in queries]


class Threads:
    """Threads in virtual time: a plain question takes `plain_s`, a boosted one `dear_s`."""

    def __init__(self, plain_s: float, dear_s: float) -> None:
        self.seconds = {False: plain_s, True: dear_s}
        self._limiters = {False: trio.CapacityLimiter(1), True: trio.CapacityLimiter(1)}

    async def run(self, function: Callable[..., Any], *arguments: Any, dear: bool = False, **_: Any) -> Any:
        async with self._limiters[dear]:
            await trio.sleep(self.seconds[dear] * sum(map(len, arguments[1])))
            return function(*arguments)


def known_costs(lane: Lane, plain_s: float, dear_s: float) -> None:
    for _ in range(20):
        lane._costs.learn(PLAIN, 1, plain_s)
        lane._costs.learn(kind_of(BOOSTED), 1, dear_s)


async def test_a_plain_question_does_not_wait_for_dear_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a batch of 256 boosted questions is scored, plain ones are answered as fast as alone."""
    lane = Lane(Watched(monkeypatch, 0.002, 0.1), cast(ScoringThreads, Threads(0.002, 0.1)))
    ended: list[float] = []

    async def batch() -> None:
        await lane.rank([boosted(user) for user in range(256)])
        ended.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: lane.run(task_status=task_status))
        nursery.start_soon(batch)
        for user in range(100):
            await trio.sleep(0.05)
            began = trio.current_time()
            await lane.rank([Query(limit=100, user=user)])
            assert trio.current_time() - began <= 0.003
        assert not ended
        lane.close()
    assert ended


async def test_the_first_of_a_kind_is_scored_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is known of its cost until it was measured."""
    model = Watched(monkeypatch, CALL_S / 1000, CALL_S / 100)
    lane = Lane(model, ScoringThreads(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lane.rank, [boosted(user) for user in range(20)])
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(lane.run)
        lane.close()
    assert [len(call) for call in model.calls] == [1, 19]


async def test_a_call_takes_as_many_as_its_time_allows_and_callers_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single question goes with the first one of a batch, not behind its last."""
    model = Watched(monkeypatch, CALL_S / 100, CALL_S / 4.5)
    lane = Lane(model, ScoringThreads(1))
    known_costs(lane, CALL_S / 100, CALL_S / 4.5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lane.rank, [boosted(user) for user in range(10)])
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(lane.rank, [boosted(100)])
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(lane._dear.run, lane._score_dear)
        lane.close()
        await trio.testing.wait_all_tasks_blocked()
    assert model.calls[0] == [0, 100, 1, 2]
    assert sorted(user for call in model.calls for user in call) == [*range(10), 100]


async def test_a_batch_of_both_is_answered_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    lane = Lane(Watched(monkeypatch), ScoringThreads(1))
    queries = [boosted(user) if user % 3 else Query(limit=10, user=user) for user in range(50)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lane.run)
        rankings = await lane.rank(queries)
        lane.close()
        assert [int(ranking.items[0]) for ranking in rankings] == list(range(50))
        closed = await lane.rank(queries)
        assert [int(ranking.items[0]) for ranking in closed] == list(range(50))


async def test_a_question_with_rules_is_never_scored_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """However cheap plain ones are; alone, beside others, and on a lane that is closed."""
    model = Watched(monkeypatch)
    lane = Lane(model, ScoringThreads(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lane.run)
        for _ in range(20):
            await lane.rank([Query(limit=10, user=1)], alone=True)
        model.on_the_loop.clear()
        for query in (boosted(1), DIVERSE, Query(limit=10, user=1, explain=3)):
            await lane.rank([query], alone=True)
            await lane.rank([query])
        lane.close()
    await lane.rank([boosted(1)], alone=True)
    assert model.on_the_loop == [False] * 7


async def test_a_caller_that_leaves_takes_its_questions_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were not taken yet are never scored."""
    model = Watched(monkeypatch)
    lane = Lane(model, ScoringThreads(1))
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(0):
            await lane.rank([boosted(1), Query(limit=10, user=2)] * BULK_SLICE)
        nursery.start_soon(lane.run)
        lane.close()
    assert not model.calls


async def test_a_cancelled_queue_fails_those_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    lane = Lane(Watched(monkeypatch), ScoringThreads(1))
    refused: list[bool] = []

    async def client() -> None:
        with pytest.raises(RecipeUnavailable):
            await lane.rank([boosted(1)] * 3)
        refused.append(True)

    async with trio.open_nursery() as clients:
        clients.start_soon(client)
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as lanes:
            lanes.cancel_scope.cancel()
            lanes.start_soon(lane._dear.run, lane._score_dear)
    assert refused


async def test_the_expected_wait_counts_each_caller_once_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single question waits for one of each batch, and a batch for as much of others as it costs itself."""
    dear_s = CALL_S
    lane = Lane(Watched(monkeypatch, 0.001, dear_s), cast(ScoringThreads, Threads(0.001, dear_s)))
    known_costs(lane, 0.001, dear_s)
    assert lane.dear_wait_s([boosted(1)]) == 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lane.run)
        for _ in range(3):
            nursery.start_soon(lane.rank, [boosted(1)] * 256)
        await trio.sleep(20 * dear_s)
        costs = lane._costs.seconds(BOOSTED)
        assert lane.dear_wait_s([Query(limit=10, user=1)]) == 0
        assert 0 < lane.dear_wait_s([boosted(1)]) <= 5 * dear_s
        assert lane.dear_wait_s([boosted(1)] * 100) > 200 * costs
        nursery.cancel_scope.cancel()

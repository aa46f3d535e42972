"""Lanes under virtual time: batches form, callers leave, models fail, and nobody gets another's answer."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from collections.abc import Sequence

import numpy as np
import pytest
import trio
import trio.testing

from svc.errors import RecipeUnavailable
from svc.model.ranking.query import Query, Ranking
from svc.serving.models.costs import PLAIN, PLAIN_SEEDS
from svc.serving.models.lanes import (
    ANSWERED_A_TURN,
    ANSWERED_WHILE_OTHERS_WAIT,
    BULK_SLICE,
    MAX_BATCH,
    Lane,
)
from svc.serving.models.threads import ScoringThreads

pytestmark = pytest.mark.anyio

POISON = 13


class Echo:
    """Answers each query with its own user; raises for a poisoned one, as a scorer does: the whole call fails."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def rank(self, queries: Sequence[Query]) -> list[Ranking]:
        self.sizes.append(len(queries))
        if any(query.user % 100 == POISON for query in queries):
            raise MemoryError("out of memory")
        return [Ranking(np.array([query.user], np.int32), np.array([float(query.user)])) for query in queries]


def ask(user: int) -> Query:
    return Query(limit=1, user=user)


def users(rankings: list[Ranking]) -> list[int]:
    return [int(ranking.items[0]) for ranking in rankings]


async def test_a_request_alone_goes_straight_through() -> None:
    """One query is scored by itself, without waiting for others."""
    model = Echo()
    lane = Lane(model, ScoringThreads(1))
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: lane.run(task_status=task_status))
        assert users(await lane.rank([ask(7)])) == [7]
        lane.close()
    assert model.sizes == [1]


@pytest.mark.parametrize("others_wait", [False, True])
async def test_the_answers_of_a_batch_are_given_a_few_at_a_time(others_wait: bool) -> None:
    """No turn of the event loop has more callers to encode and send for, so whoever else waits gets in between."""
    lane = Lane(Echo(), ScoringThreads(1))
    callers = POISON if others_wait else 3 * ANSWERED_A_TURN
    turns = [0]

    class Turns(trio.abc.Instrument):
        def before_io_wait(self, timeout: float) -> None:
            turns.append(0)

    async def caller(user: int) -> None:
        await lane.rank([ask(100 * user)])
        turns[-1] += 1

    async with trio.open_nursery() as nursery:
        for user in range(callers):
            nursery.start_soon(caller, user)
        if others_wait:
            nursery.start_soon(lane.rank, [ask(1)] * 2 * MAX_BATCH)
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(instrument := Turns())
        await nursery.start(lambda task_status: lane.run(task_status=task_status))
        lane.close()
    trio.lowlevel.remove_instrument(instrument)
    assert sum(turns) == callers
    assert max(turns) == (ANSWERED_WHILE_OTHERS_WAIT if others_wait else ANSWERED_A_TURN)


async def test_requests_that_wait_together_are_scored_together() -> None:
    """All that wait when the lane looks make one batch, of at most 256 queries."""
    model = Echo()
    lane = Lane(model, ScoringThreads(1))
    answers: dict[int, list[int]] = {}

    async def client(user: int) -> None:
        answers[user] = users(await lane.rank([ask(user)]))

    async with trio.open_nursery() as nursery:
        for user in range(300):
            nursery.start_soon(client, user * 100)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(lane.run)
        lane.close()
    assert model.sizes == [MAX_BATCH, 300 - MAX_BATCH]
    assert answers == {user * 100: [user * 100] for user in range(300)}


async def test_single_requests_go_before_batches() -> None:
    """A batch is scored in slices, with whoever asks for one user in front."""
    model = Echo()
    lane = Lane(model, ScoringThreads(1))
    order: list[str] = []

    async def client(name: str, queries: list[Query]) -> None:
        assert users(await lane.rank(queries)) == [query.user for query in queries]
        order.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(client, "batch", [ask(user * 100) for user in range(256)])
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(client, "single", [ask(1)])
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(lane.run)
        lane.close()
    assert order == ["single", "batch"]
    assert model.sizes == [1 + BULK_SLICE, BULK_SLICE, BULK_SLICE, BULK_SLICE]


async def test_no_answer_goes_astray_among_thousands() -> None:
    """Thousands of interleaved requests, a third cancelled, some failing: each gets its own answer or error."""
    rng = random.Random(5)
    lane = Lane(Echo(), ScoringThreads(2))
    outcomes = {"ok": 0, "failed": 0, "left": 0}

    async def client(number: int) -> None:
        wanted = [number * 1000 + place for place in range(1 if rng.random() < 0.8 else rng.randint(2, 256))]
        if rng.random() < 0.05:
            wanted[rng.randrange(len(wanted))] = number * 1000 + 100 * rng.randint(0, 9) + POISON
        queries = [ask(user) for user in wanted]
        poisoned = any(user % 100 == POISON for user in wanted)
        await trio.sleep(rng.randrange(20) / 10)
        with trio.move_on_after(rng.choice([0, 0.05, 60])) as scope:
            try:
                assert users(await lane.rank(queries)) == wanted
            except MemoryError:
                assert poisoned
                outcomes["failed"] += 1
            else:
                assert not poisoned
                outcomes["ok"] += 1
        outcomes["left"] += scope.cancelled_caught

    async with trio.open_nursery() as lanes:
        lanes.start_soon(lane.run)
        async with trio.open_nursery() as clients:
            for number in range(3000):
                clients.start_soon(client, number)
        lane.close()
    assert sum(outcomes.values()) == 3000
    assert min(outcomes.values()) > 50


async def test_singles_that_wait_together_need_no_thread_once_that_is_known_to_be_cheap() -> None:
    """The cost of as many together decides; a batch, which is scored slice after slice, never keeps the event loop."""
    threads: list[tuple[int, bool]] = []

    class Watched(Echo):
        def rank(self, queries: Sequence[Query]) -> list[Ranking]:
            threads.append((len(queries), threading.current_thread() is not threading.main_thread()))
            return super().rank(queries)

    lane = Lane(Watched(), ScoringThreads(1))
    async with trio.open_nursery() as lanes:
        lanes.start_soon(lane.run)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(100):
            async with trio.open_nursery() as clients:
                for user in range(4):
                    clients.start_soon(lane.rank, [ask(user)])
            await lane.rank([ask(user) for user in range(4)])
        lane.close()
    assert threads[0] == (4, True)
    assert threads[-2] == (4, False)
    assert threads[1::2] == [(4, True)] * 100


async def test_a_caller_alone_is_answered_without_a_task_switch() -> None:
    """Once the model is known to be cheap, and only while no thread scores for the lane."""
    lane = Lane(Echo(), ScoringThreads(1))
    async with trio.open_nursery() as lanes:
        lanes.start_soon(lane.run)
        for _ in range(100):
            await lane.rank([ask(1)], alone=True)
        with trio.testing.assert_no_checkpoints():
            assert users(await lane.rank([ask(2)], alone=True)) == [2]
        with pytest.raises(MemoryError):
            await lane.rank([ask(POISON)], alone=True)
        lane.close()


@pytest.mark.parametrize(("cost_s", "at_once"), [(50e-6, True), (300e-6, False)])
async def test_beside_others_only_the_cheapest_queries_are_scored_at_once(cost_s: float, at_once: bool) -> None:
    """A dearer one waits to be scored with others; and nobody overtakes a query that waits already."""
    model = Echo()
    lane = Lane(model, ScoringThreads(1))
    lane._costs.learn(PLAIN, 1, cost_s)
    answers: list[int] = []

    async def client(user: int) -> None:
        answers.extend(users(await lane.rank([ask(user)])))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(client, 1)
        await trio.testing.wait_all_tasks_blocked()
        assert answers == [1] * at_once
        nursery.start_soon(lane.run)
        lane.close()
    assert answers == [1]


async def test_lone_cheap_queries_need_no_thread() -> None:
    """Once a model has shown that it answers at once, a lone usual query is scored where it is; others are not."""
    threads: list[bool] = []

    class Watched(Echo):
        def rank(self, queries: Sequence[Query]) -> list[Ranking]:
            threads.append(threading.current_thread() is not threading.main_thread())
            return super().rank(queries)

    lane = Lane(Watched(), ScoringThreads(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lane.run)
        for _ in range(100):
            await lane.rank([ask(1)])
        await lane.rank([Query(limit=1, seeds=np.arange(PLAIN_SEEDS, dtype=np.int32))])
        await lane.rank([Query(limit=1, seeds=np.arange(PLAIN_SEEDS + 1, dtype=np.int32))])
        await lane.rank([Query(limit=1000, user=1)])
        await lane.rank([ask(1), ask(2)])
        lane.close()
    assert threads[0]
    assert threads[99:] == [False, False, True, True, True]


async def test_a_lost_answer_is_an_error_not_a_shift() -> None:
    """A model that answers too few queries fails them: nobody gets the answer of a neighbour."""

    class Short:
        def rank(self, queries: Sequence[Query]) -> list[Ranking]:
            return []

    lane = Lane(Short(), ScoringThreads(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lane.run)
        with pytest.raises(RuntimeError, match="0 of 1"):
            await lane.rank([ask(1)])
        lane.close()


async def test_closing_finishes_what_waits() -> None:
    """close() lets the waiting requests have their answers before run() returns; later ones are scored alone."""
    lane = Lane(Echo(), ScoringThreads(1))
    answers: list[int] = []

    async def client(user: int) -> None:
        answers.extend(users(await lane.rank([ask(user)])))

    async with trio.open_nursery() as nursery:
        for user in range(5):
            nursery.start_soon(client, user)
        await trio.testing.wait_all_tasks_blocked()
        lane.close()
        await lane.run()
    assert sorted(answers) == [0, 1, 2, 3, 4]
    assert users(await lane.rank([ask(9)])) == [9]


async def test_a_cancelled_lane_turns_waiting_requests_away() -> None:
    """When the server ends, nobody hangs in a lane that no longer runs."""
    release = threading.Event()

    class Slow(Echo):
        def rank(self, queries: Sequence[Query]) -> list[Ranking]:
            release.wait()
            return super().rank(queries)

    lane = Lane(Slow(), ScoringThreads(1))
    refused: list[int] = []

    async def client(user: int) -> None:
        try:
            await lane.rank([Query(limit=1000, user=user)])
        except RecipeUnavailable:
            refused.append(user)

    async with trio.open_nursery() as clients, trio.open_nursery() as lanes:
        clients.start_soon(client, 1)
        await trio.testing.wait_all_tasks_blocked()
        lanes.start_soon(lane.run)
        await trio.testing.wait_all_tasks_blocked()
        clients.start_soon(client, 2)
        await trio.testing.wait_all_tasks_blocked()
        lanes.cancel_scope.cancel()
        release.set()
    assert refused == [2]


async def test_a_thread_that_cannot_be_started_fails_its_callers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lane goes on, and so does the server whose nursery it runs in."""
    run_sync = trio.to_thread.run_sync
    lane = Lane(Echo(), ScoringThreads(1))
    several = [ask(1), ask(2)]

    async def refused(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    async with trio.open_nursery() as nursery:
        await nursery.start(lane.run)
        monkeypatch.setattr(trio.to_thread, "run_sync", refused)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await lane.rank(several)
        monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)
        assert users(await lane.rank(several)) == [1, 2]
        lane.close()


async def test_a_closed_lane_lets_go_of_its_model_at_once() -> None:
    """Without the garbage collector, which rarely looks at all objects, and never at those that were frozen."""
    model = Echo()
    lane = Lane(model, ScoringThreads(1))
    gone = weakref.ref(model)
    gc.disable()
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(lane.run)
            await lane.rank([ask(7)])
            lane.close()
            del lane, model
            await trio.testing.wait_all_tasks_blocked()
            assert gone() is None
    finally:
        gc.enable()

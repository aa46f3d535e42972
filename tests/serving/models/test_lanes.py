"""Lanes in virtual time. A lane is the queue of queries for one model, with the calls that score them."""

from __future__ import annotations

import math
import random
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
import trio
import trio.testing

from svc.asking.costs import HEAVY_LIMIT, PLAIN_PROFILE, Cost, costs_of
from svc.errors import ApiError, Overloaded
from svc.model.ranking.item_sets import ItemSet
from svc.model.ranking.query import Query, Ranking
from svc.model.ranking.rerank import Boost, Rules
from svc.model.ranking.steps import Steps
from svc.serving.models import lanes, queue
from svc.serving.models.lanes import BULK_SLICE, CALL_S, MAX_BATCH, SLICE_S, TURN_S, Lane
from svc.serving.models.queue import ANSWERED_A_TURN, ANSWERED_WHILE_OTHERS_WAIT, Caller
from svc.serving.models.threads import ScoringThreads
from tests.serving.freed import freed

pytestmark = pytest.mark.anyio

POISON = 13


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    """Return a clock that jumps at once. Tests that name it run in virtual time."""
    return trio.testing.MockClock(autojump_threshold=0)


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, object]]:
    is_virtual = "autojump_clock" in request.fixturenames
    return ("trio", {"clock": request.getfixturevalue("autojump_clock")} if is_virtual else {})


class Echo:
    """Answers each query with its own user. A poisoned query fails the whole call, as in a scorer."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.in_thread: list[bool] = []

    def rank(self, queries: Sequence[Query]) -> list[Ranking]:
        self.sizes.append(len(queries))
        self.in_thread.append(threading.current_thread() is not threading.main_thread())
        if any(query.user % 100 == POISON for query in queries):
            raise MemoryError("out of memory")
        return [Ranking(np.array([query.user], np.int32), np.array([float(query.user)])) for query in queries]


def ask(user: int) -> Query:
    return Query(limit=1, user=user)


def users(rankings: list[Ranking]) -> list[int]:
    return [int(ranking.items[0]) for ranking in rankings]


async def test_a_single_request_is_scored_at_once() -> None:
    """A query that comes alone does not wait for others."""
    model = Echo()
    lane = Lane(model, ScoringThreads(1))
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: lane.run(task_status=task_status))
        assert users(await lane.rank([ask(7)])) == [7]
        lane.close()
    assert model.sizes == [1]


@pytest.mark.parametrize("others_wait", [False, True])
async def test_each_turn_of_the_event_loop_wakes_a_bounded_number_of_callers(others_wait: bool) -> None:
    """Woken callers encode and send their answers. The bound is lower while other callers wait."""
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
    """All waiting requests make one call of at most 256 queries."""
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
    """A batch is scored in slices, each after the waiting single requests."""
    model = Echo()
    lane = Lane(model, ScoringThreads(1))
    order: list[str] = []
    lane._costs.learn(MAX_BATCH, 1e-3)

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


@pytest.mark.parametrize("singles", [1, 30, 192, 300])
async def test_batches_get_a_quarter_of_a_call(singles: int) -> None:
    """Batches go on at the pace of single requests, even if one of their slices is expected to take long."""
    model = Echo()
    lane = Lane(model, ScoringThreads(1))
    lane._costs.learn(1, 1.0)
    async with trio.open_nursery() as nursery:
        for queries in ([ask(user * 100) for user in range(256)], *[[ask(1)]] * singles):
            nursery.start_soon(lane.rank, queries)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(lane.run)
        lane.close()
    in_call = min(singles, MAX_BATCH - BULK_SLICE)
    assert model.sizes[0] == in_call + max(in_call // 3, 1)


async def test_each_of_thousands_of_callers_gets_its_own_answer() -> None:
    """Requests interleave, a third of them is cancelled, and some fail."""
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

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lane.run)
        async with trio.open_nursery() as clients:
            for number in range(1000):
                clients.start_soon(client, number)
        lane.close()
    assert sum(outcomes.values()) == 1000
    assert min(outcomes.values()) > 15


async def test_waiting_singles_are_scored_without_a_thread_if_their_call_is_cheap() -> None:
    """The measured time of a call of this size decides. A batch is always scored in a thread."""
    model = Echo()
    lane = Lane(model, ScoringThreads(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lane.run)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(100):
            async with trio.open_nursery() as clients:
                for user in range(4):
                    clients.start_soon(lane.rank, [ask(user)])
            await lane.rank([ask(user) for user in range(4)])
        lane.close()
    assert set(model.sizes) == {4}
    assert (model.in_thread[0], model.in_thread[-2]) == (True, False)
    assert model.in_thread[1::2] == [True] * 100


async def test_a_caller_alone_is_answered_without_a_task_switch() -> None:
    """The model must have been measured as cheap. No other scoring call may be in progress."""
    lane = Lane(Echo(), ScoringThreads(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lane.run)
        for _ in range(100):
            await lane.rank([ask(1)], alone=True)
        with trio.testing.assert_no_checkpoints():
            assert users(await lane.rank([ask(2)], alone=True)) == [2]
        with pytest.raises(MemoryError):
            await lane.rank([ask(POISON)], alone=True)
        lane.close()


@pytest.mark.parametrize(("cost_s", "at_once"), [(50e-6, True), (300e-6, False)])
async def test_beside_others_only_the_cheapest_queries_are_scored_at_once(cost_s: float, at_once: bool) -> None:
    """A more expensive query waits for the lane's next call."""
    model = Echo()
    lane = Lane(model, ScoringThreads(1))
    lane._costs.learn(1, cost_s)
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


async def test_a_cheap_query_alone_is_scored_without_a_thread() -> None:
    """The model must have been measured to be cheap. Other queries need a thread."""
    model = Echo()
    lane = Lane(model, ScoringThreads(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lane.run)
        for _ in range(100):
            await lane.rank([ask(1)])
        await lane.rank([Query(limit=1, seeds=np.arange(PLAIN_PROFILE, dtype=np.int32))])
        await lane.rank([Query(limit=1, seeds=np.arange(PLAIN_PROFILE + 1, dtype=np.int32))])
        await lane.rank([Query(limit=1000, user=1)])
        await lane.rank([ask(1), ask(2)])
        lane.close()
    assert model.in_thread[0]
    assert model.in_thread[99:] == [False, False, True, True, True]


async def test_a_missing_ranking_is_an_error_of_the_whole_call() -> None:
    """If a model returns too few rankings, all callers fail, so none gets the answer of another."""

    class Short:
        def rank(self, queries: Sequence[Query]) -> list[Ranking]:
            return []

    lane = Lane(Short(), ScoringThreads(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lane.run)
        with pytest.raises(RuntimeError, match="0 of 1"):
            await lane.rank([ask(1)])
        lane.close()


async def test_a_closed_lane_answers_waiting_requests() -> None:
    """`run()` returns after these requests. The caller of a later request scores it itself."""
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


async def test_a_thread_that_cannot_be_started_fails_only_its_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lane and the server continue."""
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


async def test_a_closed_lane_frees_its_model_at_once() -> None:
    """Freeing needs no garbage collection, which is rare and skips frozen objects."""
    model = Echo()
    lane = Lane(model, ScoringThreads(1))
    gone = weakref.ref(model)
    async with trio.open_nursery() as nursery:
        await nursery.start(lane.run)
        await lane.rank([ask(7)])
        lane.close()
        del lane, model
        await freed(gone)


BOOSTED = Query(limit=10, user=1, rules=Rules(boosts=(Boost(ItemSet.of_columns(np.arange(3), 10), 2.0),)))
DIVERSE = Query(limit=HEAVY_LIMIT, user=1, rules=Rules(diversity=0.5))
HUGE = Query(limit=1000, user=2, rules=Rules(diversity=0.5))


def boosted(user: int) -> Query:
    return BOOSTED._replace(user=user)


STEP_S = 1e-3


class Costly:
    """Answers each query with its own user. A query takes `cost_s(query)` of processor time on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cost_s: Callable[[Query], float]) -> None:
        self.calls: list[list[int]] = []
        self.on_the_loop: list[bool] = []
        self.steps: list[int] = []
        self._cost_s = cost_s
        self.now = 0.0
        for module in (lanes, queue):
            monkeypatch.setattr(module, "time", self)

    def thread_time(self) -> float:
        return self.now

    def rank(self, queries: Sequence[Query]) -> list[Ranking]:
        self.now += sum(map(self._cost_s, queries))
        self.calls.append([query.user for query in queries])
        self.on_the_loop.append(threading.current_thread() is threading.main_thread())
        return [Ranking(np.array([query.user], np.int32), np.array([1.0])) for query in queries]

    def rank_steps(self, query: Query) -> Steps[Ranking]:
        steps = round(self._cost_s(query) / STEP_S)
        for _ in range(steps):
            self.now += STEP_S
            self.steps.append(query.user)
            yield
        return Ranking(np.array([query.user], np.int32), np.array([1.0]))


class Threads:
    """Two threads, for cheap and for expensive calls, whose processor time is virtual time."""

    def __init__(self, model: Costly) -> None:
        self._model = model
        self._limiters = {False: trio.CapacityLimiter(1), True: trio.CapacityLimiter(1)}

    async def run(self, function: Callable[..., Any], *arguments: Any, expensive: bool = False, **_: Any) -> Any:
        async with self._limiters[expensive]:
            if function is queue.rank_turn:
                return await self._turn(*arguments)
            began = self._model.now
            result = function(*arguments)
            await trio.sleep(self._model.now - began)
            return result

    async def _turn(self, steps: Steps[Ranking], most_s: float, turn_s: float, others_wait: Callable[[], bool]) -> Any:
        """Rank as `rank_turn` does in a thread, where it sees requests that arrive meanwhile."""
        ends = self._model.now + most_s
        while True:
            began = self._model.now
            outcome = queue.rank_turn(steps, turn_s, turn_s, others_wait)
            await trio.sleep(self._model.now - began)
            if not isinstance(outcome, queue.Unfinished) or others_wait() or self._model.now > ends:
                return outcome


def in_virtual_time(model: Costly) -> Lane:
    return Lane(model, cast(ScoringThreads, Threads(model)))


class Patient(NamedTuple):
    """A request of a key that may wait until `until_s`."""

    key: str
    until_s: float = math.inf

    def refusal(self) -> ApiError | None:
        return Overloaded() if trio.current_time() > self.until_s else None


@pytest.mark.parametrize("seed", range(12))
async def test_a_plain_query_waits_for_two_calls_at_most(
    seed: int, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """The bound holds for any cost of rules, even if expensive batches follow cheap measurements."""
    rng = random.Random(seed)
    plain_s = 10 ** rng.uniform(-5, -2.3)
    ruled_s = [10 ** rng.uniform(-6, 0.3) for _ in range(4)]
    questions = [
        Query(limit=10, user=0),
        Query(limit=1000, user=0),
        *(BOOSTED._replace(limit=limit, user=user) for limit in (10, 1000) for user in range(4)),
    ]

    def cost_s(query: Query) -> float:
        if query.rules is None:
            return plain_s * (1 if query.limit == 10 else rng.uniform(1, Cost.LONG))
        return ruled_s[query.user]

    lane = in_virtual_time(Costly(monkeypatch, cost_s))
    waits: list[float] = []

    async def batches() -> None:
        while True:
            picked = rng.sample(questions, rng.randint(1, 4))
            await lane.rank([rng.choice(picked) for _ in range(rng.choice((2, 30, 256)))])

    async with trio.open_nursery() as nursery:
        await nursery.start(lane.run)
        for _ in range(30):
            await lane.rank([Query(limit=10, user=0)])
        for _ in range(rng.randint(0, 50)):
            await lane.rank([rng.choice(questions)])
        for _ in range(4):
            nursery.start_soon(batches)
        for _ in range(40):
            await trio.sleep(rng.uniform(0, 0.1))
            began = trio.current_time()
            await lane.rank([Query(limit=10, user=0)])
            waits.append(trio.current_time() - began)
        nursery.cancel_scope.cancel()
    assert max(waits) <= 2 * CALL_S + plain_s


async def test_callers_take_turns_by_key(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """A query of one key is answered within four calls, although another key has hundreds of waiting queries."""
    lane = in_virtual_time(Costly(monkeypatch, lambda _: CALL_S))
    async with trio.open_nursery() as nursery:
        await nursery.start(lane.run)
        for _ in range(50):
            nursery.start_soon(partial(lane.rank, [boosted(1)] * 5, patience=Patient("greedy")))
        await trio.sleep(20.5 * CALL_S)
        assert 0 < lane.wait_s(costs_of([boosted(2)]), "modest") <= 3 * CALL_S
        assert lane.wait_s(costs_of([boosted(2)]), "greedy") > 20 * CALL_S
        assert lane.wait_s(costs_of([ask(2)]), "greedy") == 0
        began = trio.current_time()
        await lane.rank([boosted(2)], patience=Patient("modest"))
        assert trio.current_time() - began <= 4 * CALL_S
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("count", [1, 4])
async def test_other_keys_wait_for_one_turn_of_a_huge_query(
    count: int, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """While others wait, a query with 2,000 steps takes TURN_S at a time. Otherwise it takes CALL_S at a time."""
    model = Costly(monkeypatch, lambda query: 2000 * STEP_S if query == HUGE else 4 * STEP_S)
    lane = in_virtual_time(model)
    async with trio.open_nursery() as nursery:
        await nursery.start(lane.run)
        nursery.start_soon(partial(lane.rank, [HUGE] * count, patience=Patient("greedy", 0.5)))
        await trio.sleep(10.5 * CALL_S)
        assert len(model.steps) == pytest.approx(11 * CALL_S / STEP_S, rel=0.05), "one call at a time"
        waits = []
        for _ in range(100):
            assert lane.wait_s(costs_of([boosted(2)]), "modest") <= 2 * CALL_S
            began = trio.current_time()
            await lane.rank([boosted(2)], patience=Patient("modest"))
            waits.append(trio.current_time() - began)
        assert max(waits[1:]) <= TURN_S + 3 * STEP_S + 4 * STEP_S
        assert model.steps.count(2) < 2000 * count, "it has not ended"
        lane.close()
    assert model.steps.count(2) == 2000 * count


async def test_a_huge_query_that_is_cancelled_takes_no_further_turn(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """Its caller has left, so its steps would be for nobody. Another huge query gets all turns."""
    model = Costly(monkeypatch, lambda _: 500 * STEP_S)
    lane = in_virtual_time(model)
    async with trio.open_nursery() as nursery:
        await nursery.start(lane.run)
        with trio.move_on_after(3.5 * CALL_S):
            await lane.rank([HUGE], patience=Patient("gone"))
        taken = len(model.steps)
        assert users(await lane.rank([HUGE._replace(user=3)])) == [3]
        assert len(model.steps) <= taken + CALL_S / STEP_S + 501
        lane.close()


async def test_an_error_in_a_step_fails_only_its_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lane goes on with the next query."""

    def cost_s(query: Query) -> float:
        if query.user == POISON:
            raise MemoryError
        return STEP_S

    lane = Lane(Costly(monkeypatch, cost_s), ScoringThreads(1))
    async with trio.open_nursery() as nursery:
        await nursery.start(lane.run)
        with pytest.raises(MemoryError):
            await lane.rank([HUGE._replace(user=POISON)])
        assert users(await lane.rank([HUGE])) == [2]
        lane.close()


async def test_expensive_queries_are_scored_until_the_time_of_a_call_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of a batch stays in the queue. A single query is scored before that rest."""
    model = Costly(monkeypatch, lambda _: CALL_S / 3.5)
    lane = Lane(model, ScoringThreads(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lane.rank, [boosted(user) for user in range(6)])
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(lane.rank, [boosted(100)])
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(lane.run)
        lane.close()
    assert model.calls == [[0], [100], [1], [2], [3], [4], [5]]


async def test_an_expensive_query_whose_turn_comes_too_late_is_refused(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """In a first burst without measurements, queries in time are answered and calls in progress are finished."""
    lane = in_virtual_time(Costly(monkeypatch, lambda _: 1.6))
    answered, refused = list[float](), list[float]()

    async def client(key: str, count: int = 1) -> None:
        try:
            await lane.rank([DIVERSE] * count, patience=Patient(key, 2.0))
        except Overloaded:
            refused.append(trio.current_time())
        else:
            answered.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        await nursery.start(lane.run)
        nursery.start_soon(client, "batch", 3)
        for number in range(30):
            nursery.start_soon(client, f"k{number}")
        await trio.sleep(20)
        lane.close()
    assert len(answered) + len(refused) == 31
    assert len(answered) >= 2
    assert max(refused) <= 4
    assert sorted(answered)[-2] <= 4


async def test_a_query_with_rules_is_never_scored_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a query is scored in a thread, even if it is alone, the lane is closed or plain queries are cheap."""
    model = Costly(monkeypatch, lambda _: 1e-5)
    lane = Lane(model, ScoringThreads(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lane.run)
        for _ in range(20):
            await lane.rank([ask(1)], alone=True)
        model.on_the_loop.clear()
        for query in (boosted(1), DIVERSE, Query(limit=10, user=1, explain=3)):
            await lane.rank([query], alone=True)
            await lane.rank([query])
        lane.close()
    await lane.rank([boosted(1)], alone=True)
    assert model.on_the_loop == [False] * 7


async def test_a_batch_of_cheap_and_expensive_queries_is_answered_in_order() -> None:
    """A closed lane keeps the order, too."""
    lane = Lane(Echo(), ScoringThreads(1))
    for queries in (
        [boosted(100 * user) if user % 3 else ask(100 * user) for user in range(50)],
        [Query(limit=1 if user % 3 else 100, user=100 * user) for user in range(150)],
    ):
        async with trio.open_nursery() as nursery:
            open_lane = Lane(Echo(), ScoringThreads(1))
            nursery.start_soon(open_lane.run)
            assert users(await open_lane.rank(queries)) == [query.user for query in queries]
            open_lane.close()
        lane._cheap.closing = True
        assert users(await lane.rank(queries)) == [query.user for query in queries]


async def test_waiting_queries_of_a_cancelled_caller_are_never_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Costly(monkeypatch, lambda _: 1e-3)
    lane = Lane(model, ScoringThreads(1))
    async with trio.open_nursery() as nursery:
        for query in (boosted(1), ask(2)):
            with trio.move_on_after(0):
                await lane.rank([query] * BULK_SLICE)
        nursery.start_soon(lane.run)
        lane.close()
    assert not model.calls


async def test_the_expected_wait_adds_up_the_calls_before_a_new_query(autojump_clock: trio.testing.MockClock) -> None:
    """A single query waits for a slice of batches in each call, a batch for all batches and later single queries."""
    lane = Lane(Echo(), ScoringThreads(1))
    waiting, room = lane._cheap, MAX_BATCH - BULK_SLICE
    waiting.pace.each_s = 1e-4
    assert lane.expected_wait_s() == lane.expected_wait_s(5) == 0
    waiting.running, waiting._began_at = 10, trio.current_time()
    await trio.sleep(4e-4)
    assert lane.expected_wait_s() == lane.expected_wait_s(5) == pytest.approx((10 - 4 + 10) * 1e-4)
    waiting.running = 0
    waiting.add(Caller([ask(1)] * 100), waiting.batches)
    assert lane.is_free_of_singles
    assert lane.expected_wait_s() == lane.expected_wait_s(5) == pytest.approx(0.01)
    waiting.add(Caller([ask(1)] * 1900), waiting.batches)
    assert lane.expected_wait_s() == pytest.approx(SLICE_S)
    for count in range(1, 5 * room):
        waiting.add(Caller([ask(1)]), waiting.singles)
        if count == room // 2:
            assert lane.expected_wait_s() == pytest.approx(count * 1e-4 + SLICE_S)
            assert lane.expected_wait_s(5) == pytest.approx(count * 1e-4 + 0.2 + 1.5 * (0.2 + 5e-4))
        if count == room:
            assert lane.expected_wait_s() == pytest.approx(count * 1e-4 + 2 * SLICE_S)
    assert not lane.is_free_of_singles
    assert lane.expected_wait_s(5) == pytest.approx(count * 1e-4 + 0.2 + 3 * (0.2 + 5e-4))
    waiting.pace.each_s = 1e-3
    assert lane.expected_wait_s() == pytest.approx(count * 1e-3 + count * 1e-3 / 3)

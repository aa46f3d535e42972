"""The scheduler of turns: probes enter first, each rank enters in every turn, and turns stay short."""

from __future__ import annotations

import math
import random
import time
from itertools import permutations
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from svc.serving.transport import pacing
from svc.serving.transport.pacing import (
    FEWEST_A_TURN,
    MOST_A_TURN,
    PROBES_A_TURN,
    REFUSED_AT_ONCE,
    REFUSED_EVERY_S,
    REFUSED_SOONEST_S,
    Rank,
    TurnScheduler,
)

pytestmark = pytest.mark.anyio
MANY = 200


class Turns(trio.abc.Instrument):
    """Counts the turns of the event loop."""

    count = 0

    def after_io_wait(self, timeout: float, /) -> None:
        self.count += 1


async def entering(scheduler: TurnScheduler, ranks: list[Rank], work_s: float = 0.0) -> list[tuple[int, Rank]]:
    """Let one connection of each rank enter at the same time. Return turn and rank of each, in the order of entry."""
    order: list[tuple[int, Rank]] = []
    turns = Turns()
    trio.lowlevel.add_instrument(turns)

    async def enter(rank: Rank) -> None:
        await scheduler.enter(rank)
        order.append((turns.count, rank))
        ends = time.perf_counter() + work_s
        while time.perf_counter() < ends:
            pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(scheduler.run)
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as clients:
            for rank in ranks:
                clients.start_soon(enter, rank)
        nursery.cancel_scope.cancel()
    trio.lowlevel.remove_instrument(turns)
    return order


async def test_a_few_enter_at_once() -> None:
    """FEWEST_A_TURN connections all enter in the same turn."""
    order = await entering(TurnScheduler(), [Rank.KNOWN] * FEWEST_A_TURN)
    assert len({turn for turn, _ in order}) == 1


async def test_each_turn_lets_in_a_bounded_number() -> None:
    """All connections enter after enough turns."""
    order = await entering(TurnScheduler(), [Rank.KNOWN] * MANY)
    turns = [turn for turn, _ in order]
    assert len(order) == MANY
    assert max(turns.count(turn) for turn in set(turns)) <= MOST_A_TURN


async def test_long_turns_do_not_let_more_in() -> None:
    """After several long turns, exactly FEWEST_A_TURN connections enter in each turn."""
    order = await entering(TurnScheduler(), [Rank.KNOWN] * 100, work_s=pacing.SHORT_TURN_S)
    turns = [turn for turn, _ in order]
    assert [turns.count(turn) for turn in sorted(set(turns))][-5:-1] == [FEWEST_A_TURN] * 4


async def test_short_turns_let_more_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each full short turn raises the number of connections that enter by one."""
    monkeypatch.setattr(pacing, "SHORT_TURN_S", 10.0)
    scheduler = TurnScheduler()
    scheduler._share = FEWEST_A_TURN
    turns = [turn for turn, _ in await entering(scheduler, [Rank.KNOWN] * MANY)]
    counts = [turns.count(turn) for turn in sorted(set(turns))]
    assert counts[1:6] == [FEWEST_A_TURN + more for more in range(1, 6)]


@pytest.mark.parametrize(("many", "one"), list(permutations(Rank, 2)))
async def test_a_single_connection_of_another_rank_does_not_wait_for_many(many: Rank, one: Rank) -> None:
    """The last connection to come enters within two turns if its rank differs from that of the others."""
    order = await entering(TurnScheduler(), [many] * MANY + [one])
    place = order.index(next(entry for entry in order if entry[1] is one))
    assert place <= 2 * (MOST_A_TURN + PROBES_A_TURN)


async def test_ranks_enter_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known clients enter sooner than newcomers, and newcomers sooner than further requests of a connection."""
    scheduler = TurnScheduler()
    monkeypatch.setattr(pacing, "SHORT_TURN_S", 10.0)
    scheduler._share = 10
    ranks = [Rank.GOING_ON, Rank.NEWCOMER, Rank.KNOWN] * 30
    order = [rank for _, rank in await entering(scheduler, ranks)]
    last = {rank: max(place for place, found in enumerate(order) if found is rank) for rank in set(order)}
    half = {rank: [place for place, found in enumerate(order) if found is rank][15] for rank in last}
    assert half[Rank.KNOWN] < half[Rank.NEWCOMER] < half[Rank.GOING_ON]


async def test_a_cancelled_wait_is_removed() -> None:
    """Connections behind the cancelled one enter."""
    scheduler = TurnScheduler()
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as waiting:
                for _ in range(MANY):
                    waiting.start_soon(scheduler.enter, Rank.KNOWN)
                await trio.lowlevel.checkpoint()
                scope.cancel()
        assert not any(scheduler._queues.values())
        nursery.start_soon(scheduler.run)
        with trio.fail_after(5):
            for _ in range(3):
                await scheduler.enter(Rank.KNOWN)
        nursery.cancel_scope.cancel()


async def test_refusals_enter_a_few_at_a_time() -> None:
    """Refusals neither wait for admitted requests nor take their places."""
    ranks = [Rank.KNOWN] * MANY + [Rank.REFUSED] * MANY
    began = trio.current_time()
    order = await entering(TurnScheduler(), ranks)
    turns: dict[int, list[Rank]] = {}
    for turn, rank in order:
        turns.setdefault(turn, []).append(rank)
    assert sum(map(len, turns.values())) == 2 * MANY
    assert {ranks.count(Rank.REFUSED) for ranks in turns.values()} <= {0, REFUSED_AT_ONCE, MANY % REFUSED_AT_ONCE}
    assert trio.current_time() - began == pytest.approx((MANY - 1) // REFUSED_AT_ONCE * REFUSED_EVERY_S)
    assert [rank for _, rank in order].index(Rank.REFUSED) < MANY


@pytest.mark.parametrize("within_s, pause_s", [(math.inf, REFUSED_EVERY_S), (0.05, 0.004), (0.0, REFUSED_SOONEST_S)])
async def test_refusals_enter_at_a_pace_that_keeps_their_longest_wait(within_s: float, pause_s: float) -> None:
    """The pause before the next refusals is shorter if more wait, within its bounds."""
    scheduler = TurnScheduler(within_s)
    entered_at: list[float] = []

    async def enter() -> None:
        await scheduler.enter(Rank.REFUSED)
        entered_at.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        for _ in range(MANY):
            nursery.start_soon(enter)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(scheduler.run)
        await trio.sleep(1.0)
        nursery.cancel_scope.cancel()
    assert len(entered_at) == MANY
    assert entered_at[REFUSED_AT_ONCE] - entered_at[REFUSED_AT_ONCE - 1] == pytest.approx(pause_s)


def test_turns_of_refusals_alone_do_not_change_the_pace() -> None:
    """Otherwise a server that is busy with refusals would estimate longer waits and refuse more."""
    clock = trio.testing.MockClock()

    async def run() -> float:
        scheduler = TurnScheduler()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scheduler.run)
            for _ in range(100 * REFUSED_AT_ONCE):
                nursery.start_soon(scheduler.enter, Rank.REFUSED)
            for _ in range(10):
                nursery.start_soon(scheduler.enter, Rank.KNOWN)
                for _ in range(4):
                    await trio.lowlevel.checkpoint()
                    clock.jump(1.0)
            assert scheduler._queues[Rank.REFUSED]
            nursery.cancel_scope.cancel()
        return scheduler.expected_wait_s(Rank.KNOWN) + scheduler._pace.each_s

    assert trio.run(run, clock=clock) == 0.0


class Crowd:
    """Enters with work in virtual time, and records the expected waits of each turn."""

    def __init__(self) -> None:
        self.scheduler = TurnScheduler()
        self.waits: list[tuple[float, float]] = []

    async def enter(self, rank: Rank, work_s: float) -> None:
        await self.scheduler.enter(rank)
        self.waits.append((self.scheduler.expected_wait_s(Rank.KNOWN), self.scheduler.expected_wait_s(Rank.NEWCOMER)))
        assert self.scheduler.expected_wait_s(Rank.PROBE) == 0
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, trio.testing.MockClock)
        clock.jump(work_s)

    async def during(self, *loads: list[tuple[Rank, float]]) -> None:
        """Enter with all connections of a load at once. The next load starts when all have entered."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.scheduler.run)
            await trio.testing.wait_all_tasks_blocked()
            for load in loads:
                async with trio.open_nursery() as clients:
                    for rank, work_s in load:
                        clients.start_soon(self.enter, rank, work_s)
            nursery.cancel_scope.cancel()


@pytest.fixture
def virtual_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure turns by the virtual clock, so that the machine's speed does not decide how many enter in a turn."""
    monkeypatch.setattr(pacing, "time", SimpleNamespace(perf_counter=trio.current_time))


@pytest.mark.usefixtures("virtual_turns")
async def test_the_expected_wait_grows_with_the_queue() -> None:
    """The expected wait is 0 for an empty queue, and known after a few measured turns."""
    crowd, work_s = Crowd(), 3e-3
    await crowd.during([(rank, work_s) for rank in [Rank.KNOWN] * MANY + [Rank.NEWCOMER] * MANY])
    known, newcomer = crowd.waits[MANY * 3 // 4]  # trio shuffles tasks: known from the 105th to 121st on
    assert newcomer > known > work_s * MANY / 20
    assert crowd.waits[-1] == (0, 0)


async def test_all_requests_ahead_count_for_the_expected_wait() -> None:
    """Known clients wait for known clients only.

    Others wait for all requests but refused ones. A probe does not wait.
    """
    scheduler = TurnScheduler()
    for _ in range(100):
        scheduler._pace.learn(1.0, 1)
    ahead = {Rank.KNOWN: 3, Rank.NEWCOMER: 40, Rank.GOING_ON: 500, Rank.REFUSED: 60}
    async with trio.open_nursery() as nursery:
        for _ in range(MOST_A_TURN):
            await scheduler.enter(Rank.KNOWN)
        for rank, count in ahead.items():
            for _ in range(count):
                nursery.start_soon(scheduler.enter, rank)
        await trio.testing.wait_all_tasks_blocked()
        waits = [scheduler.expected_wait_s(rank) for rank in (Rank.PROBE, Rank.KNOWN, Rank.NEWCOMER, Rank.GOING_ON)]
        nursery.cancel_scope.cancel()
    assert waits == pytest.approx([0, 3, 543, 543])


@pytest.mark.usefixtures("virtual_turns")
@pytest.mark.parametrize("paused_s", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("seed", range(5))
async def test_one_pause_of_the_machine_does_not_change_the_pace(paused_s: float, seed: int) -> None:
    """No expected wait is ever more than twice that of a machine without the pause."""
    work_s, pick = 3e-3, random.Random(seed)
    load = [(Rank.KNOWN, work_s)] * MANY
    usual, paused = Crowd(), Crowd()
    await usual.during(load, load)
    loads = [*load, *load]
    loads[pick.randrange(len(loads))] = (Rank.KNOWN, paused_s)
    await paused.during(loads[:MANY], loads[MANY:])
    assert max(paused.waits)[0] < 2 * max(usual.waits)[0]


async def test_keys_take_turns_however_many_connections_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key with two connections beside one with 64 enters five times as often as by its share of the connections."""
    monkeypatch.setattr(pacing, "SHORT_TURN_S", 0.0)  # all turns are long, so each lets in FEWEST_A_TURN
    scheduler, turns, entered = TurnScheduler(), Turns(), list[tuple[int, str]]()

    async def ask(key: str) -> None:
        while True:
            await scheduler.enter(Rank.KNOWN, key)
            entered.append((turns.count, key))
            await trio.lowlevel.checkpoint()  # the client reads the answer and asks again

    trio.lowlevel.add_instrument(turns)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scheduler.run)
        await trio.testing.wait_all_tasks_blocked()
        for key in ["many"] * 64 + ["few"] * 2:
            nursery.start_soon(ask, key)
        while turns.count < 200:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    trio.lowlevel.remove_instrument(turns)
    steady = [key for turn, key in entered if turn >= 50]
    assert steady.count("few") >= 5 * len(steady) * 2 / 66


async def test_the_expected_wait_of_a_key_counts_its_turns() -> None:
    """A key without a waiting connection waits for one of each other key. Its further ones wait for more."""
    scheduler = TurnScheduler()
    for _ in range(100):
        scheduler._pace.learn(1.0, 1)
    async with trio.open_nursery() as nursery:
        for _ in range(MOST_A_TURN):
            await scheduler.enter(Rank.KNOWN)
        for key in ["many"] * 64 + ["few"]:
            nursery.start_soon(scheduler.enter, Rank.KNOWN, key)
        await trio.testing.wait_all_tasks_blocked()
        waits = [scheduler.expected_wait_s(Rank.KNOWN, key) for key in ("many", "few", "new")]
        nursery.cancel_scope.cancel()
    assert waits == pytest.approx([65, 3, 2])

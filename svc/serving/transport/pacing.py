"""Pacing of the event loop: only a few waiting requests begin in each turn, so turns stay short.

Trio runs all ready tasks, in any order, before it polls its sockets again. Without pacing, a health probe would wait
for all clients that send at the same moment, in each turn that its answer takes.
"""

from __future__ import annotations

import time
from collections import deque
from enum import IntEnum

import trio

from svc.serving.admission import Pace

FEWEST_A_TURN, MOST_A_TURN = 4, 32
"""Bounds of the entries in one turn, without probes.

The number grows by one after a full turn shorter than SHORT_TURN_S, and is halved after a longer turn."""
SHORT_TURN_S = 1e-3
# At three times the capacity and 41,000 items, answers keep 73 to 80% of the capacity instead of 35 to 59%.
REFUSED_AT_ONCE, REFUSED_EVERY_S = 8, 5e-3
"""Pace of refusals, low enough that they take a small part of the time from admitted requests."""
PROBES_A_TURN = 2
"""Probes in one turn. The bound keeps a flood of probes from shutting other clients out."""


class Rank(IntEnum):
    """Priority of an entry, the lowest number first. Each turn admits at least one KNOWN, NEWCOMER and GOING_ON."""

    PROBE = 0
    KNOWN = 1
    """A connection that has been answered before."""
    NEWCOMER = 2
    # The last rank, because 500 dripping bodies made all others wait.
    GOING_ON = 3
    """A connection that sends on without waiting for its answer: dripping bodies, pipelined requests."""
    REFUSED = 4
    """A request that is refused because its turn would come too late (see REFUSED_EVERY_S)."""


_ANSWERED = (Rank.KNOWN, Rank.NEWCOMER, Rank.GOING_ON)


class TurnScheduler(trio.abc.Instrument):
    """The queues in which connections wait before they parse received bytes.

    It is an instrument of the event loop while `run()` runs.
    """

    def __init__(self) -> None:
        self._queues: dict[Rank, deque[trio.lowlevel.Task]] = {rank: deque() for rank in Rank}
        self._request_waits, self._refused_waits = trio.Event(), trio.Event()
        self._share = MOST_A_TURN
        self._entered = self._probes = 0
        self._turn_began = 0.0
        self._pace = Pace()
        self._let_in_at, self._let_in_count = 0.0, 0

    @property
    def crowded(self) -> bool:
        """True while newcomers wait.

        The acceptor then leaves further connections in the kernel's queue, where they cost the least.
        """
        return bool(self._queues[Rank.NEWCOMER])

    def expected_wait_s(self, rank: Rank) -> float:
        """Return the expected seconds before a request of this rank has its turn.

        The result is 0 for probes, and while no request waits.
        """
        if rank is Rank.PROBE:
            return 0.0
        ahead = len(self._queues[Rank.KNOWN])
        if rank is not Rank.KNOWN:
            ahead += len(self._queues[Rank.NEWCOMER]) + len(self._queues[Rank.GOING_ON])
        return ahead * self._pace.each_s

    async def enter(self, rank: Rank) -> None:
        """Return at once if few have entered in this turn and no request waits, else in a later turn."""
        if rank is Rank.PROBE and self._probes < PROBES_A_TURN:
            self._probes += 1
        elif rank in _ANSWERED and self._entered < self._share and not self._request_waits.is_set():
            self._entered += 1
        else:
            await self._wait(self._queues[rank], self._refused_waits if rank is Rank.REFUSED else self._request_waits)

    async def _wait(self, queue: deque[trio.lowlevel.Task], has_waiter: trio.Event) -> None:
        task = trio.lowlevel.current_task()
        queue.append(task)
        has_waiter.set()

        def abort(_: object) -> trio.lowlevel.Abort:
            queue.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    async def run(self) -> None:
        """Let waiting connections enter, a few in each turn, until cancelled."""
        trio.lowlevel.add_instrument(self)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._refuse)
                while True:
                    await self._request_waits.wait()
                    self._let_in()
        finally:
            trio.lowlevel.remove_instrument(self)

    def _let_in(self) -> None:
        self._learn_pace()
        self._probes += _wake(self._queues[Rank.PROBE], PROBES_A_TURN)
        waiting = [queue for queue in map(self._queues.__getitem__, _ANSWERED) if queue]
        for index, queue in enumerate(waiting):
            behind = len(waiting) - index - 1
            count = _wake(queue, max(self._share - self._entered - behind, 1))
            self._entered += count
            self._let_in_count += count
        if not any(waiting):
            self._let_in_count = 0  # more could have entered, so the time of this turn does not measure the pace
            if not self._queues[Rank.PROBE]:
                self._request_waits = trio.Event()

    async def _refuse(self) -> None:
        """Let waiting refusals enter, REFUSED_AT_ONCE every REFUSED_EVERY_S, until cancelled."""
        queue = self._queues[Rank.REFUSED]
        while True:
            await self._refused_waits.wait()
            _wake(queue, REFUSED_AT_ONCE)
            if not queue:
                self._refused_waits = trio.Event()
            await trio.sleep(REFUSED_EVERY_S)

    def _learn_pace(self) -> None:
        """Measure the time of an entry, from one call to the next: parsing, answering and sending lie between."""
        now = trio.current_time()
        # Turns of refusals alone do not count: a server busy with them took itself for slow and refused still more.
        if self._let_in_count:
            self._pace.learn(now - self._let_in_at, self._let_in_count)
        self._let_in_at, self._let_in_count = now, 0

    def before_io_wait(self, _timeout: float, /) -> None:
        """Adapt the share at the end of a turn of the event loop. Called by trio."""
        now = time.perf_counter()
        if now - self._turn_began >= SHORT_TURN_S:
            self._share = max(self._share // 2, FEWEST_A_TURN)
        elif self._entered >= self._share:
            self._share = min(self._share + 1, MOST_A_TURN)
        self._entered = self._probes = 0

    def after_io_wait(self, _timeout: float, /) -> None:
        """Note the beginning of a turn of the event loop. Called by trio."""
        self._turn_began = time.perf_counter()


def _wake(queue: deque[trio.lowlevel.Task], most: int) -> int:
    """Wake at most `most` of the first tasks, and return their number."""
    count = min(most, len(queue))
    for _ in range(count):
        trio.lowlevel.reschedule(queue.popleft())
    return count

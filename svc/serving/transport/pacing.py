"""Pacing of requests: only a few requests are parsed in each turn of trio's event loop, so each turn stays short.

In one turn, trio runs all tasks that are ready, in any order, and then polls its sockets again. If thousands of clients
sent a request at the same moment, then without pacing a health probe would wait until all these requests are parsed.

Waiting connections enter in turns of API keys, as far as their last request tells the key. In the order of arrival,
64 connections of one key left another key's two connections a twentieth of the answers that these get alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Hashable
from enum import IntEnum

import trio

from svc.serving.admission import Pace
from svc.serving.turns import Turns

FEWEST_A_TURN, MOST_A_TURN = 4, 32
"""Bounds of the number of requests that one turn lets in, not counting health probes and refusals.

The number grows by one after a full turn shorter than SHORT_TURN_S, and is halved after each longer turn."""
SHORT_TURN_S = 1e-3
# Turns of 0.7 ms in an earlier version brought the p99 of probes from 10 to 16 ms down to 4 to 5 ms, and cost 5% of the
# answers at 16 and 64 connections.
# With clients that send three times as many requests as the server can answer (open loop, 41,000 items), the rate of
# answers is 65 to 71% of the capacity. It is 35% without this pace and without refusals before parsing.
# Eight refusals every 5 ms left 82% for answers, but at a limit of 0.2 s a refusal took 1.2 to 2.7 s (median).
REFUSED_AT_ONCE, REFUSED_EVERY_S, REFUSED_SOONEST_S = 16, 10e-3, 1e-3
"""At most REFUSED_AT_ONCE requests are refused every REFUSED_EVERY_S, because refusals take time from answers.

If many requests wait to be refused, the time between is shorter, but at least REFUSED_SOONEST_S."""
PROBES_A_TURN = 2
"""Maximum number of health probes that enter one turn without waiting, and of waiting probes that one turn lets in.

The bound keeps a flood of probes from blocking all other clients. Waiting probes have places of their own, because new
probes would otherwise overtake them: with one bound for both, the longest wait in a flood was 51 turns, not 15."""


class Rank(IntEnum):
    """Priority of a connection that waits for its turn. Lower numbers go first.

    Each turn lets in at least one waiting connection of each of the ranks KNOWN, NEWCOMER and GOING_ON.
    """

    PROBE = 0
    """A health probe."""
    KNOWN = 1
    """A connection that has been answered before. Also for the first packet of a body, and for new bytes on TLS."""
    NEWCOMER = 2
    """A connection without an answer so far."""
    # Behind NEWCOMER, because otherwise 500 clients that sent their bodies in small pieces delayed all other clients.
    GOING_ON = 3
    """A connection that sends more before it is answered, such as a body in several packets or pipelined requests."""
    REFUSED = 4
    """A connection whose request is refused because of its expected wait (`messages.RequestHandler.late_s`)."""


_ANSWERED = (Rank.KNOWN, Rank.NEWCOMER, Rank.GOING_ON)


class TurnScheduler(trio.abc.Instrument):
    """A scheduler that decides in which turn of the event loop each connection parses its received bytes.

    While `run()` runs, the scheduler is also a trio instrument, which trio calls at the start and end of each turn.
    """

    def __init__(self, refuse_within_s: float = math.inf) -> None:
        """Make an idle scheduler. In a steady load, requests to be refused wait for at most about `refuse_within_s`."""
        self._refuse_within_s = refuse_within_s
        self._queues: dict[Rank, Turns[trio.lowlevel.Task]] = {rank: Turns() for rank in Rank}
        self._request_waits, self._refused_waits = trio.Event(), trio.Event()
        self._share = MOST_A_TURN
        self._entered = self._probes = 0
        self._turn_began = 0.0
        self._pace = Pace()
        self._let_in_at, self._let_in_count = 0.0, 0

    @property
    def crowded(self) -> bool:
        """True while new connections wait for their first turn.

        The server then accepts fewer connections a turn, because a connection in the kernel's queue costs it no memory
        and no processor time.
        """
        return bool(self._queues[Rank.NEWCOMER])

    def expected_wait_s(self, rank: Rank, key: Hashable = None) -> float:
        """Return the expected seconds before a request of this rank and API key has its turn.

        The result is 0 for a health probe, if no request is ahead, or if too few requests have been measured.
        """
        if rank is Rank.PROBE or not self._request_waits.is_set():
            return 0.0
        others = () if rank is Rank.KNOWN else (other for other in _ANSWERED if other is not rank)
        ahead = self._queues[rank].most_ahead(key) + sum(len(self._queues[other]) for other in others)
        return ahead * self._pace.each_s

    async def enter(self, rank: Rank, key: Hashable = None) -> None:
        """Wait for a turn with room for a connection of this rank. `key` is the API key of its last request, or None.

        Returns at once if this turn still has room and no request waits. A health probe waits only if
        PROBES_A_TURN others have entered in this turn. A request to be refused always waits, at the pace of refusals.
        """
        if rank is Rank.PROBE and self._probes < PROBES_A_TURN:
            self._probes += 1
        elif rank in _ANSWERED and self._entered < self._share and not self._request_waits.is_set():
            self._entered += 1
        else:
            has_waiter = self._refused_waits if rank is Rank.REFUSED else self._request_waits
            await self._wait(self._queues[rank], key, has_waiter)

    async def _wait(self, queue: Turns[trio.lowlevel.Task], key: Hashable, has_waiter: trio.Event) -> None:
        task = trio.lowlevel.current_task()
        queue.append(key, task)
        has_waiter.set()

        def abort(_: object) -> trio.lowlevel.Abort:
            queue.remove(key, task)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    async def run(self) -> None:
        """Let waiting connections enter, a few in each turn, until cancelled."""
        trio.lowlevel.add_instrument(self)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._refuse)
                while True:
                    # A checkpoint while requests wait, so `_let_in` runs once a turn.
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
            count = _wake(queue, max(self._share - self._entered - behind, 1))  # leaves a place for each rank behind
            self._entered += count
            self._let_in_count += count
        if not any(waiting):
            self._let_in_count = 0  # the turn had room for more requests, so its duration says nothing about the pace
            if not self._queues[Rank.PROBE]:
                self._request_waits = trio.Event()

    async def _refuse(self) -> None:
        """Let in a few connections of rank REFUSED again and again, until cancelled.

        The pace grows with the queue, so that in a steady load no request waits much longer than `refuse_within_s`. The
        last of a sudden crowd waits longer, because the pace falls as the queue empties.
        """
        queue = self._queues[Rank.REFUSED]
        while True:
            await self._refused_waits.wait()
            pause_s = self._refuse_within_s * REFUSED_AT_ONCE / max(len(queue), 1)  # the last one may be cancelled
            _wake(queue, REFUSED_AT_ONCE)
            if not queue:
                self._refused_waits = trio.Event()
            await trio.sleep(min(max(pause_s, REFUSED_SOONEST_S), REFUSED_EVERY_S))

    def _learn_pace(self) -> None:
        """Learn how long one request occupies the event loop, from the time between two calls.

        In this time, the requests that the first call let in are parsed, answered and sent.
        """
        now = trio.current_time()
        # Turns that only refuse are not counted. Refusals would make the server look slow, and it would refuse still
        # more requests.
        if self._let_in_count:
            self._pace.learn(now - self._let_in_at, self._let_in_count)
        self._let_in_at, self._let_in_count = now, 0

    def before_io_wait(self, _timeout: float, /) -> None:
        """Adapt the number of requests that a turn lets in. Trio calls this at the end of each turn."""
        now = time.perf_counter()
        if now - self._turn_began >= SHORT_TURN_S:
            self._share = max(self._share // 2, FEWEST_A_TURN)
        elif self._entered >= self._share:
            self._share = min(self._share + 1, MOST_A_TURN)
        self._entered = self._probes = 0

    def after_io_wait(self, _timeout: float, /) -> None:
        """Remember when the turn begins. Trio calls this at the start of each turn."""
        self._turn_began = time.perf_counter()


def _wake(queue: Turns[trio.lowlevel.Task], most: int) -> int:
    """Wake the first tasks of the queue, at most `most`, and return their number."""
    count = min(most, len(queue))
    for _ in range(count):
        trio.lowlevel.reschedule(queue.pop())
    return count

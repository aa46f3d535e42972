"""The queue of one model: requests that are waiting together are scored together, in one worker-thread call.

No request waits for a timer. A single request is scored at once; under load, batches form by themselves while the
thread is busy with the previous one. Dear questions have a queue and a thread of their own (`dear`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

import trio

from svc.model.ranking.query import Query, Ranking
from svc.serving.models.calls import (
    Asked,
    Outcome,
    Ranker,
    ScoringLoop,
    Share,
    Ticket,
    checked,
    fail,
    give_all,
    rank_groups,
    score,
)
from svc.serving.models.costs import LARGEST_CALL, PLAIN, Costs, kind_of
from svc.serving.models.dear import CALL_S, DearQueue
from svc.serving.models.threads import ScoringThreads
from svc.serving.pace import Pace

MAX_BATCH = LARGEST_CALL
INLINE_S = 400e-6
"""Cheaper plain queries are scored on the event loop: handing them to a thread costs about as much (GIL hand-over)."""
INLINE_BESIDE_OTHERS_S = 150e-6
"""The same while other requests are handled: so little is less than the two task switches of a wait in the queue cost,
and 16 connections to 1,700 items get 1.4 times as many answers. Dearer queries gain more by being scored together."""
INLINE_EACH_S = 10e-6
"""Batches are scored on the event loop too, if each further query adds at most this."""
INLINE_MOST_S = 1e-3
"""The longest time for which a batch may block the event loop."""
ANSWERED_A_TURN, ANSWERED_WHILE_OTHERS_WAIT = 16, 2
"""Callers woken in one turn of the event loop. They encode and send in the next turn, and a health probe waits for all
of them; the smaller number holds while further requests are queued."""
BULK_SLICE = 64
"""Queries of batches in one call. They have this room even while more single requests wait than fit into a call.
Where they would take longer than CALL_S, it is smaller: a single request waits for a whole call."""


class Lane:
    """The queue of one model. `run()` scores; requests call `rank()`.

    Single queries go before batches, and a batch is scored in slices, so that a request for one user never waits for
    256 of another client.
    """

    def __init__(self, model: Ranker, threads: ScoringThreads) -> None:
        self._model = model
        self._threads = threads
        self._costs = Costs()
        self._singles: deque[Share] = deque()
        self._bulk: deque[Share] = deque()
        self._dear = DearQueue(self._costs)
        self._loop = ScoringLoop()
        self._busy = False
        self._taken, self._taken_at = 0, 0.0
        self._pace = Pace()

    async def rank(self, queries: Sequence[Query], *, alone: bool = False) -> list[Ranking]:
        """Rankings in the order of `queries`. Raises what the model raised for them.

        A cheap query is scored here, without a task switch; `alone` says that no other request is being handled, so
        that a dearer one is too, and no batch is lost by it. Cancellation removes what has not started; the result of
        a started call is discarded. Works on a closed lane too, for a request that began before a swap: its queries
        are then scored by themselves.
        """
        if self._may_score_here(queries, alone=alone):
            return self._score_alone(queries)
        ticket = Ticket(queries)
        light, dear = self._shares(ticket)
        if self._loop.closing:
            return await self._score_apart(ticket, light, dear)
        self._enqueue(light, dear)
        try:
            await ticket.done.wait()
        finally:
            self._forget(light, dear)
        return ticket.rankings()

    @property
    def is_free_of_singles(self) -> bool:
        """True when no single request waits: one that came now would be in the next call."""
        return not self._singles

    def weight(self, query: Query) -> float:
        """How many plain questions take as long as this one; never less than 1."""
        return self._costs.weight(query)

    def is_measured(self, query: Query) -> bool:
        """False when the weight is only a guess."""
        return self._costs.is_weighed(query)

    def expected_wait_s(self, batch: int = 0) -> float:
        """Seconds before what would be queued now is answered: 0 while nothing waits, or too little was measured.

        `batch` is the number of queries of a batch, which goes behind single requests and makes room for later ones;
        the time that it would take alone is no wait. The call that answers is taken to be as large as the one that
        runs, because as many arrive meanwhile. What is dear waits elsewhere: see `dear_wait_s`.
        """
        singles, bulk = len(self._singles), sum(share.waiting for share in self._bulk)
        if not (self._taken or singles or bulk):
            return 0.0
        each_s = self._pace.each_s
        running_s = max(self._taken * each_s - (trio.current_time() - self._taken_at), 0.0)
        room = MAX_BATCH - BULK_SLICE
        if batch:
            crowd = min(singles / room, 1.0) * (MAX_BATCH / BULK_SLICE - 1)
            ahead = singles + bulk + crowd * (bulk + batch)
        else:
            ahead = singles + min(bulk, (singles // room + 1) * BULK_SLICE)
        return running_s + (ahead + self._taken) * each_s

    def dear_wait_s(self, queries: Sequence[Query]) -> float:
        """Seconds that the dear ones of these queries would wait for those of other callers; 0 if none is dear."""
        return self._dear.expected_wait_s(queries)

    def close(self) -> None:
        """Let `run()` return once the queue is empty."""
        self._dear.close()
        self._loop.close()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Score until closed. A model that raises fails the queries concerned; the lane goes on.

        Cancellation waits for a call that has started: its thread is never abandoned.
        """
        task_status.started()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._dear.run, self._score_dear)
                await self._loop.run(self._take, self._score_timed)
        finally:
            self._loop.close()
            fail([share.ticket for share in (*self._singles, *self._bulk)])
            self._singles.clear()
            self._bulk.clear()

    def _shares(self, ticket: Ticket) -> tuple[Share | None, Share | None]:
        """The light and the dear queries of a caller."""
        positions: tuple[list[int], list[int]] = ([], [])
        seconds = 0.0
        for position, query in enumerate(ticket.queries):
            is_dear = self._costs.is_dear(query)
            positions[is_dear].append(position)
            seconds += self._costs.seconds(query) if is_dear else 0.0
        light = Share(ticket, positions[False]) if positions[False] else None
        dear = Share(ticket, positions[True], seconds / len(positions[True])) if positions[True] else None
        return light, dear

    def _enqueue(self, light: Share | None, dear: Share | None) -> None:
        if light is not None:
            (self._singles if len(light.ticket.queries) == 1 else self._bulk).append(light)
            self._loop.wake()
        if dear is not None:
            self._dear.add(dear)

    def _forget(self, light: Share | None, dear: Share | None) -> None:
        """Take out of the queues what has not been taken for scoring: the caller has left, or has an error."""
        if light is not None and light.waiting:
            for queue in (self._singles, self._bulk):
                if light in queue:
                    queue.remove(light)
        if dear is not None and dear.waiting:
            self._dear.remove(dear)

    async def _score_apart(self, ticket: Ticket, light: Share | None, dear: Share | None) -> list[Ranking]:
        """Score the queries of one caller while the lane does not run any more."""
        for share, most in ((light, BULK_SLICE), (dear, 1)):
            while share is not None and share.waiting:
                asked = share.take(most)
                outcomes = await self._score_in_thread(asked, dear=share is dear)
                give_all(asked, outcomes)
        return ticket.rankings()

    def _take(self) -> list[Asked]:
        """Singles first, then one slice of the batches, each batch in turn, for which there is always room."""
        taken: list[Asked] = []
        most = MAX_BATCH - BULK_SLICE if self._bulk else MAX_BATCH
        while self._singles and len(taken) < most:
            taken += self._singles.popleft().take(1)
        room = min(self._slice(len(taken)), MAX_BATCH - len(taken))
        while self._bulk and room:
            share = self._bulk.popleft()
            asked = share.take(room)
            taken += asked
            room -= len(asked)
            if share.waiting:
                self._bulk.append(share)
        return taken

    def _slice(self, singles: int) -> int:
        """Queries of batches that have room beside so many single requests: a quarter of the call at least."""
        each_s = self._pace.each_s
        if not each_s:
            return BULK_SLICE
        return min(BULK_SLICE, max(int(CALL_S / each_s), singles * BULK_SLICE // (MAX_BATCH - BULK_SLICE), 1))

    async def _score_timed(self, asked: list[Asked]) -> None:
        """Score, and learn how long a query takes from one call to the next, with all that goes on beside it."""
        self._taken, self._taken_at = len(asked), trio.current_time()
        leaves_some = bool(self._singles or self._bulk)
        try:
            await self._score(asked)
        finally:
            self._taken = 0
        if leaves_some:  # a query of a smaller call takes longer, and nobody waits behind such a call
            self._pace.learn(trio.current_time() - self._taken_at, len(asked))

    async def _score(self, asked: list[Asked]) -> None:
        queries = [query_asked.query for query_asked in asked]
        if all(len(query_asked.ticket.queries) == 1 for query_asked in asked) and self._are_cheap(queries):
            outcomes = self._score_here(queries)
        else:
            self._busy = True
            try:
                outcomes = await self._score_in_thread(asked)
            finally:
                self._busy = False
        await self._give_out(asked, outcomes)

    async def _score_in_thread(self, asked: list[Asked], *, dear: bool = False) -> list[Outcome]:
        return await score(self._model, self._threads, self._costs, asked, dear=dear)

    async def _score_dear(self, asked: list[Asked]) -> list[Outcome]:
        return await self._score_in_thread(asked, dear=True)

    async def _give_out(self, asked: list[Asked], outcomes: list[Outcome]) -> None:
        """Wake a few callers in each turn of the event loop."""
        woken = 0
        for query_asked, outcome in zip(asked, outcomes, strict=True):
            was_done = query_asked.ticket.done.is_set()
            query_asked.ticket.give(query_asked.position, outcome)
            woken += not was_done and query_asked.ticket.done.is_set()
            others_wait = self._singles or self._bulk
            if woken >= (ANSWERED_WHILE_OTHERS_WAIT if others_wait else ANSWERED_A_TURN):
                woken = 0
                await trio.lowlevel.cancel_shielded_checkpoint()

    def _may_score_here(self, queries: Sequence[Query], *, alone: bool) -> bool:
        """True for cheap queries that would overtake nobody."""
        if self._busy or self._singles or not (alone or len(queries) == 1):
            return False
        return self._are_cheap(queries) and (alone or self._costs.plain_s(1) < INLINE_BESIDE_OTHERS_S)

    def _are_cheap(self, queries: Sequence[Query]) -> bool:
        """True for plain queries whose measured cost, for a batch of about this size, is below the limits above."""
        size = len(queries)
        limit_s = min(INLINE_S + (size - 1) * INLINE_EACH_S, INLINE_MOST_S)
        return self._costs.plain_s(size) < limit_s and all(kind_of(query) is PLAIN for query in queries)

    def _score_alone(self, queries: Sequence[Query]) -> list[Ranking]:
        started = time.thread_time()
        try:
            return checked(self._model.rank(queries), len(queries))
        finally:
            self._costs.learn(PLAIN, len(queries), time.thread_time() - started)

    def _score_here(self, queries: Sequence[Query]) -> list[Outcome]:
        ((outcomes, seconds),) = rank_groups(self._model, [queries])
        self._costs.learn(PLAIN, len(queries), seconds)
        return outcomes

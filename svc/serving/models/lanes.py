"""The queue of one model: requests that are waiting together are scored together, in one worker-thread call.

No request waits for a timer. A single request is scored at once; under load, batches form by themselves while the
thread is busy with the previous one.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import trio

from svc.errors import RecipeUnavailable
from svc.model.query import Query, Ranking
from svc.serving.models.threads import ScoringThreads
from svc.serving.pace import Pace

MAX_BATCH = 256
INLINE_S = 400e-6
"""Cheaper queries are scored on the event loop: handing them to a thread costs about as much (GIL hand-over)."""
INLINE_BESIDE_OTHERS_S = 150e-6
"""The same while other requests are handled: so little is less than the two task switches of a wait in the queue cost,
and 16 connections to 1,700 items get 1.4 times as many answers. Dearer queries gain more by being scored together."""
INLINE_EACH_S = 10e-6
"""Batches are scored on the event loop too, if each further query adds at most this."""
INLINE_MOST_S = 1e-3
"""The longest time for which a batch may block the event loop."""
INLINE_LIMIT = 32
INLINE_SEEDS = 64
ANSWERED_A_TURN, ANSWERED_WHILE_OTHERS_WAIT = 16, 2
"""Callers woken in one turn of the event loop. They encode and send in the next turn, and a health probe waits for all
of them; the smaller number holds while further requests are queued."""
_STEP = 1.05
BULK_SLICE = 64
"""Queries of batches in one call. They have this room even while more single requests wait than fit into a call."""
BULK_CALL_S = 0.05
"""Where queries are so dear that a slice would take longer, it is smaller: a single request waits for a whole call."""

Outcome = list[Ranking] | Exception


class Ranker(Protocol):
    """What a lane needs of a model. `rank` is pure and thread-safe; rankings come in the order of the queries."""

    def rank(self, queries: Sequence[Query]) -> list[Ranking]: ...


class _Ticket:
    """The queries of one caller and the answers received so far."""

    __slots__ = ("answers", "done", "error", "queries", "taken")

    def __init__(self, queries: Sequence[Query]) -> None:
        self.queries = queries
        self.taken = 0
        self.answers: list[Ranking] = []
        self.error: Exception | None = None
        self.done = trio.Event()

    def take(self, most: int) -> Sequence[Query]:
        """The next queries, at most `most`, that have not been taken for scoring."""
        part = self.queries[self.taken : self.taken + most]
        self.taken += len(part)
        return part

    def give(self, outcome: Outcome) -> None:
        if isinstance(outcome, Exception):
            self.error = outcome
            self.done.set()
            return
        self.answers += outcome
        if len(self.answers) == len(self.queries):
            self.done.set()


class Lane:
    """The queue of one model. `run()` scores; requests call `rank()`.

    Single queries go before batches, and a batch is scored in slices, so that a request for one user never waits for
    256 of another client.
    """

    def __init__(self, model: Ranker, threads: ScoringThreads) -> None:
        self._model = model
        self._threads = threads
        self._singles: deque[_Ticket] = deque()
        self._bulk: deque[_Ticket] = deque()
        self._wake = trio.Event()
        self._closing = False
        self._busy = False
        self._taken, self._taken_at = 0, 0.0
        self._pace = Pace()
        self._bulk_waiting = 0
        self._costs_s = [math.inf] * (MAX_BATCH.bit_length() + 1)

    async def rank(self, queries: Sequence[Query], *, alone: bool = False) -> list[Ranking]:
        """Rankings in the order of `queries`. Raises what the model raised for them.

        A cheap query is scored here, without a task switch; `alone` says that no other request is being handled, so
        that a dearer one is too, and no batch is lost by it. Cancellation removes what has not started; the result of
        a started call is discarded. Works on a closed lane too, for a request that began before a swap: its queries
        are then scored by themselves.
        """
        if self._may_score_here(queries, alone=alone):
            return self._score_alone(queries)
        if self._closing:
            return await self._threads.run(
                self._model.rank, queries, usual_s=self._usual_s(len(queries)), abandon_on_cancel=True
            )
        ticket = _Ticket(queries)
        if len(queries) == 1:
            self._singles.append(ticket)
        else:
            self._bulk.append(ticket)
            self._bulk_waiting += len(queries)
        self._wake.set()
        try:
            await ticket.done.wait()
        except trio.Cancelled:
            if ticket in self._singles:
                self._singles.remove(ticket)
            elif ticket in self._bulk:
                self._drop_bulk(ticket)
            raise
        if ticket.error is not None:
            raise ticket.error
        return ticket.answers

    @property
    def is_free_of_singles(self) -> bool:
        """True when no single request waits: one that came now would be in the next call."""
        return not self._singles

    def expected_wait_s(self, batch: int = 0) -> float:
        """Seconds before what would be queued now is answered: 0 while nothing waits, or too little was measured.

        `batch` is the number of queries of a batch, which goes behind single requests and makes room for later ones;
        the time that it would take alone is no wait. The call that answers is taken to be as large as the one that
        runs, because as many arrive meanwhile.
        """
        singles, bulk = len(self._singles), self._bulk_waiting
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

    def close(self) -> None:
        """Let `run()` return once the queue is empty."""
        self._closing = True
        self._wake.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Score until closed. A model that raises fails the queries concerned; the lane goes on.

        Cancellation waits for a call that has started: its thread is never abandoned.
        """
        task_status.started()
        try:
            while True:
                parts = self._take()
                if parts:
                    await self._score_timed(parts)
                elif self._closing:
                    return
                else:
                    self._wake = trio.Event()
                    await self._wake.wait()
        finally:
            self._closing = True
            _fail_waiting([*self._singles, *self._bulk])
            self._singles.clear()
            self._bulk.clear()
            self._bulk_waiting = 0

    def _take(self) -> list[tuple[_Ticket, Sequence[Query]]]:
        """Singles first, then one slice of the batches, each batch in turn, for which there is always room."""
        parts: list[tuple[_Ticket, Sequence[Query]]] = []
        most = MAX_BATCH - BULK_SLICE if self._bulk else MAX_BATCH
        while self._singles and len(parts) < most:
            ticket = self._singles.popleft()
            parts.append((ticket, ticket.take(1)))
        room = min(self._slice(len(parts)), MAX_BATCH - len(parts))
        while self._bulk and room:
            ticket = self._bulk.popleft()
            part = ticket.take(room)
            parts.append((ticket, part))
            room -= len(part)
            self._bulk_waiting -= len(part)
            if ticket.taken < len(ticket.queries):
                self._bulk.append(ticket)
        return parts

    def _slice(self, singles: int) -> int:
        """Queries of batches that have room beside so many single requests: a quarter of the call at least."""
        each_s = self._pace.each_s
        if not each_s:
            return BULK_SLICE
        return min(BULK_SLICE, max(int(BULK_CALL_S / each_s), singles * BULK_SLICE // (MAX_BATCH - BULK_SLICE), 1))

    async def _score_timed(self, parts: list[tuple[_Ticket, Sequence[Query]]]) -> None:
        """Score, and learn how long a query takes from one call to the next, with all that goes on beside it."""
        count = sum(len(part) for _, part in parts)
        self._taken, self._taken_at = count, trio.current_time()
        leaves_some = bool(self._singles or self._bulk)
        try:
            await self._score(parts)
        finally:
            self._taken = 0
        if leaves_some:  # a query of a smaller call takes longer, and nobody waits behind such a call
            self._pace.learn(trio.current_time() - self._taken_at, count)

    async def _score(self, parts: list[tuple[_Ticket, Sequence[Query]]]) -> None:
        tickets, questions = [ticket for ticket, _ in parts], [part for _, part in parts]
        singles = [ticket.queries[0] for ticket in tickets if len(ticket.queries) == 1]
        if len(singles) == len(parts) and self._are_cheap(singles):
            outcomes = self._score_here(questions)
        else:
            try:
                outcomes = await self._score_in_thread(questions)
            except trio.Cancelled:
                _fail_waiting(tickets)
                raise
        await self._give_out(tickets, outcomes)

    def _drop_bulk(self, ticket: _Ticket) -> None:
        self._bulk.remove(ticket)
        self._bulk_waiting -= len(ticket.queries) - ticket.taken

    async def _give_out(self, tickets: list[_Ticket], outcomes: list[Outcome]) -> None:
        for place, (ticket, outcome) in enumerate(zip(tickets, outcomes, strict=True), start=1):
            ticket.give(outcome)
            if isinstance(outcome, Exception) and ticket in self._bulk:
                self._drop_bulk(ticket)
            others_wait = self._singles or self._bulk
            if place % (ANSWERED_WHILE_OTHERS_WAIT if others_wait else ANSWERED_A_TURN) == 0:
                await trio.lowlevel.cancel_shielded_checkpoint()

    def _may_score_here(self, queries: Sequence[Query], *, alone: bool) -> bool:
        """True for cheap queries that would overtake nobody."""
        if self._busy or self._singles or not (alone or len(queries) == 1):
            return False
        return self._are_cheap(queries) and (alone or self._costs_s[1] < INLINE_BESIDE_OTHERS_S)

    def _are_cheap(self, queries: Sequence[Query]) -> bool:
        """True for plain queries whose measured cost, for a batch of about this size, is below the limits above."""
        size = len(queries)
        limit_s = min(INLINE_S + (size - 1) * INLINE_EACH_S, INLINE_MOST_S)
        cheap = self._costs_s[size.bit_length()] < limit_s
        return cheap and all(map(_is_plain, queries))

    def _score_alone(self, queries: Sequence[Query]) -> list[Ranking]:
        started = time.thread_time()
        try:
            return _checked(self._model.rank(queries), len(queries))
        finally:
            self._learn(len(queries), time.thread_time() - started)

    def _score_here(self, questions: list[Sequence[Query]]) -> list[Outcome]:
        outcomes, seconds = _rank_apart(self._model, questions)
        self._learn(_count(questions), seconds)
        return outcomes

    async def _score_in_thread(self, questions: list[Sequence[Query]]) -> list[Outcome]:
        self._busy = True
        try:
            outcomes, seconds = await self._threads.run(
                _rank_apart, self._model, questions, usual_s=self._usual_s(_count(questions)), abandon_on_cancel=False
            )
        finally:
            self._busy = False
        self._learn(_count(questions), seconds)
        return outcomes

    def _usual_s(self, count: int) -> float:
        """Processor seconds that a batch of about this size takes; 0 before the first measurement."""
        known_s = self._costs_s[count.bit_length()]
        return 0.0 if known_s == math.inf else known_s

    def _learn(self, count: int, seconds: float) -> None:
        """Move the estimate one step towards the median cost for this batch size: a rare slow call hardly moves it."""
        size = count.bit_length()
        known_s = self._costs_s[size]
        self._costs_s[size] = seconds if known_s == math.inf else known_s * (_STEP if seconds > known_s else 1 / _STEP)


def _is_plain(query: Query) -> bool:
    """True for a short answer to a known user, or to a history that is not much dearer."""
    if query.user < 0 and (not 0 < len(query.seeds) <= INLINE_SEEDS or query.seed_features):
        return False
    return query.limit <= INLINE_LIMIT


def _fail_waiting(tickets: list[_Ticket]) -> None:
    """Fail the callers that are still waiting: the server is stopping."""
    for ticket in tickets:
        ticket.give(RecipeUnavailable("the server is stopping"))


def _rank_apart(model: Ranker, questions: list[Sequence[Query]]) -> tuple[list[Outcome], float]:
    """An outcome for each caller, and the processor seconds that scoring took."""
    started = time.thread_time()
    outcomes = _outcomes(model, questions)
    return outcomes, time.thread_time() - started


def _outcomes(model: Ranker, questions: list[Sequence[Query]]) -> list[Outcome]:
    """Rank all callers' queries in one call; if that fails, each caller's separately: only the faulty ones fail."""
    try:
        return _deal(model.rank([query for part in questions for query in part]), questions)
    except Exception as error:
        if len(questions) == 1:
            return [error]
    outcomes: list[Outcome] = []
    for part in questions:
        try:
            outcomes += _deal(model.rank(part), [part])
        except Exception as error:
            outcomes.append(error)
    return outcomes


def _count(questions: Sequence[Sequence[Query]]) -> int:
    return sum(map(len, questions))


def _checked(rankings: list[Ranking], count: int) -> list[Ranking]:
    if len(rankings) != count:
        raise RuntimeError(f"the model answered {len(rankings)} of {count} queries")
    return rankings


def _deal(rankings: list[Ranking], questions: list[Sequence[Query]]) -> list[Outcome]:
    """Split `rankings`, one for each query, into the shares of the callers."""
    _checked(rankings, _count(questions))
    shares: list[Outcome] = []
    start = 0
    for part in questions:
        shares.append(rankings[start : start + len(part)])
        start += len(part)
    return shares

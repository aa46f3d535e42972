"""One lane a model: requests that wait together are scored together, in one worker-thread call.

Nothing waits on a timer. Alone, a request goes straight through; under load, batches form by themselves
while the thread is busy with the one before.
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
from svc.serving.threads import ScoringThreads

MAX_BATCH = 256
INLINE_S = 400e-6
"""A query that costs less is scored on the event loop, as long as a thread may keep the interpreter lock from it."""
INLINE_EACH_S = 10e-6
"""So is a batch that takes at most this longer for each further query."""
INLINE_MOST_S = 1e-3
"""The longest that a batch may keep the event loop from others."""
INLINE_LIMIT = 32
ANSWERED_A_TURN, ANSWERED_WHILE_OTHERS_WAIT = 16, 2
"""Callers who encode and send at one time: while they do, a health probe waits for all of them."""
_STEP = 1.05
BULK_SLICE = 64

Outcome = list[Ranking] | Exception


class Ranker(Protocol):
    """What a lane needs of a model. `rank` is pure, thread-safe, and answers in the order asked."""

    def rank(self, queries: Sequence[Query]) -> list[Ranking]: ...


class _Ticket:
    """The queries of one caller, and their answers as they come."""

    __slots__ = ("answers", "done", "error", "queries", "taken")

    def __init__(self, queries: Sequence[Query]) -> None:
        self.queries = queries
        self.taken = 0
        self.answers: list[Ranking] = []
        self.error: Exception | None = None
        self.done = trio.Event()

    def take(self, most: int) -> Sequence[Query]:
        """The next queries, at most `most`, that have not been scored."""
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
    """The queue in front of one model. `run()` scores; `rank()` is what requests call.

    Single queries go before batches, and a batch is scored in slices: a request for one user never waits
    for 256 of another client.
    """

    def __init__(self, model: Ranker, threads: ScoringThreads) -> None:
        self._model = model
        self._threads = threads
        self._singles: deque[_Ticket] = deque()
        self._bulk: deque[_Ticket] = deque()
        self._wake = trio.Event()
        self._closing = False
        self._busy = False
        self._costs_s = [math.inf] * (MAX_BATCH.bit_length() + 1)

    async def rank(self, queries: Sequence[Query], *, alone: bool = False) -> list[Ranking]:
        """Rankings in the order of `queries`. Raises what the model raised for them.

        A caller that knows of no other request says that it is `alone`: a query that costs little is then answered
        without a task switch, and no batch is spoilt by it. Cancelling drops what has not begun; what a thread has
        begun ends unheard. Works on a closed lane too, for a request that began before a swap: it is then scored
        by itself.
        """
        if alone and not self._busy and self._are_cheap(queries):
            outcome = self._score_here([queries])[0]
            if isinstance(outcome, Exception):
                raise outcome
            return outcome
        if self._closing:
            return await self._threads.run(
                self._model.rank, queries, usual_s=self._usual_s(len(queries)), abandon_on_cancel=True
            )
        ticket = _Ticket(queries)
        queue = self._singles if len(queries) == 1 else self._bulk
        queue.append(ticket)
        self._wake.set()
        try:
            await ticket.done.wait()
        except trio.Cancelled:
            if ticket in queue:
                queue.remove(ticket)
            raise
        if ticket.error is not None:
            raise ticket.error
        return ticket.answers

    def close(self) -> None:
        """Let `run()` return once nothing waits."""
        self._closing = True
        self._wake.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Score until closed. A model that raises fails the queries concerned; the lane goes on.

        Cancelling waits for the call that a thread has begun: the thread is never abandoned.
        """
        task_status.started()
        try:
            while True:
                parts = self._take()
                if parts:
                    await self._score(parts)
                elif self._closing:
                    return
                else:
                    self._wake = trio.Event()
                    await self._wake.wait()
        finally:
            self._closing = True
            _turn_away([*self._singles, *self._bulk])
            self._singles.clear()
            self._bulk.clear()

    def _take(self) -> list[tuple[_Ticket, Sequence[Query]]]:
        """Singles first, then one slice of the batches, each batch in turn."""
        parts: list[tuple[_Ticket, Sequence[Query]]] = []
        while self._singles and len(parts) < MAX_BATCH:
            ticket = self._singles.popleft()
            parts.append((ticket, ticket.take(1)))
        room = min(BULK_SLICE, MAX_BATCH - len(parts))
        while self._bulk and room:
            ticket = self._bulk.popleft()
            part = ticket.take(room)
            parts.append((ticket, part))
            room -= len(part)
            if ticket.taken < len(ticket.queries):
                self._bulk.append(ticket)
        return parts

    async def _score(self, parts: list[tuple[_Ticket, Sequence[Query]]]) -> None:
        tickets, questions = [ticket for ticket, _ in parts], [part for _, part in parts]
        singles = [ticket.queries[0] for ticket in tickets if len(ticket.queries) == 1]
        if len(singles) == len(parts) and self._are_cheap(singles):
            outcomes = self._score_here(questions)
        else:
            try:
                outcomes = await self._score_in_thread(questions)
            except trio.Cancelled:
                _turn_away(tickets)
                raise
        await self._give_out(tickets, outcomes)

    async def _give_out(self, tickets: list[_Ticket], outcomes: list[Outcome]) -> None:
        for place, (ticket, outcome) in enumerate(zip(tickets, outcomes, strict=True), start=1):
            ticket.give(outcome)
            if isinstance(outcome, Exception) and ticket in self._bulk:
                self._bulk.remove(ticket)
            others_wait = self._singles or self._bulk
            if place % (ANSWERED_WHILE_OTHERS_WAIT if others_wait else ANSWERED_A_TURN) == 0:
                await trio.lowlevel.cancel_shielded_checkpoint()

    def _are_cheap(self, queries: Sequence[Query]) -> bool:
        """True for usual queries to a model that has answered as many of them at once."""
        size = len(queries)
        limit_s = min(INLINE_S + (size - 1) * INLINE_EACH_S, INLINE_MOST_S)
        cheap = self._costs_s[size.bit_length()] < limit_s
        return cheap and all(query.user >= 0 and query.limit <= INLINE_LIMIT for query in queries)

    def _score_here(self, questions: list[Sequence[Query]]) -> list[Outcome]:
        outcomes, seconds = _rank_apart(self._model, questions)
        self._learn(questions, seconds)
        return outcomes

    async def _score_in_thread(self, questions: list[Sequence[Query]]) -> list[Outcome]:
        self._busy = True
        try:
            outcomes, seconds = await self._threads.run(
                _rank_apart, self._model, questions, usual_s=self._usual_s(_count(questions)), abandon_on_cancel=False
            )
        finally:
            self._busy = False
        self._learn(questions, seconds)
        return outcomes

    def _usual_s(self, count: int) -> float:
        """Processor seconds that about as many queries take; 0 as long as nobody knows."""
        known_s = self._costs_s[count.bit_length()]
        return 0.0 if known_s == math.inf else known_s

    def _learn(self, questions: list[Sequence[Query]], seconds: float) -> None:
        """Step towards the median cost of about as many queries, which a slow call now and then does not move."""
        size = _count(questions).bit_length()
        known_s = self._costs_s[size]
        self._costs_s[size] = seconds if known_s == math.inf else known_s * (_STEP if seconds > known_s else 1 / _STEP)


def _turn_away(tickets: list[_Ticket]) -> None:
    """Nobody scores any more: whoever still waits is told so."""
    for ticket in tickets:
        ticket.give(RecipeUnavailable("the server is stopping"))


def _rank_apart(model: Ranker, questions: list[Sequence[Query]]) -> tuple[list[Outcome], float]:
    """An outcome for each caller, and the processor seconds that they took."""
    started = time.thread_time()
    outcomes = _outcomes(model, questions)
    return outcomes, time.thread_time() - started


def _outcomes(model: Ranker, questions: list[Sequence[Query]]) -> list[Outcome]:
    """Rank all callers' queries as one; if that fails, each caller's by themselves, so that only the culprit fails."""
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


def _deal(rankings: list[Ranking], questions: list[Sequence[Query]]) -> list[Outcome]:
    """Hand each caller its own share of `rankings`, which must be one a query."""
    if len(rankings) != _count(questions):
        raise RuntimeError(f"the model answered {len(rankings)} of {_count(questions)} queries")
    shares: list[Outcome] = []
    start = 0
    for part in questions:
        shares.append(rankings[start : start + len(part)])
        start += len(part)
    return shares

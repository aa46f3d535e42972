"""The queue of a model: requests wait for their turn, and calls of the model score many queries together.

A *caller* is a request that waits for its rankings. Its *weight* is the cost of its queries, measured as a number of
plain queries (see `Cost`). Each model has two queues, one for cheap and one for expensive queries (`lanes.Lane`).
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

import trio

from svc.asking.costs import Cost, costs_of
from svc.errors import RecipeUnavailable
from svc.model.model import Model
from svc.model.ranking.query import Query, Ranking
from svc.model.ranking.steps import Steps
from svc.serving.admission import Pace, WaitBudget
from svc.serving.turns import Turns

ANSWERED_A_TURN, ANSWERED_WHILE_OTHERS_WAIT = 16, 2
"""Maximum number of requests that are woken in one turn of the event loop after a call.

They encode and send their answers in the next turn, and a health probe waits for all of them. The second number applies
while more requests wait in the queue."""
Outcome = Ranking | Exception


class Caller:
    """A request that waits in a queue of a model: its queries, and their rankings so far."""

    def __init__(
        self, queries: Sequence[Query], patience: WaitBudget | None = None, costs: Sequence[Cost] | None = None
    ) -> None:
        """Make a request that waits for all `queries`. `costs` are their cost classes, if known."""
        self.queries = queries
        self.patience = patience
        self.costs = costs_of(queries) if costs is None else costs
        self.cost = max(self.costs)
        self.each_s = 0.0
        """Processor seconds for one unit of weight, measured when a thread last scored queries of this request.

        0 before the first measurement."""
        self.done = trio.Event()
        self._rankings: list[Ranking | None] = [None] * len(queries)
        self._waiting = deque(range(len(queries)))
        self._begun: tuple[int, Steps[Ranking]] | None = None
        self._unanswered = len(queries)
        self._error: Exception | None = None

    @property
    def key(self) -> Hashable:
        """API key of the request, or None without `patience`.

        Keys take turns in a queue, so all requests with one key share the key's turns.
        """
        return None if self.patience is None else self.patience.key

    @property
    def waiting(self) -> int:
        """Number of queries that have not been taken for scoring."""
        return len(self._waiting)

    @property
    def has_begun(self) -> bool:
        """True if at least one query has had a turn, and was not put back without one."""
        return len(self._waiting) < len(self.queries) or self._begun is not None

    @property
    def is_sliced(self) -> bool:
        """True if the next waiting query is ranked in turns."""
        return bool(self._waiting) and self.costs[self._waiting[0]].is_sliced

    def begun(self, position: int) -> Steps[Ranking] | None:
        """Remove and return the remaining steps of the query at `position`, or None before its first turn."""
        steps = self._begun[1] if self._begun is not None and self._begun[0] == position else None
        self._begun = None
        return steps

    def take(self, most: int) -> list[PendingQuery]:
        """Remove and return the first `most` waiting queries, or fewer if fewer wait."""
        taken = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
        return [PendingQuery(self, position, self.queries[position], self.costs[position]) for position in taken]

    def put_back(self, position: int, steps: Steps[Ranking] | None = None) -> None:
        """Put a taken query back in front of the waiting queries, with its remaining `steps` if it has had a turn."""
        self._waiting.appendleft(position)
        self._begun = None if steps is None else (position, steps)

    def give(self, position: int, outcome: Outcome) -> None:
        """Store the outcome of the query at `position`. Sets `done` if no further outcome is missing.

        An error fails the whole request, which also sets `done`.
        """
        if isinstance(outcome, Exception):
            self.fail(outcome)
            return
        self._rankings[position] = outcome
        self._unanswered -= 1
        if not self._unanswered:
            self.done.set()

    def fail(self, error: Exception) -> None:
        """Make `rankings` raise this error, unless an earlier error is stored, and set `done`."""
        self._error = self._error or error
        self.done.set()

    def rankings(self) -> list[Ranking]:
        """Return all rankings in the order of the queries, or raise the first error. Call it once `done` is set."""
        if self._error is not None:
            raise self._error
        return [ranking for ranking in self._rankings if ranking is not None]


class PendingQuery(NamedTuple):
    """One query of a caller, given by its position among the caller's queries."""

    caller: Caller
    position: int
    query: Query
    cost: Cost


class Unfinished(NamedTuple):
    """The remaining steps of a query after a turn."""

    steps: Steps[Ranking]


Take = Callable[[], list[PendingQuery]]
"""A function that removes and returns the queries of the next call. Returns none if the queue is empty."""
Score = Callable[[list[PendingQuery]], Awaitable[Sequence[Outcome | Unfinished]]]
"""A function that returns the outcomes of queries. If its time runs out, it returns only the first outcomes."""


def rank_groups(
    model: Model, groups: Sequence[Sequence[Query]], most_s: float = math.inf
) -> list[tuple[list[Outcome], float]]:
    """Score groups of queries one after the other. Returns the outcomes and the processor seconds of each group.

    Starts no further group after `most_s` processor seconds. The result then has fewer groups, but at least one. If a
    group fails, its queries are scored one by one, and the outcome of a faulty query is its error.
    """
    scored = []
    # Processor time, because threads of low priority also stand still.
    began = ended = time.thread_time()
    for queries in groups:
        if ended - began > most_s:
            break
        started, outcomes = ended, _outcomes(model, queries)
        ended = time.thread_time()
        scored.append((outcomes, ended - started))
    return scored


def rank_turn(
    steps: Steps[Ranking], most_s: float, turn_s: float, others_wait: Callable[[], bool]
) -> Outcome | Unfinished:
    """Take steps for `most_s` processor seconds, or for `turn_s` while others wait. Return the ranking or its error."""
    began = time.thread_time()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            ranking: Ranking = end.value
            return ranking
        except Exception as error:
            return error
        taken_s = time.thread_time() - began
        if taken_s > most_s or (taken_s > turn_s and others_wait()):
            return Unfinished(steps)


def require_all(rankings: list[Ranking], count: int) -> list[Ranking]:
    """Return the rankings, or raise RuntimeError if a model returned another number than `count`."""
    if len(rankings) != count:
        raise RuntimeError(f"the model answered {len(rankings)} of {count} queries")
    return rankings


def fail(callers: Iterable[Caller]) -> None:
    """Make the requests that still wait raise RecipeUnavailable, because the server stops."""
    for caller in callers:
        caller.fail(RecipeUnavailable("the server is stopping"))


def _outcomes(model: Model, queries: Sequence[Query]) -> list[Outcome]:
    """Score all queries together. If that fails, score each query separately, so that only faulty queries fail."""
    try:
        return list(require_all(model.rank(queries), len(queries)))
    except Exception as error:
        if len(queries) == 1:
            return [error]
    # The error of a joint call does not tell which of the queries is faulty.
    outcomes: list[Outcome] = []
    for query in queries:
        outcomes += _outcomes(model, [query])
    return outcomes


class Callers(Turns[Caller]):
    """Waiting requests. API keys take turns."""

    @property
    def weight(self) -> int:
        """Weight of all waiting queries."""
        return sum(caller.waiting * caller.cost for caller in self)

    def weight_ahead(self, key: Hashable, count: int) -> int:
        """Return the weight of waiting queries that are scored before the last of `count` new queries of a key.

        Assumes that a turn scores one query and moves its request behind the other requests of its key.
        """
        # The requests of one key alternate. So until the new request has had `count` turns, each other request of its
        # key gets at most `count`. `turns` adds up all these turns. The keys alternate too. So every other key gets at
        # most `turns` turns meanwhile.
        turns, weight = count, 0
        for caller in self._keys.get(key, ()):
            turns += min(caller.waiting, count)
            weight += min(caller.waiting, count) * caller.cost.turn
        for other, callers in self._keys.items():
            if other != key:
                waiting = sum(caller.waiting * caller.cost for caller in callers)
                weight += min(waiting, turns * max(caller.cost.turn for caller in callers))
        return weight


class Queue:
    """A queue whose `run` scores waiting queries in one call after the other, until it is closed."""

    def __init__(self) -> None:
        self.singles, self.batches = Callers(), Callers()
        self.pace = Pace()
        """Seconds for one unit of weight, including all other work that the process does meanwhile."""
        self.running = 0
        """Weight of the call that is being scored, else 0."""
        self._began_at = 0.0
        self._wake = trio.Event()
        self.closing = False

    def __bool__(self) -> bool:
        return self.singles.count + self.batches.count > 0

    def add(self, caller: Caller, turns: Callers) -> None:
        turns.append(caller.key, caller)
        self._wake.set()

    def remove(self, caller: Caller) -> None:
        """Remove a request that was cancelled or is done, and set its `done`."""
        caller.done.set()
        self.singles.remove(caller.key, caller)
        self.batches.remove(caller.key, caller)

    def running_s(self, each_s: float) -> float:
        """Return the expected seconds until the running call ends, if one unit of weight takes `each_s`."""
        return max(self.running * each_s - (trio.current_time() - self._began_at), 0.0) if self.running else 0.0

    def close(self) -> None:
        """Let `run()` return once the queue is empty."""
        self.closing = True
        self._wake.set()

    async def run(self, take: Take, score: Score) -> None:
        """Pass the queries that `take` returns to `score`, until the queue is closed and empty.

        Cancellation waits for a call that has started.
        """
        # `take` and `score` are arguments and not attributes, because a cycle of references would keep a replaced model
        # in memory until the next garbage collection, or for ever after `gc.freeze()`.
        try:
            while True:
                pending = take()
                if pending:
                    await self._score(score, pending)
                elif self.closing:
                    return
                else:
                    self._wake = trio.Event()
                    await self._wake.wait()
        finally:
            self.closing = True
            fail([*self.singles, *self.batches])
            self.singles.clear()
            self.batches.clear()

    async def _score(self, score: Score, pending: list[PendingQuery]) -> None:
        """Score queries, wake their requests, and learn the pace of the queue."""
        self.running, self._began_at = sum(question.cost.turn for question in pending), trio.current_time()
        leaves_some = bool(self)
        try:
            outcomes = await score(pending)
            for question in reversed(pending[len(outcomes) :]):  # reversed, because each is put back in front
                self._put_back(question)
            await self._give_out(pending, outcomes)
        finally:
            self.running = 0
        # A call that empties the queue is not measured. It has few queries, so each takes longer than in a large call,
        # and no request waits for the end of the call. A turn is not measured, because it is a part of a query.
        if leaves_some and not pending[0].cost.is_sliced:
            weight = sum(question.cost for question in pending[: len(outcomes)])
            self.pace.learn(trio.current_time() - self._began_at, weight)

    def _put_back(self, question: PendingQuery, turn: Unfinished | None = None) -> None:
        """Put a query back: in front if the call had no time for it, behind all other requests after a turn.

        Does nothing if its request is already done.
        """
        caller = question.caller
        if not caller.done.is_set():
            self.batches.remove(caller.key, caller)
            append = self.batches.append_first if turn is None else self.batches.append
            append(caller.key, caller)
            caller.put_back(question.position, None if turn is None else turn.steps)

    async def _give_out(self, pending: list[PendingQuery], outcomes: Sequence[Outcome | Unfinished]) -> None:
        """Store the outcomes, and wake a few requests in each turn of the event loop."""
        woken = 0
        # There are fewer outcomes than queries if the time of the call ran out.
        for question, outcome in zip(pending, outcomes, strict=False):
            caller = question.caller
            was_done = caller.done.is_set()
            if isinstance(outcome, Unfinished):
                self._put_back(question, outcome)
                continue
            caller.give(question.position, outcome)
            woken += not was_done and caller.done.is_set()
            if woken >= (ANSWERED_WHILE_OTHERS_WAIT if self else ANSWERED_A_TURN):
                woken = 0
                # Shielded, because the outcomes that are left must reach their requests.
                await trio.lowlevel.cancel_shielded_checkpoint()

"""One call of a scoring thread: questions of several callers go in, each caller gets its own answers back."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

import trio

from svc.errors import RecipeUnavailable
from svc.model.ranking.query import Query, Ranking
from svc.serving.models.costs import Costs, Kind, kind_of
from svc.serving.models.threads import ScoringThreads

Outcome = Ranking | Exception


class Ranker(Protocol):
    """What a lane needs of a model. `rank` is pure and thread-safe; rankings come in the order of the queries."""

    def rank(self, queries: Sequence[Query]) -> list[Ranking]: ...


class Ticket:
    """The queries of one caller and the answers received so far."""

    __slots__ = ("_error", "_missing", "_rankings", "done", "queries")

    def __init__(self, queries: Sequence[Query]) -> None:
        self.queries = queries
        self.done = trio.Event()
        self._rankings: list[Ranking | None] = [None] * len(queries)
        self._missing = len(queries)
        self._error: Exception | None = None

    def give(self, position: int, outcome: Outcome) -> None:
        """The outcome of one query. The first error is that of the caller."""
        if isinstance(outcome, Exception):
            self._error = self._error or outcome
            self.done.set()
            return
        self._rankings[position] = outcome
        self._missing -= 1
        if not self._missing:
            self.done.set()

    def fail(self, error: Exception) -> None:
        self._error = self._error or error
        self.done.set()

    def rankings(self) -> list[Ranking]:
        """All rankings, in the order of the queries. Raises what failed one of them."""
        if self._error is not None:
            raise self._error
        return [ranking for ranking in self._rankings if ranking is not None]


class ScoringLoop:
    """Scores call after call of one queue."""

    def __init__(self) -> None:
        self._wake = trio.Event()
        self.closing = False

    def wake(self) -> None:
        """Something waits now."""
        self._wake.set()

    def close(self) -> None:
        """Let `run()` return once nothing waits any more."""
        self.closing = True
        self._wake.set()

    async def run(self, take: Callable[[], list[Asked]], score: Callable[[list[Asked]], Awaitable[None]]) -> None:
        """Score until closed. Cancellation waits for a call that has started.

        `take` gives the questions of the next call, none where nothing waits. Neither is kept: a queue that referred to
        itself would hold its model after a swap, until the garbage collector looks, and for ever once it was frozen.
        """
        while True:
            asked = take()
            if asked:
                await score(asked)
            elif self.closing:
                return
            else:
                self._wake = trio.Event()
                await self._wake.wait()


class Asked(NamedTuple):
    """One query of a caller, by its position among the caller's queries."""

    ticket: Ticket
    position: int

    @property
    def query(self) -> Query:
        return self.ticket.queries[self.position]


class Share:
    """The queries of one caller that wait in one queue. `each_s` is what one of them costs on average."""

    __slots__ = ("_positions", "_taken", "each_s", "ticket")

    def __init__(self, ticket: Ticket, positions: Sequence[int], each_s: float = 0.0) -> None:
        self.ticket = ticket
        self.each_s = each_s
        self._positions = positions
        self._taken = 0

    @property
    def waiting(self) -> int:
        """How many of them have not been taken for scoring."""
        return len(self._positions) - self._taken

    @property
    def next(self) -> Query:
        return self.ticket.queries[self._positions[self._taken]]

    def take(self, most: int) -> list[Asked]:
        """The next ones, at most `most`."""
        positions = self._positions[self._taken : self._taken + most]
        self._taken += len(positions)
        return [Asked(self.ticket, position) for position in positions]


async def score(
    model: Ranker, threads: ScoringThreads, costs: Costs, asked: Sequence[Asked], *, dear: bool = False
) -> list[Outcome]:
    """Score in a thread, each kind of question by itself so that its cost is learned. The thread is never abandoned.

    Cancellation fails the callers; a thread that cannot be started is the outcome of all of them.
    """
    groups = by_kind([query_asked.query for query_asked in asked])
    usual_s = sum(_usual_s(costs, group) for group in groups)
    try:
        scored = await threads.run(
            rank_groups, model, [group.queries for group in groups], usual_s=usual_s, abandon_on_cancel=False, dear=dear
        )
    except trio.Cancelled:
        fail([query_asked.ticket for query_asked in asked])
        raise
    except Exception as error:
        return [error] * len(asked)
    outcomes: list[Outcome] = [RuntimeError("not scored")] * len(asked)
    for group, (rankings, seconds) in zip(groups, scored, strict=True):
        costs.learn(group.kind, len(rankings), seconds)
        for position, outcome in zip(group.positions, rankings, strict=True):
            outcomes[position] = outcome
    return outcomes


class Group(NamedTuple):
    """Queries of one kind, and their positions in the call."""

    kind: Kind
    positions: list[int]
    queries: list[Query]


def by_kind(queries: Sequence[Query]) -> list[Group]:
    groups: dict[Kind, Group] = {}
    for position, query in enumerate(queries):
        kind = kind_of(query)
        group = groups.setdefault(kind, Group(kind, [], []))
        group.positions.append(position)
        group.queries.append(query)
    return list(groups.values())


def rank_groups(model: Ranker, groups: Sequence[Sequence[Query]]) -> list[tuple[list[Outcome], float]]:
    """For each group the outcomes of its queries, and the processor seconds that they took."""
    scored = []
    for queries in groups:
        started = time.thread_time()
        outcomes = _outcomes(model, queries)
        scored.append((outcomes, time.thread_time() - started))
    return scored


def give_all(asked: Sequence[Asked], outcomes: Sequence[Outcome]) -> None:
    for query_asked, outcome in zip(asked, outcomes, strict=True):
        query_asked.ticket.give(query_asked.position, outcome)


def checked(rankings: list[Ranking], count: int) -> list[Ranking]:
    if len(rankings) != count:
        raise RuntimeError(f"the model answered {len(rankings)} of {count} queries")
    return rankings


def fail(tickets: Sequence[Ticket]) -> None:
    """Fail the callers that are still waiting: the server is stopping."""
    for ticket in tickets:
        ticket.fail(RecipeUnavailable("the server is stopping"))


def _usual_s(costs: Costs, group: Group) -> float:
    """Processor seconds that a group usually takes; 0 before the first measurement."""
    if not costs.is_measured(group.queries[0]):
        return 0.0
    return len(group.queries) * costs.seconds(group.queries[0])


def _outcomes(model: Ranker, queries: Sequence[Query]) -> list[Outcome]:
    """Rank all queries together; if that fails, each by itself: only the faulty ones fail."""
    try:
        return list(checked(model.rank(queries), len(queries)))
    except Exception as error:
        if len(queries) == 1:
            return [error]
    outcomes: list[Outcome] = []
    for query in queries:
        outcomes += _outcomes(model, [query])
    return outcomes

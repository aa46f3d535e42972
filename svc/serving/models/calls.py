"""Score queries from several requests in one call of a model, and give each request its own rankings.

A *caller* is a request that waits for its rankings. Its *weight* is the cost of its queries, measured as a number of
plain queries (see `Cost`).
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple, Protocol

import trio

from svc.errors import ApiError, RecipeUnavailable
from svc.model.ranking.query import Query, Ranking
from svc.serving.models.costs import Cost, cost_of

Outcome = Ranking | Exception


class Ranker(Protocol):
    """The part of a model that queues use.

    `rank` is thread-safe, has no side effects, and returns the rankings in the order of the queries.
    """

    def rank(self, queries: Sequence[Query]) -> list[Ranking]: ...


class Patience(Protocol):
    """The time that a request may wait, and the API key of the request (see `admission.WaitBudget`)."""

    @property
    def key(self) -> Hashable: ...

    def refusal(self) -> ApiError | None:
        """Return an error if the request has waited too long, else None."""


class Caller:
    """A request that waits in a queue of a model: its queries, and their rankings so far."""

    __slots__ = (
        "_error",
        "_rankings",
        "_unanswered",
        "_waiting",
        "cost",
        "costs",
        "done",
        "each_s",
        "patience",
        "queries",
    )

    def __init__(self, queries: Sequence[Query], patience: Patience | None = None) -> None:
        self.queries = queries
        self.patience = patience
        self.costs = [cost_of(query) for query in queries]
        self.cost = max(self.costs)
        self.each_s = 0.0
        """Processor seconds for one unit of weight, measured when a thread last scored queries of this request.

        0 before the first measurement."""
        self.done = trio.Event()
        self._rankings: list[Ranking | None] = [None] * len(queries)
        self._waiting = deque(range(len(queries)))
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
        """True if at least one query has been taken for scoring and not put back."""
        return len(self._waiting) < len(self.queries)

    def take(self, most: int) -> list[PendingQuery]:
        """Remove and return the first `most` waiting queries, or fewer if fewer wait."""
        return [PendingQuery(self, self._waiting.popleft()) for _ in range(min(most, len(self._waiting)))]

    def put_back(self, position: int) -> None:
        """Put a taken query back in front of the waiting queries."""
        self._waiting.appendleft(position)

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

    @property
    def query(self) -> Query:
        return self.caller.queries[self.position]

    @property
    def cost(self) -> Cost:
        return self.caller.costs[self.position]


def rank_groups(
    model: Ranker, groups: Sequence[Sequence[Query]], most_s: float = math.inf
) -> list[tuple[list[Outcome], float]]:
    """Score groups of queries one after the other. Returns the outcomes and the processor seconds of each group.

    Starts no further group after `most_s` processor seconds. The result then has fewer groups, but at least one. If a
    group fails, its queries are scored one by one, and the outcome of a faulty query is its error.
    """
    scored = []
    began = ended = time.thread_time()
    for queries in groups:
        if ended - began > most_s:
            break
        started, outcomes = ended, _outcomes(model, queries)
        ended = time.thread_time()
        scored.append((outcomes, ended - started))
    return scored


def require_all(rankings: list[Ranking], count: int) -> list[Ranking]:
    """Return the rankings, or raise RuntimeError if a model returned another number than `count`."""
    if len(rankings) != count:
        raise RuntimeError(f"the model answered {len(rankings)} of {count} queries")
    return rankings


def fail(callers: Iterable[Caller]) -> None:
    """Make the requests that still wait raise RecipeUnavailable, because the server stops."""
    for caller in callers:
        caller.fail(RecipeUnavailable("the server is stopping"))


def _outcomes(model: Ranker, queries: Sequence[Query]) -> list[Outcome]:
    """Score all queries together. If that fails, score each query separately, so that only faulty queries fail."""
    try:
        return list(require_all(model.rank(queries), len(queries)))
    except Exception as error:
        if len(queries) == 1:
            return [error]
    outcomes: list[Outcome] = []
    for query in queries:
        outcomes += _outcomes(model, [query])
    return outcomes

"""The lane of a model: two queues, in which requests wait until a call of the model scores them together.

A call scores all requests that wait when it begins. No timer delays it to collect more requests, because under load
enough requests arrive during the previous call. Cheap and expensive queries have separate queues and threads, so cheap
queries do not wait for expensive queries.
"""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Sequence
from functools import partial
from itertools import groupby

import trio

from svc.asking.costs import Cost, costs_of
from svc.model.model import Model
from svc.model.ranking.query import Query, Ranking
from svc.serving.admission import WaitBudget
from svc.serving.models.plain_costs import LARGEST_CALL, PlainCosts
from svc.serving.models.queue import (
    Caller,
    Outcome,
    PendingQuery,
    Queue,
    Unfinished,
    fail,
    rank_groups,
    rank_turn,
    require_all,
)
from svc.serving.models.threads import ScoringThreads

MAX_BATCH = LARGEST_CALL
INLINE_S = 400e-6
"""A plain query that takes less processor time is scored on the event loop, if no other request is being handled.

Handing the GIL over to a thread and back takes about as long."""
INLINE_BESIDE_OTHERS_S = 150e-6
"""The limit of INLINE_S while other requests are being handled.

Waiting in the queue costs two task switches, which take longer than such a query. More expensive queries gain more from
being scored together. The limit gives 1.4 times as many answers a second (16 connections, 1,700 items)."""
INLINE_EACH_S = 10e-6
"""Each further query that is scored in the same call on the event loop raises the limit INLINE_S by this time."""
INLINE_MOST_S = 1e-3
"""Longest time for which such a call may block the event loop."""
BULK_SLICE = 64
"""Number of queries of batches in one call, however many single requests wait.

The number is lower if these queries are expected to take longer than SLICE_S, because single requests wait until the
whole call ends."""
CALL_S = 0.05
"""Processor seconds after which a call of expensive queries starts no further query.

Other requests wait until the whole call ends."""
TURN_S = 0.005
"""Processor seconds of a turn of a query that is ranked in turns, while other expensive queries wait.

These take about as long, so they take at most twice the time that they take alone."""
SLICE_S = CALL_S / 2
"""Expected processor seconds that the queries of batches take in one call of cheap queries."""
EXPENSIVE_AT_ONCE = 32
"""Maximum number of expensive queries in a call.

The number is lower if they are expected to take longer than CALL_S. Queries that a call had no time for return to the
front of the queue."""


class Lane:
    """The two queues of one model. Requests call `rank()` and wait, and the task `run()` scores their queries.

    Single cheap queries go before batches. A batch is divided over several calls, so that a request for one user never
    waits until 256 users of another client are scored. API keys take turns.
    """

    def __init__(self, model: Model, threads: ScoringThreads) -> None:
        self._model = model
        self._threads = threads
        self._costs = PlainCosts()
        self._cheap, self._expensive = Queue(), Queue()
        self._busy = False

    async def rank(
        self,
        queries: Sequence[Query],
        costs: Sequence[Cost] | None = None,
        *,
        alone: bool = False,
        patience: WaitBudget | None = None,
    ) -> list[Ranking]:
        """Return the rankings of the queries of one request, in their order.

        `costs` are the cost classes of the queries, unless they are still unknown. A single plain query may be scored
        on the event loop, without waiting in a queue. `alone` says that no other request is being handled. It raises
        the time limit for scoring on the event loop from INLINE_BESIDE_OTHERS_S to INLINE_S, and lifts the restriction
        to single queries. A batch waits in the queue of its most expensive query. `patience` holds the API key, by
        which requests take turns.

        Raises the model's error for any of the queries, or the error of a thread that cannot be started. Raises the
        refusal of `patience` if the first turn of an expensive request comes too late, and RecipeUnavailable if the
        server stops. Cancellation removes the queries from the queue. In a closed lane it waits for the running call.
        """
        if costs is None:
            costs = costs_of(queries)
        if self._may_score_here(costs, alone=alone):
            return self._score_alone(queries)
        caller = Caller(queries, patience, costs)
        if self._cheap.closing:  # a new model has replaced this one, but the request began before that
            return await self._score_apart(caller)
        queue = self._expensive if caller.cost.is_expensive else self._cheap
        is_first = queue is self._cheap and len(queries) == 1
        queue.add(caller, queue.singles if is_first else queue.batches)
        try:
            await caller.done.wait()
        finally:
            queue.remove(caller)
        return caller.rankings()

    @property
    def is_free_of_singles(self) -> bool:
        """True if no single cheap request waits, so that the next call would score a new single request."""
        return not self._cheap.singles.count

    def expected_wait_s(self, batch: int = 0) -> float:
        """Return the expected seconds before a new cheap request is answered.

        `batch` is the weight of a batch, or 0 for a single request. A batch also waits for single requests that arrive
        later. Its own scoring time does not count. The result is 0 if the queue is empty, or if too few calls have been
        measured. The call that answers the request is assumed to be as large as the running call, because about as many
        queries arrive during each call.
        """
        queue = self._cheap
        if not (queue or queue.running):
            return 0.0
        each_s, room, count = queue.pace.each_s, MAX_BATCH - BULK_SLICE, len(queue.singles)
        singles_s, bulk_s = queue.singles.weight * each_s, queue.batches.weight * each_s
        if batch:
            # If single requests fill the calls, batches get a quarter of the places and take four times as long.
            crowd = min(count / room, 1.0) * (MAX_BATCH / BULK_SLICE - 1)
            bulk_s += crowd * (bulk_s + batch * each_s)
        else:
            # Each call up to its own scores a slice of the batches, of SLICE_S or of a quarter of its weight.
            bulk_s = min(bulk_s, max((count // room + 1) * SLICE_S, singles_s * BULK_SLICE / room))
        # The last term is the call that answers the request.
        return queue.running_s(each_s) + singles_s + bulk_s + queue.running * each_s

    def wait_s(self, costs: Sequence[Cost], key: Hashable) -> float:
        """Return the expected seconds that queries of these costs and of an API key would wait for other queries.

        The result is 0 for a single cheap query, because its wait has been checked by `expected_wait_s` before its body
        was parsed. The scoring time of the queries themselves does not count. Before any expensive query has been
        measured, the wait is estimated from the cost classes and the measured plain queries.
        """
        if not max(costs, default=Cost.PLAIN).is_expensive:
            return self.expected_wait_s(sum(costs)) if len(costs) > 1 else 0.0
        queue, each_s = self._expensive, self._expensive_each_s
        return queue.running_s(each_s) + queue.batches.weight_ahead(key, len(costs)) * each_s

    @property
    def _expensive_each_s(self) -> float:
        """Expected seconds for one unit of weight of expensive queries."""
        # The pace is 0 until it is learned.
        return self._expensive.pace.each_s or self._costs.expected_s(1)

    def close(self) -> None:
        """Let `run()` return once the queues are empty."""
        self._cheap.close()
        self._expensive.close()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Score queries until the lane is closed and both queues are empty.

        If the model raises, only the queries of the current call fail. Cancellation waits for a call that has started.
        """
        task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._expensive.run, self._take_expensive, self._score_expensive)
            await self._cheap.run(self._take_cheap, self._score_cheap)

    def _take_cheap(self) -> list[PendingQuery]:
        """Take the queries of the next call of cheap queries: single queries, then a part of the batches.

        The call always has room for queries of batches. The result is sorted by cost, plain queries first.
        """
        queue, taken = self._cheap, list[PendingQuery]()
        most = MAX_BATCH - BULK_SLICE if queue.batches else MAX_BATCH
        while queue.singles and len(taken) < most:
            taken += queue.singles.pop().take(1)
        # Batches get at least a quarter of the weight of a call, so that they go on however many single requests wait.
        quarter = sum(question.cost for question in taken) * BULK_SLICE / (MAX_BATCH - BULK_SLICE)
        # `part` is the share of the slice that is left, because the weight of a slice differs from batch to batch.
        part, places = 1.0, min(BULK_SLICE, MAX_BATCH - len(taken))
        while queue.batches and part > 0 and places:
            caller = queue.batches.pop()
            slice_weight = max(self._slice(caller), quarter)
            # At least one query, however long it takes, so that batches go on.
            pending = caller.take(min(max(int(part * slice_weight / caller.cost), 1), places))
            taken += pending
            part -= len(pending) * caller.cost / slice_weight
            places -= len(pending)
            if caller.waiting:
                queue.batches.append(caller.key, caller)
        # For `groupby`, and plain queries first, because their groups are the only ones that are learned.
        return sorted(taken, key=lambda pending: pending.cost)

    def _slice(self, caller: Caller) -> float:
        """Return the weight of queries of a batch that are expected to take SLICE_S.

        The estimate is the smaller of two: from measured plain queries, and from the queries of this batch that have
        already been scored.
        """
        weight = MAX_BATCH
        while weight > 1 and self._costs.expected_s(weight) > SLICE_S:
            weight //= 2
        if caller.each_s:
            measured = SLICE_S / caller.each_s
            return min(weight, measured) if self._costs.measured_s(1) < math.inf else measured
        return weight

    def _take_expensive(self) -> list[PendingQuery]:
        """Take the queries of the next call of expensive queries, one query of each waiting request in turn.

        Refuses a request that has waited too long for its first turn.
        """
        # A query that is ranked in turns has a call of its own, so a request never has two that have begun.
        queue, taken, total_s = self._expensive, list[PendingQuery](), 0.0
        while queue.batches and len(taken) < EXPENSIVE_AT_ONCE and total_s < CALL_S:
            caller = queue.batches.pop()
            refusal = None if caller.has_begun or caller.patience is None else caller.patience.refusal()
            if refusal is not None:
                caller.fail(refusal)
                continue
            if taken and caller.is_sliced:
                queue.batches.append_first(caller.key, caller)
                break
            taken += caller.take(1)
            total_s += taken[-1].cost * self._expensive_each_s
            if caller.waiting:
                queue.batches.append(caller.key, caller)
            if taken[-1].cost.is_sliced:
                break
        return taken

    async def _score_cheap(self, pending: list[PendingQuery]) -> list[Outcome]:
        are_single = all(len(question.caller.queries) == 1 for question in pending)
        if are_single and self._are_cheap([question.cost for question in pending]):
            ((outcomes, seconds),) = rank_groups(self._model, [[question.query for question in pending]])
            self._costs.learn(len(pending), seconds)
            return outcomes
        self._busy = True
        try:
            return await self._score_in_thread(pending)
        finally:
            self._busy = False

    async def _score_expensive(self, pending: list[PendingQuery]) -> Sequence[Outcome | Unfinished]:
        caller, position, query, cost = pending[0]
        if not cost.is_sliced:
            return await self._score_in_thread(pending, expensive=True)
        steps = caller.begun(position) or self._model.rank_steps(query)
        others_wait = partial(bool, self._expensive)
        try:
            return [
                await self._threads.run(rank_turn, steps, CALL_S, TURN_S, others_wait, usual_s=CALL_S, expensive=True)
            ]
        except trio.Cancelled:
            fail([caller])
            raise
        except Exception as error:
            return [error]

    async def _score_in_thread(self, pending: list[PendingQuery], *, expensive: bool = False) -> list[Outcome]:
        """Score queries in a thread, and return their outcomes in the same order.

        If expensive queries take longer than CALL_S, the result has only the outcomes of the first queries.
        Cancellation waits for the thread, and then the requests fail. If the thread cannot be started, that error is
        the outcome of all queries.
        """
        if expensive:
            groups, usual_s = [[question] for question in pending], CALL_S
        else:
            groups = [list(group) for _, group in groupby(pending, key=lambda question: question.cost)]
            # Costs are kept up to MAX_BATCH plain queries, and 256 long queries weigh four times as much.
            usual_s = self._costs.expected_s(min(sum(question.cost for question in pending), MAX_BATCH))
        try:
            scored = await self._threads.run(
                rank_groups,
                self._model,
                [[question.query for question in group] for group in groups],
                CALL_S if expensive else math.inf,
                usual_s=usual_s,
                expensive=expensive,
            )
        except trio.Cancelled:
            fail(question.caller for question in pending)
            raise
        except Exception as error:
            return [error] * len(pending)
        for group, (_, seconds) in zip(groups, scored, strict=False):
            cost = group[0].cost
            if cost is Cost.PLAIN and not expensive:
                self._costs.learn(len(group), seconds)
            for question in group:
                question.caller.each_s = seconds / (len(group) * cost)
        return [outcome for outcomes, _ in scored for outcome in outcomes]

    async def _score_apart(self, caller: Caller) -> list[Ranking]:
        """Score the queries of one request without a queue, because the lane is closed."""
        expensive = caller.cost.is_expensive
        # One by one, because a call that takes longer than CALL_S returns only its first outcomes.
        while pending := sorted(caller.take(1 if expensive else BULK_SLICE), key=lambda question: question.cost):
            outcomes = await self._score_in_thread(pending, expensive=expensive)
            for question, outcome in zip(pending, outcomes, strict=True):
                caller.give(question.position, outcome)
        return caller.rankings()

    def _may_score_here(self, costs: Sequence[Cost], *, alone: bool) -> bool:
        """Return True if the queries may be scored on the event loop.

        They must be cheap, with no single cheap request waiting and no call of cheap queries running in a thread. A
        batch must also be `alone`. A single query that is not `alone` must take less than INLINE_BESIDE_OTHERS_S.
        """
        if self._busy or self._cheap.singles.count or not (alone or len(costs) == 1):
            return False
        return self._are_cheap(costs) and (alone or self._costs.measured_s(1) < INLINE_BESIDE_OTHERS_S)

    def _are_cheap(self, costs: Sequence[Cost]) -> bool:
        """Return True if all queries are plain, and calls of this size have taken less time than the INLINE limits."""
        size = len(costs)
        limit_s = min(INLINE_S + (size - 1) * INLINE_EACH_S, INLINE_MOST_S)
        return self._costs.measured_s(size) < limit_s and max(costs) is Cost.PLAIN

    def _score_alone(self, queries: Sequence[Query]) -> list[Ranking]:
        """Score the queries of one request on the event loop."""
        started = time.thread_time()
        try:
            return require_all(self._model.rank(queries), len(queries))
        finally:
            self._costs.learn(len(queries), time.thread_time() - started)

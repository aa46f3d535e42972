"""The two queues of one model, which score waiting requests together.

All waiting requests are scored in one call in a worker thread. No request waits for a timer: under load, the next call
fills while the thread is busy with the previous one. Expensive queries have a queue and a thread of their own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Sequence
from itertools import groupby

import trio

from svc.model.ranking.query import Query, Ranking
from svc.serving.models.calls import Caller, Outcome, Patience, PendingQuery, Ranker, fail, rank_groups, require_all
from svc.serving.models.costs import LARGEST_CALL, Cost, PlainCosts, cost_of
from svc.serving.models.queue import Queue
from svc.serving.models.threads import ScoringThreads

MAX_BATCH = LARGEST_CALL
INLINE_S = 400e-6
"""Cheaper plain queries are scored on the event loop, because the GIL hand-over to a thread costs about as much."""
INLINE_BESIDE_OTHERS_S = 150e-6
"""The same limit while other requests are handled: 16 connections to 1,700 items get 1.4 times as many answers.

Waiting in the queue costs two task switches, which take longer than this. Dearer queries gain more from being scored
together."""
INLINE_EACH_S = 10e-6
"""Batches are scored on the event loop too, if each further query adds at most this."""
INLINE_MOST_S = 1e-3
"""The longest time for which a batch may block the event loop."""
BULK_SLICE = 64
"""Places for queries of batches in one call, however many single requests wait.

There are fewer if these queries would take longer than SLICE_S, because single requests wait for the whole call."""
CALL_S = 0.05
"""Most processor seconds of a call of expensive queries, unless a single one takes longer. Other callers wait for the
whole call."""
SLICE_S = CALL_S / 2
"""Expected seconds of the queries of batches in one call."""
EXPENSIVE_AT_ONCE = 32
"""Most expensive queries in a call.

There are fewer if they are expected to take longer than CALL_S. Queries that a call has no time for return to their
places in the queue."""


class Lane:
    """The queues of one model. Requests call `rank()`, and `run()` scores.

    Cheap single queries go before batches, and a batch is scored in slices, so that a request for one user never waits
    for 256 users of another client. Expensive queries are scored one by one, and API keys take turns.
    """

    def __init__(self, model: Ranker, threads: ScoringThreads) -> None:
        self._model = model
        self._threads = threads
        self._costs = PlainCosts()
        self._cheap, self._expensive = Queue(), Queue()
        self._busy = False

    async def rank(
        self, queries: Sequence[Query], *, alone: bool = False, patience: Patience | None = None
    ) -> list[Ranking]:
        """Return the rankings in the order of `queries`, or raise the model's error for them.

        Scores a cheap query at once, without a task switch. If `alone`, no other request is being handled that it could
        be scored with, and the bound is higher. A batch is as expensive as its dearest query. With `patience`, an
        expensive request is refused if its turn comes too late. Cancellation removes waiting queries, and discards the
        result of a started call. A closed lane still scores requests that began before a swap, each by itself.
        """
        # 1.4 times the answers a second of 16 connections.
        if self._may_score_here(queries, alone=alone):
            return self._score_alone(queries)
        caller = Caller(queries, patience)
        if self._cheap.closing:
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
        """True if no single request waits, so that the next call would include a new one."""
        return not self._cheap.singles

    def expected_wait_s(self, batch: int = 0) -> float:
        """Return the expected seconds before new cheap queries are answered.

        The result is 0 if the queue is empty or too little was measured. `batch` is the weight of a new batch, which
        goes behind single requests, also later ones. Its own scoring time does not count. The answering call is assumed
        to be as large as the running one, because as many queries arrive meanwhile.
        """
        queue = self._cheap
        if not (queue or queue.running):
            return 0.0
        each_s, room, count = queue.pace.each_s, MAX_BATCH - BULK_SLICE, len(queue.singles)
        singles_s, bulk_s = queue.singles.weight * each_s, queue.batches.weight * each_s
        if batch:
            crowd = min(count / room, 1.0) * (MAX_BATCH / BULK_SLICE - 1)
            bulk_s += crowd * (bulk_s + batch * each_s)
        else:
            bulk_s = min(bulk_s, max((count // room + 1) * SLICE_S, singles_s * BULK_SLICE / room))
        return queue.running_s(each_s) + singles_s + bulk_s + queue.running * each_s

    def wait_s(self, queries: Sequence[Query], key: Hashable) -> float:
        """Return the seconds that these queries of a key would wait for other queries.

        The result is 0 for a single cheap query, because `expected_wait_s` was checked earlier. Their own scoring time
        does not count. Until expensive queries have been measured, their cost classes count.
        """
        costs = [cost_of(query) for query in queries]
        if not any(cost.is_expensive for cost in costs):
            return self.expected_wait_s(sum(costs)) if len(costs) > 1 else 0.0
        queue, each_s = self._expensive, self._expensive_each_s
        return queue.running_s(each_s) + queue.batches.weight_ahead(key, len(queries)) * each_s

    @property
    def _expensive_each_s(self) -> float:
        """Seconds for one unit of weight of expensive queries."""
        return self._expensive.pace.each_s or self._costs.expected_s(1)

    def close(self) -> None:
        """Let `run()` return once the queues are empty."""
        self._cheap.close()
        self._expensive.close()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Score until closed.

        If the model raises, only the queries of that call fail. Cancellation waits for a started call, because its
        thread is never abandoned.
        """
        task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._expensive.run, self._take_expensive, self._score_expensive)
            await self._cheap.run(self._take_cheap, self._score_cheap)

    def _take_cheap(self) -> list[PendingQuery]:
        """Take single queries, then a slice of the batches, for which there is always room.

        Returns them sorted by cost, plain queries first.
        """
        queue, taken = self._cheap, list[PendingQuery]()
        most = MAX_BATCH - BULK_SLICE if queue.batches else MAX_BATCH
        while queue.singles and len(taken) < most:
            taken += queue.singles.pop().take(1)
        # Batches have at least a quarter of the weight of a call, so that many singles never starve them.
        quarter = sum(question.cost for question in taken) * BULK_SLICE / (MAX_BATCH - BULK_SLICE)
        part, places = 1.0, min(BULK_SLICE, MAX_BATCH - len(taken))
        while queue.batches and part > 0 and places:
            caller = queue.batches.pop()
            slice_weight = max(self._slice(caller), quarter)
            pending = caller.take(min(max(int(part * slice_weight / caller.cost), 1), places))
            taken += pending
            part -= len(pending) * caller.cost / slice_weight
            places -= len(pending)
            if caller.waiting:
                queue.batches.append(caller)
        return sorted(taken, key=lambda pending: pending.cost)

    def _slice(self, caller: Caller) -> float:
        """Return the weight that is expected to take SLICE_S.

        Estimated from the costs of plain queries and of the batch's previous slice.
        """
        weight = MAX_BATCH
        while weight > 1 and self._costs.expected_s(weight) > SLICE_S:
            weight //= 2
        if caller.each_s:
            measured = SLICE_S / caller.each_s
            return min(weight, measured) if self._costs.measured_s(1) < math.inf else measured
        return weight

    def _take_expensive(self) -> list[PendingQuery]:
        """Take one query of each caller in turn. Refuses a caller if its first turn comes too late."""
        queue, taken, total_s = self._expensive, list[PendingQuery](), 0.0
        while queue.batches and len(taken) < EXPENSIVE_AT_ONCE and total_s < CALL_S:
            caller = queue.batches.pop()
            refusal = None if caller.has_begun or caller.patience is None else caller.patience.refusal()
            if refusal is not None:
                caller.fail(refusal)
                continue
            taken += caller.take(1)
            total_s += taken[-1].cost * self._expensive_each_s
            if caller.waiting:
                queue.batches.append(caller)
        return taken

    async def _score_cheap(self, pending: list[PendingQuery]) -> list[Outcome]:
        queries = [question.query for question in pending]
        if all(len(question.caller.queries) == 1 for question in pending) and self._are_cheap(queries):
            ((outcomes, seconds),) = rank_groups(self._model, [queries])
            self._costs.learn(len(queries), seconds)
            return outcomes
        self._busy = True
        try:
            return await self._score_in_thread(pending)
        finally:
            self._busy = False

    async def _score_expensive(self, pending: list[PendingQuery]) -> list[Outcome]:
        return await self._score_in_thread(pending, expensive=True)

    async def _score_in_thread(self, pending: list[PendingQuery], *, expensive: bool = False) -> list[Outcome]:
        """Return the outcomes of the queries, in their order.

        If expensive queries take longer than CALL_S, only the first ones have an outcome. The thread is never
        abandoned. Cancellation fails the callers. If the thread cannot be started, that error is the outcome of all
        queries.
        """
        if expensive:
            groups, usual_s = [[question] for question in pending], CALL_S
        else:
            groups = [list(group) for _, group in groupby(pending, key=lambda question: question.cost)]
            usual_s = self._costs.expected_s(min(sum(question.cost for question in pending), MAX_BATCH))
        try:
            scored = await self._threads.run(
                rank_groups,
                self._model,
                [[question.query for question in group] for group in groups],
                CALL_S if expensive else math.inf,
                usual_s=usual_s,
                abandon_on_cancel=False,
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
        """Score the queries of one caller after the lane has ended."""
        expensive = caller.cost.is_expensive
        while pending := sorted(caller.take(1 if expensive else BULK_SLICE), key=lambda question: question.cost):
            outcomes = await self._score_in_thread(pending, expensive=expensive)
            for question, outcome in zip(pending, outcomes, strict=True):
                caller.give(question.position, outcome)
        return caller.rankings()

    def _may_score_here(self, queries: Sequence[Query], *, alone: bool) -> bool:
        """Return True if the queries are cheap and would overtake no other request."""
        if self._busy or self._cheap.singles or not (alone or len(queries) == 1):
            return False
        return self._are_cheap(queries) and (alone or self._costs.measured_s(1) < INLINE_BESIDE_OTHERS_S)

    def _are_cheap(self, queries: Sequence[Query]) -> bool:
        """Return True if all queries are plain, and the measured cost of about as many is below the inline limits."""
        size = len(queries)
        limit_s = min(INLINE_S + (size - 1) * INLINE_EACH_S, INLINE_MOST_S)
        return self._costs.measured_s(size) < limit_s and all(cost_of(query) is Cost.PLAIN for query in queries)

    def _score_alone(self, queries: Sequence[Query]) -> list[Ranking]:
        started = time.thread_time()
        try:
            return require_all(self._model.rank(queries), len(queries))
        finally:
            self._costs.learn(len(queries), time.thread_time() - started)

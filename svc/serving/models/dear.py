"""The queue of dear questions. They are scored in a thread of their own, so that plain ones never wait for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import trio

from svc.model.ranking.query import Query
from svc.serving.models.calls import Asked, Outcome, ScoringLoop, Share, fail, give_all
from svc.serving.models.costs import Costs
from svc.serving.pace import Pace

CALL_S = 0.05
"""Processor seconds of one call, unless a single question takes longer: other callers' questions wait for it."""
Score = Callable[[list[Asked]], Awaitable[list[Outcome]]]


class DearQueue:
    """Callers take turns, one question each, so that a batch never keeps out another caller's single question."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._shares: deque[Share] = deque()
        self._loop = ScoringLoop()
        self._pace = Pace()
        self._running_s, self._began_at = 0.0, 0.0

    def add(self, share: Share) -> None:
        self._shares.append(share)
        self._loop.wake()

    def remove(self, share: Share) -> None:
        """Forget what has not been taken for scoring."""
        if share in self._shares:
            self._shares.remove(share)

    def expected_wait_s(self, queries: Sequence[Query]) -> float:
        """Seconds that the dear ones of these queries would wait for those of others; 0 before enough was measured.

        The time that they take themselves is no wait. As callers take turns, each caller before them counts with as
        much as they cost, at most.
        """
        own_s = sum(self._costs.seconds(query) for query in queries if self._costs.is_dear(query))
        if not own_s:
            return 0.0
        ahead_s = sum(min(share.waiting * share.each_s, own_s) for share in self._shares)
        slowness = self._pace.each_s
        running_s = max(self._running_s * slowness - (trio.current_time() - self._began_at), 0.0)
        return (running_s if self._running_s else 0.0) + ahead_s * slowness

    def close(self) -> None:
        """Let `run()` return once the queue is empty."""
        self._loop.close()

    async def run(self, score: Score) -> None:
        """Score until closed. Cancellation waits for a call that has started."""
        try:
            await self._loop.run(self._take, partial(self._score_timed, score))
        finally:
            fail([share.ticket for share in self._shares])
            self._shares.clear()

    def _take(self) -> list[Asked]:
        """One question at least, and more as long as all together take no longer than CALL_S.

        A question of a kind that was not measured yet is taken alone.
        """
        taken: list[Asked] = []
        total_s = 0.0
        while self._shares:
            query = self._shares[0].next
            total_s += self._costs.seconds(query)
            is_measured = self._costs.is_measured(query)
            if taken and (total_s > CALL_S or not is_measured):
                break
            share = self._shares.popleft()
            taken += share.take(1)
            if share.waiting:
                self._shares.append(share)
            if not is_measured:
                break
        return taken

    async def _score_timed(self, score: Score, asked: list[Asked]) -> None:
        """Score one call, and learn how much longer calls take than their processor time."""
        self._running_s = sum(self._costs.seconds(query_asked.query) for query_asked in asked)
        self._began_at = trio.current_time()
        try:
            outcomes = await score(asked)
        finally:
            expected_s, self._running_s = self._running_s, 0.0
        self._pace.learn(trio.current_time() - self._began_at, expected_s)
        give_all(asked, outcomes)

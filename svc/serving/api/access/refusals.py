"""Counts rate-limited and refused requests and logs the totals.

A line for each request would cost more than the refusal.
"""

from __future__ import annotations

from collections import Counter

import trio

from svc import events, logs
from svc.errors import ApiError

REPORT_S = 10.0


class Refusals:
    """Refusals since the last report, by code and kid.

    The kid is None if no policy is concerned.
    """

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str | None]] = Counter()
        self._some = trio.Event()

    def note(self, error: ApiError) -> None:
        """Count one refusal.

        The `fields` of the error may name a kid.
        """
        self._counts[error.code, error.fields.get("kid")] += 1
        self._some.set()

    async def run(self) -> None:
        """Log the totals within REPORT_S of their first refusal, until cancelled."""
        while True:
            await self._some.wait()
            began = trio.current_time()
            try:
                await trio.sleep(REPORT_S)
            finally:
                self._report(trio.current_time() - began)

    def _report(self, seconds: float) -> None:
        counts, self._counts = self._counts, Counter()
        self._some = trio.Event()
        for (code, kid), count in counts.items():
            logs.emit(events.REQUESTS_REFUSED, code=code, kid=kid, count=count, seconds=round(seconds, 1))

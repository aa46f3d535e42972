"""Progress of an export in its log."""

from __future__ import annotations

import time
from collections.abc import Callable

from svc import events, logs
from svc.progress import EVERY_S, State


class LogDisplay:
    """Display that writes one log record every EVERY_S. `done` and `total` count users, seeds or shards."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = clock() + EVERY_S

    def show(self, state: State) -> None:
        if not state.done or self._clock() < self._next:
            return
        self._next = self._clock() + EVERY_S
        seconds_left = state.seconds_left
        logs.emit(
            events.EXPORT_PROGRESS,
            done=state.done,
            total=state.total,
            rows=state.rows,
            rows_per_s=round(state.rows_per_s),
            seconds_left=None if seconds_left is None else round(seconds_left),
        )

    def close(self) -> None: ...

"""How far an export is: rows, rate and time left."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from svc import events, logs

EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class State:
    """`done` and `total` count users, or seeds; `rows` what was written for them. `seconds_left` may be unknown."""

    done: int
    total: int
    rows: int
    seconds: float

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        if not self.done or self.done > self.total:
            return None
        return self.seconds * (self.total - self.done) / self.done


class Watcher(Protocol):
    """Hears how far the export is. Called from its thread, often: it must be cheap."""

    def __call__(self, state: State) -> None: ...


class LogWatcher:
    """One log record every EVERY_S."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = clock() + EVERY_S

    def __call__(self, state: State) -> None:
        if self._clock() < self._next:
            return
        self._next = self._clock() + EVERY_S
        left = state.seconds_left
        logs.emit(
            events.EXPORT_PROGRESS,
            done=state.done,
            total=state.total,
            rows=state.rows,
            rows_per_s=round(state.rows_per_s),
            seconds_left=None if left is None else round(left),
        )

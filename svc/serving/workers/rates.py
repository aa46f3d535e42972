"""Rate limits over all workers. Each limit has a cell of shared memory, which a worker locks to count."""

from __future__ import annotations

import fcntl
import math
import os
import struct
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from svc.processes import SharedPage
from svc.serving.api.authentication import RefusalThrottle
from svc.serving.api.key_policies import Bucket, Rate

CELLS = 1 << 17
"""More than two for each key that a policy file of 256 KiB can name. Unused pages take no memory."""
TRIES = 1000
"""Tries to lock a cell, which others hold for microseconds.

A worker that was stopped while it held the lock must not stop the others: after these tries they go on without the
lock, and try only once each time until it is free again."""
_CELL = struct.Struct("=dd")
CELLS_BYTES = CELLS * _CELL.size


class Cell:
    """Two numbers that all workers share, zeros at first."""

    def __init__(self, memory: SharedPage, number: int) -> None:
        self._memory = memory
        self._place = number * _CELL.size
        self._tries = TRIES

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the cell for the block, or go on without the lock after TRIES."""
        is_locked = any(self._try_lock() for _ in range(self._tries))
        self._tries = TRIES if is_locked else 1
        try:
            yield
        finally:
            if is_locked:
                fcntl.lockf(self._memory.descriptor, fcntl.LOCK_UN, _CELL.size, self._place)

    def _try_lock(self) -> bool:
        try:
            fcntl.lockf(self._memory.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, _CELL.size, self._place)
        except OSError:
            os.sched_yield()
            return False
        return True

    def read(self) -> tuple[float, float]:
        first, second = _CELL.unpack_from(self._memory, self._place)
        return first, second

    def write(self, first: float, second: float) -> None:
        _CELL.pack_into(self._memory, self._place, first, second)


class KeyCells:
    """Two cells for each API key with a policy: one for its rate, one for its refusals."""

    def __init__(self, memory: SharedPage) -> None:
        self._memory = memory
        self._numbers: dict[str, tuple[int, int]] = {}
        self._unused = zip(range(1, CELLS, 2), range(2, CELLS, 2), strict=False)
        self._freed: deque[tuple[int, int]] = deque()

    def assign(self, kids: Iterable[str]) -> dict[str, tuple[int, int]]:
        """Return the cells of these keys, and free the cells of all other keys.

        Freed cells are reused as late as possible, because a worker that has not received the change may still count
        for a removed key.
        """
        wanted = list(kids)
        for kid in self._numbers.keys() - set(wanted):
            self._freed.append(self._numbers.pop(kid))
        for kid in wanted:
            if kid not in self._numbers:
                self._numbers[kid] = next(self._unused, None) or self._freed.popleft()
                for number in self._numbers[kid]:
                    Cell(self._memory, number).write(0.0, 0.0)
        return dict(self._numbers)


class SharedBucket(Bucket):
    """A bucket that counts the requests of one key in all workers.

    The cell holds tokens and the time of their count. A time of 0 marks an unused cell, whose bucket is full.
    """

    def __init__(self, rate: Rate, cell: Cell) -> None:
        super().__init__(rate, 0.0)
        self._cell = cell

    def lacks_s(self, count: float, _now_s: float) -> float:
        """Return the seconds until `count` requests, at most `burst`, can pass, or 0 if they can now."""
        now_s = time.monotonic()
        with self._cell.held():
            self.tokens, at_s = self._cell.read()
            elapsed_s = now_s - at_s if at_s else math.inf
            self.tokens = min(self.rate.burst, self.tokens + elapsed_s * self.rate.per_s)
            self._cell.write(self.tokens, now_s)
        return self.time_for(count - self.tokens)

    def add(self, count: float) -> None:
        """Return `count` tokens, or charge a negative `count`."""
        if count:
            with self._cell.held():
                tokens, at_s = self._cell.read()
                self._cell.write(tokens + count, at_s)


class SharedThrottle(RefusalThrottle):
    """A throttle of the refusals of all workers. The cell holds the time of the next answer."""

    def __init__(self, alone: RefusalThrottle, cell: Cell) -> None:
        super().__init__(alone.per_s, alone.burst, alone.longest_s)
        self._cell = cell

    def next_wait_s(self) -> float:
        """Count one refusal, and return the seconds until its answer."""
        with self._cell.held():
            next_s, _ = self._cell.read()
            now_s = time.monotonic()
            next_s = self.next_time(next_s or -math.inf, now_s)
            self._cell.write(next_s, 0.0)
        return max(next_s - now_s, 0.0)

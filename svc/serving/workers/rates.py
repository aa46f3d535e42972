"""Rate limits that apply to all workers together.

The state of each limit is a cell of two numbers in shared memory. A worker locks the cell while it counts a request.
"""

from __future__ import annotations

import fcntl
import math
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

from svc.processes import SharedPage
from svc.serving.api.key_policies import Bucket, Rate

CELLS = 1 << 16
"""Number of cells. One for each key suffices for all keys that a policy file of 256 KiB can name.

Memory pages of unused cells are never allocated."""
TRIES = 1000
"""Number of attempts to lock a cell. Other workers hold the lock for microseconds.

If all attempts fail, a worker was probably suspended while it held the lock. The other workers then count without the
lock."""
_CELL = struct.Struct("=dd")
CELLS_BYTES = CELLS * _CELL.size


class Cell:
    """Two floating-point numbers in shared memory, with a lock. Both are 0 in the beginning."""

    def __init__(self, memory: SharedPage, number: int) -> None:
        self._memory = memory
        self._place = number * _CELL.size

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock of the cell in a `with` block. Enters the block without the lock after TRIES attempts."""
        is_locked = any(self._try_lock() for _ in range(TRIES))
        try:
            yield
        finally:
            if is_locked:
                fcntl.lockf(self._memory.descriptor, fcntl.LOCK_UN, _CELL.size, self._place)

    def _try_lock(self) -> bool:
        try:
            # POSIX locks, because flock locks whole files. The kernel releases them when the process ends.
            fcntl.lockf(self._memory.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, _CELL.size, self._place)
        except OSError:
            os.sched_yield()  # the holder may wait for this core
            return False
        return True

    def read(self) -> tuple[float, float]:
        first, second = _CELL.unpack_from(self._memory, self._place)
        return first, second

    def write(self, first: float, second: float) -> None:
        _CELL.pack_into(self._memory, self._place, first, second)


class SharedBucket(Bucket):
    """A token bucket for the requests of one key to all workers.

    The cell holds the number of tokens and the time of `time.monotonic` at which it was computed. In an unused cell
    this time is 0, which means that the bucket is full.
    """

    def __init__(self, rate: Rate, cell: Cell) -> None:
        super().__init__(rate, 0.0)
        self._cell = cell

    def lacks_s(self, count: float, _now_s: float) -> float:
        """Return the seconds until `count` requests can pass, or 0 if they can pass now. `count` is at most `burst`."""
        now_s = time.monotonic()  # trio's clock, which the caller passes, has a different zero in each process
        with self._cell.held():
            self.tokens, at_s = self._cell.read()
            elapsed_s = now_s - at_s if at_s else math.inf
            self.tokens = min(self.rate.burst, self.tokens + elapsed_s * self.rate.per_s)
            self._cell.write(self.tokens, now_s)
        return self.time_for(count - self.tokens)

    def add(self, count: float) -> None:
        """Give `count` tokens back, or take tokens if `count` is negative."""
        if count:
            with self._cell.held():
                tokens, at_s = self._cell.read()
                self._cell.write(tokens + count, at_s)

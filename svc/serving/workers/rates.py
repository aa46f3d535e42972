"""Rate limits that apply to all workers together.

The state of each limit is a cell of two numbers in shared memory. A worker locks the cell while it counts a request.
"""

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
"""Number of cells. Two cells for each key suffice for all keys that a policy file of 256 KiB can name.

Memory pages of unused cells are never allocated."""
TRIES = 1000
"""Number of attempts to lock a cell. Other workers hold the lock for microseconds.

If all attempts fail, a worker was probably suspended while it held the lock. The other workers then count without the
lock, and attempt to lock only once for each request until an attempt succeeds."""
_CELL = struct.Struct("=dd")
CELLS_BYTES = CELLS * _CELL.size


class Cell:
    """Two floating-point numbers in shared memory, with a lock. Both are 0 in the beginning."""

    def __init__(self, memory: SharedPage, number: int) -> None:
        self._memory = memory
        self._place = number * _CELL.size
        self._tries = TRIES

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock of the cell in a `with` block.

        Enters the block without the lock after TRIES attempts, or after one attempt if the previous call got no lock.
        """
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
    """The assignment of cells to API keys that have a policy.

    Each key has two cells, one for the rate of its requests and one for the rate of its refusals.
    """

    def __init__(self, memory: SharedPage) -> None:
        self._memory = memory
        self._numbers: dict[str, tuple[int, int]] = {}
        self._unused = zip(range(1, CELLS, 2), range(2, CELLS, 2), strict=False)
        self._freed: deque[tuple[int, int]] = deque()

    def assign(self, kids: Iterable[str]) -> dict[str, tuple[int, int]]:
        """Return the numbers of the two cells of each key in `kids`, and free the cells of all other keys.

        A worker that has not yet received the new policies may still count requests of a removed key. So freed cells
        are reused only when no unused cells remain, in the order in which they were freed.
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


class SharedThrottle(RefusalThrottle):
    """A throttle that delays the refusals of all workers together, with the limits of the throttle `alone`.

    The cell holds the time of `time.monotonic` at which the last counted refusal is sent, or 0 before the first one.
    """

    def __init__(self, alone: RefusalThrottle, cell: Cell) -> None:
        super().__init__(alone.per_s, alone.burst, alone.longest_s)
        self._cell = cell

    def next_wait_s(self) -> float:
        """Count one refusal, and return the seconds to wait before it is sent."""
        with self._cell.held():
            next_s, _ = self._cell.read()
            now_s = time.monotonic()
            next_s = self.next_time(next_s or -math.inf, now_s)
            self._cell.write(next_s, 0.0)
        return max(next_s - now_s, 0.0)

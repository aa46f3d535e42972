"""Admission of requests: a request that would wait longer than its limit is refused at once.

A request waits twice: before it is parsed, while other requests have their turn, and in the queue of its model. The
transport checks both waits before it parses a request (`Admission.late_s`). The endpoint checks again before and after
the body is read (`WaitBudget.require`). No other code refuses a request because other requests wait. Expected waits
come from the pace of a queue (`Pace`).
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Protocol

import trio

from svc.errors import Overloaded, ValidationFailed
from svc.model.ranking.query import Query

SLICE_S = 0.05
"""Seconds of a slice: short steps are joined into slices, and a slice gives the average time of an entry."""
SLICES, FEWEST_SLICES = 9, 3
"""Number of the last slices, and the fewest slices for an estimate.

The estimate is the median of the last slices, so one slow call or one pause of the machine is ignored, however long it
is. It is 0 until there are enough slices to ignore one of them."""


class Pace:
    """Seconds that one entry of a queue takes, learned from steps in which the queue was at work."""

    def __init__(self) -> None:
        self._slices: deque[float] = deque(maxlen=SLICES)
        self._seconds, self._count = 0.0, 0.0
        self.each_s = 0.0

    def learn(self, seconds: float, count: float) -> None:
        """Add a step of `seconds` in which `count` entries, above 0, left the queue."""
        self._seconds += seconds
        self._count += count
        if self._seconds < SLICE_S:
            return
        self._slices.append(self._seconds / self._count)
        self._seconds, self._count = 0.0, 0.0
        if len(self._slices) >= FEWEST_SLICES:
            self.each_s = sorted(self._slices)[len(self._slices) // 2]


TIMEOUT_HEADER = b"x-request-timeout-ms"
WAIT_SHARE = 0.8
"""Share of a request's limit that it may wait. Expected waits are averages, and the answer takes time too."""
UNPARSED_SHARE = 0.4
"""Share of a request's limit that it may wait before it is parsed.

The rest is for the queue of the model. A request without that rest would be parsed and then refused in the queue."""
BATCH_SHARE = 0.4
"""Share of its limit that a batch may wait. It is below WAIT_SHARE, so batches are refused before single requests."""
SHORT_SHARE = 0.25
"""Share of the server's limit. A shorter expected wait never refuses a request, however long it has waited already."""
CROWDED_S = 1.0
"""Seconds after a refusal in which late requests are refused before they are parsed."""
_MILLISECONDS = re.compile(rb"[0-9]{1,9}")


class Queue(Protocol):
    """The waits that the queue of a model reports."""

    @property
    def is_free_of_singles(self) -> bool: ...

    def expected_wait_s(self, batch: int = 0) -> float: ...

    def wait_s(self, queries: Sequence[Query], key: Hashable) -> float: ...


def parse_timeout(value: bytes | None) -> float:
    """Return the client's own timeout in seconds, infinite without the header. Raises ValidationFailed."""
    if value is None:
        return math.inf
    if not _MILLISECONDS.fullmatch(value) or not int(value):
        message = "Input should be a whole number of milliseconds, 1 or more"
        errors = [{"loc": ["header", "X-Request-Timeout-Ms"], "msg": message, "type": "int_parsing"}]
        raise ValidationFailed(f"header: X-Request-Timeout-Ms: {message}", errors=errors)
    return int(value) / 1000


class Admission:
    """The wait limit of one server, and the time of its latest refusal.

    A `most_s` of 0 means no limit.
    """

    def __init__(self, most_s: float) -> None:
        self.most_s = most_s or math.inf
        self._crowded_until = -math.inf

    @property
    def is_crowded(self) -> bool:
        """Return True if a request was refused because of a long wait in the last CROWDED_S seconds."""
        return trio.current_time() < self._crowded_until

    def late_s(self, queue: Queue | None, turn_s: float, timeout: bytes | None, *, is_batch: bool) -> float:
        """Return the expected wait of an unparsed request in seconds if it exceeds the limit, else 0.

        `turn_s` is the wait before the request is parsed. `timeout` is the value of X-Request-Timeout-Ms: the limit is
        the smaller of it and the server's. `queue` is the queue of its model.
        """
        try:
            may_s = min(self.most_s, parse_timeout(timeout))
        except ValidationFailed:  # the endpoint parses the header again and answers with this error
            return 0.0
        queue_s = 0.0
        if queue is not None and (is_batch or not queue.is_free_of_singles):
            queue_s = queue.expected_wait_s(int(is_batch))
        share = BATCH_SHARE / WAIT_SHARE if is_batch else 1.0
        is_late = turn_s > UNPARSED_SHARE * may_s or turn_s + queue_s / share > WAIT_SHARE * may_s
        return turn_s + queue_s if is_late else 0.0

    def refuse(self, wait_s: float) -> Overloaded:
        """Return the refusal of a request that would wait for `wait_s`.

        `retry_after` is that wait, because the waiting requests are answered by then.
        """
        self._crowded_until = trio.current_time() + CROWDED_S
        return Overloaded(fields={"retry_after": max(1, math.ceil(wait_s))})


class WaitBudget:
    """The time that one request of a key may wait from its arrival at `arrived_s`.

    `timeout` is the value of X-Request-Timeout-Ms: an invalid one raises ValidationFailed. If `late_s` is above 0, the
    request was late before it was parsed.
    """

    __slots__ = ("_admission", "_arrived_s", "_late_s", "_own_s", "key")

    def __init__(
        self, admission: Admission, timeout: bytes | None, arrived_s: float, late_s: float = 0.0, key: Hashable = None
    ) -> None:
        self.key = key
        self._admission = admission
        self._own_s = parse_timeout(timeout)
        self._arrived_s = arrived_s
        self._late_s = late_s

    def require(
        self,
        queue: Queue,
        queries: Sequence[Query] | None = None,
        *,
        is_batch: bool = False,
        threads_s: float = 0.0,
    ) -> None:
        """Raise Overloaded if the wait in the queue would be too long.

        `queries` are None until the body is parsed. `threads_s` is the wait for a thread before the queue. A request
        with an expected wait of 0 is never refused. A single request that the next call answers is held to its own
        limit only: batches make calls long, and must not shut single requests out.
        """
        if self._late_s:
            # Includes the time since arrival: the more refusals queue up, the later their clients retry.
            raise self._admission.refuse(self._late_s + trio.current_time() - self._arrived_s)
        wait_s = queue.expected_wait_s(int(is_batch)) if queries is None else queue.wait_s(queries, self.key)
        wait_s += threads_s
        is_next = queries is None and not is_batch and not threads_s and queue.is_free_of_singles
        if wait_s and self._is_too_long(wait_s, BATCH_SHARE if is_batch else WAIT_SHARE, is_next=is_next):
            raise self._admission.refuse(wait_s)

    def refusal(self) -> Overloaded | None:
        """Return the refusal of a request that has waited longer than its limit, else None.

        This check bounds the real wait: the expected one may be far off until expensive queries have been measured.
        """
        waited_s = trio.current_time() - self._arrived_s
        return self._admission.refuse(waited_s) if waited_s > min(self._own_s, self._admission.most_s) else None

    def _is_too_long(self, wait_s: float, share: float, *, is_next: bool) -> bool:
        """Return True if the wait so far and the expected wait exceed the limit.

        A request with a short expected wait is held to its own limit only: after a pause of the machine every request
        is late, but a refusal gains nothing if the queue is short.
        """
        most_s = self._admission.most_s
        is_short = is_next or wait_s <= SHORT_SHARE * share * most_s
        may_s = self._own_s if is_short else min(self._own_s, most_s)
        return trio.current_time() - self._arrived_s + wait_s > may_s * share

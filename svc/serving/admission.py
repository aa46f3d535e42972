"""Overload protection: a request whose expected wait exceeds a share of its limit is refused at once, with 503.

A request waits twice. First it waits for its turn to be parsed, then for its turn in the queue of its model. The
transport checks the sum of both expected waits before it parses a request (`Admission.late_s`). The endpoint checks the
wait in the queue again, before and after it reads the body (`WaitBudget.require`). Each expected wait is estimated from
the work ahead in the queue and from the measured time of one unit of work (`Pace`).
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import trio

from svc.asking.costs import Cost
from svc.asking.fields import invalid
from svc.errors import AnswerTooLarge, Overloaded, ValidationFailed

SLICE_S = 0.05
"""`Pace` averages the time of one unit over at least this many seconds of work."""
SLICES, FEWEST_SLICES = 9, 3
"""The estimate is the median of the last SLICES averages, so one pause of the machine does not change it.

The estimate is 0 until there are FEWEST_SLICES averages, because the median of fewer cannot ignore a pause."""


class Pace:
    """An estimate of the seconds that one unit of work takes (`each_s`). Idle time does not count.

    The caller of `learn` chooses the unit, such as a request or a plain query.
    """

    def __init__(self) -> None:
        self._slices: deque[float] = deque(maxlen=SLICES)
        self._seconds, self._count = 0.0, 0.0
        self.each_s = 0.0

    def learn(self, seconds: float, count: float) -> None:
        """Add a measurement: `count` units of work took `seconds`. `count` is above 0."""
        self._seconds += seconds
        self._count += count
        if self._seconds < SLICE_S:
            return
        self._slices.append(self._seconds / self._count)
        self._seconds, self._count = 0.0, 0.0
        if len(self._slices) >= FEWEST_SLICES:
            # With an average, one slow call or one pause of the machine refused clients during drains and swaps.
            self.each_s = sorted(self._slices)[len(self._slices) // 2]


SMALL_BYTES = 1 << 16
"""Largest answer that is never refused because of other unsent answers. The kernel usually takes all of it at once."""
TIMEOUT_HEADER = b"x-request-timeout-ms"
WAIT_SHARE = 0.8
"""A single request is refused if its wait so far plus its expected wait exceeds this share of its limit.

The share is below 1, because expected waits are averages and the answer itself takes time. `WaitBudget.require` makes
exceptions."""
UNPARSED_SHARE = 0.4
"""A request is refused if its expected wait before it is parsed exceeds this share of its limit.

After such a wait, the queue of its model would probably refuse it anyway."""
# Half of WAIT_SHARE. When both were equal, requests waited the whole share to be parsed, and the queue refused them.
BATCH_SHARE = 0.4
"""A batch is refused if its wait so far plus its expected wait exceeds this share of its limit.

The share is below WAIT_SHARE, so an overloaded server refuses batches before it refuses single requests."""
SHORT_SHARE = 0.25
"""`WaitBudget.require` ignores the server's limit if the expected wait is at most SHORT_SHARE of the threshold.

The threshold is WAIT_SHARE of the server's limit, or BATCH_SHARE of it for a batch. The client's own limit in
X-Request-Timeout-Ms still applies."""
CROWDED_S = 1.0
"""For this many seconds after a refusal, the server checks the expected wait of each request for a model.

It does so before it parses the request. At other times it checks only requests that must wait to be parsed."""
# Refusals after parsing left 35% of the capacity for answers in an open loop of three times the capacity at 41,000
# items. Refusals before it left 73 to 78%.
_MILLISECONDS = re.compile(rb"[0-9]{1,9}")


class QueueWaits(Protocol):
    """The part of a model's queue that admission uses. `lanes.Lane` has it."""

    @property
    def is_free_of_singles(self) -> bool: ...

    def expected_wait_s(self, batch: int = 0) -> float: ...

    def wait_s(self, costs: Sequence[Cost], key: Hashable) -> float: ...


def parse_timeout(value: bytes | None) -> float:
    """Return the value of X-Request-Timeout-Ms in seconds, or infinity if it is None.

    Raises ValidationFailed if the value is not a whole number of milliseconds from 1 to 999,999,999.
    """
    if value is None:
        return math.inf
    if not _MILLISECONDS.fullmatch(value) or not int(value):
        message = "Input should be a whole number of milliseconds, 1 or more"
        raise invalid(["X-Request-Timeout-Ms"], message, "int_parsing", part="header")
    return int(value) / 1000


class UnsentBytes:
    """The number of bytes of unsent answers, over all connections of a process."""

    def __init__(self, most: float = math.inf) -> None:
        self._most = most
        self.count = 0

    def has_room(self, size: int) -> bool:
        """Return True if an answer of this size may be encoded. An answer that is alone always may."""
        return not self.count or self.count + size <= self._most

    @contextmanager
    def hold(self, size: int) -> Iterator[None]:
        """Count `size` bytes during the block."""
        self.count += size
        try:
            yield
        finally:
            self.count -= size


class Admission:
    """The decision whether the server refuses a request because of its wait, or of the bytes of its answer.

    `most_s` is the server's limit in seconds (`Settings.max_queue_s`). A client may set a lower limit for its request.
    """

    def __init__(self, most_s: float, answer_bytes: float = math.inf, unsent_bytes: float = math.inf) -> None:
        """Set the server's limits. `most_s` of 0 means no limit."""
        self.most_s = most_s or math.inf
        self._answer_bytes = answer_bytes
        self.unsent = UnsentBytes(unsent_bytes)
        self._crowded_until = -math.inf

    @property
    def is_crowded(self) -> bool:
        """True if, within the last CROWDED_S seconds, a request was refused because of its wait."""
        return trio.current_time() < self._crowded_until

    def late_s(self, queue: QueueWaits | None, turn_s: float, timeout: bytes | None, *, is_batch: bool) -> float:
        """Return the expected wait in seconds if an unparsed request must be refused, else 0.

        `turn_s` is the expected wait before the request is parsed. `queue` is the queue of its model, or None without a
        model. `timeout` is the value of X-Request-Timeout-Ms, or None without it. The limit is the smaller of this
        timeout and the server's limit. With an invalid timeout the result is 0.

        A request must be refused if `turn_s` exceeds UNPARSED_SHARE of the limit, or if both waits together exceed
        WAIT_SHARE of it. For a batch, the wait in the queue counts WAIT_SHARE / BATCH_SHARE times. For a single
        request, it does not count if no other single request waits in the queue.
        """
        try:
            may_s = min(self.most_s, parse_timeout(timeout))
        except ValidationFailed:  # the endpoint parses the header too, and answers 422
            return 0.0
        queue_s = 0.0
        if queue is not None and (is_batch or not queue.is_free_of_singles):
            queue_s = queue.expected_wait_s(int(is_batch))
        share = BATCH_SHARE / WAIT_SHARE if is_batch else 1.0
        is_late = turn_s > UNPARSED_SHARE * may_s or turn_s + queue_s / share > WAIT_SHARE * may_s
        return turn_s + queue_s if is_late else 0.0

    def refuse(self, wait_s: float) -> Overloaded:
        """Return the error that refuses a request, and let `is_crowded` be True for CROWDED_S.

        `wait_s` is the expected wait of the request, or the time that it has waited. The field `retry_after` of the
        error is this time, rounded up to whole seconds, and at least 1. The requests that wait now are probably
        answered by then.
        """
        self._crowded_until = trio.current_time() + CROWDED_S
        return Overloaded(fields={"retry_after": max(1, math.ceil(wait_s))})

    def hold(self, size: int) -> AbstractContextManager[None]:
        """Return a block that counts an answer of `size` bytes as unsent while it is encoded.

        Raises AnswerTooLarge or Overloaded. Answers of up to SMALL_BYTES are neither counted nor refused, so unread
        large answers do not stop the small ones.
        """
        if size <= SMALL_BYTES:
            return nullcontext()
        if size > self._answer_bytes:
            raise AnswerTooLarge(AnswerTooLarge.template.format(size=size, cap=self._answer_bytes))
        # Without this bound, 60 answers of 29 MB that no client read held 2 GB.
        if not self.unsent.has_room(size):
            raise Overloaded("too many bytes of earlier answers are unsent; ask again later", fields={"retry_after": 1})
        return self.unsent.hold(size)


class WaitBudget:
    """The time that one request may wait, counted from its arrival.

    `arrived_s` is the time of arrival on trio's clock, and `key` the API key. `timeout` is the value of
    X-Request-Timeout-Ms, or None without it. An invalid value raises ValidationFailed. `late_s` is the result of
    `Admission.late_s`.
    """

    __slots__ = ("_admission", "_arrived_s", "_late_s", "_own_s", "_worked_s", "key")

    def __init__(
        self, admission: Admission, timeout: bytes | None, arrived_s: float, late_s: float = 0.0, key: Hashable = None
    ) -> None:
        self.key = key
        self._admission = admission
        self._own_s = parse_timeout(timeout)
        self._arrived_s = arrived_s
        self._late_s = late_s
        self._worked_s = 0.0

    def exclude(self, seconds: float) -> None:
        """Do not count `seconds` as a wait, in which the request was sent or prepared. The client's limit counts them.

        Otherwise a request whose own filters take a second would be refused by an idle server.
        """
        # 16 boosts of 32 conditions with 1,000 values take 0.8 s to compile.
        self._worked_s += seconds

    def require(
        self,
        queue: QueueWaits,
        costs: Sequence[Cost] | None = None,
        *,
        is_batch: bool = False,
        threads_s: float = 0.0,
    ) -> None:
        """Raise Overloaded if the wait so far and the expected wait are too long together.

        `costs` are the cost classes of the request's queries, or None before the body is parsed. `threads_s` is the
        expected wait for a thread in seconds. The request waits for the thread before it waits in the queue.

        A request with a positive `late_s` is always refused. Any other request with an expected wait of 0 is not
        refused. Before the body is parsed, the server's limit does not apply to a single request that the next scoring
        call answers. Otherwise a batch that makes one call long would cause refusals of single requests.
        """
        if self._late_s:
            # The time since arrival grows with the number of refusals that wait, so clients retry later under a flood.
            raise self._admission.refuse(self._late_s + trio.current_time() - self._arrived_s)
        wait_s = queue.expected_wait_s(int(is_batch)) if costs is None else queue.wait_s(costs, self.key)
        wait_s += threads_s
        is_next = costs is None and not is_batch and not threads_s and queue.is_free_of_singles
        if wait_s and self._is_too_long(wait_s, BATCH_SHARE if is_batch else WAIT_SHARE, is_next=is_next):
            raise self._admission.refuse(wait_s)

    def refusal(self) -> Overloaded | None:
        """Return an error if the request has already waited longer than its limit, else None.

        `require` compares expected waits. These are far off until the cost of expensive queries has been measured. This
        method compares the real wait.
        """
        waited_s = trio.current_time() - self._arrived_s
        is_late = waited_s > self._own_s or waited_s - self._worked_s > self._admission.most_s
        return self._admission.refuse(waited_s) if is_late else None

    def _is_too_long(self, wait_s: float, share: float, *, is_next: bool) -> bool:
        """Return True if the wait so far plus the expected wait exceeds this share of the limit.

        The server's limit does not apply with `is_next`, or if the expected wait is short (SHORT_SHARE). After a pause
        of the machine all requests have waited for long, but refusing them gains nothing if the queue is short.
        """
        most_s, waited_s = self._admission.most_s, trio.current_time() - self._arrived_s + wait_s
        is_short = is_next or wait_s <= SHORT_SHARE * share * most_s
        return waited_s > self._own_s * share or (not is_short and waited_s - self._worked_s > most_s * share)

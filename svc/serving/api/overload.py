"""Whether a request may wait for its turn. One that would wait longer than it may is refused at once."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import trio

from svc.errors import Overloaded, ValidationFailed
from svc.serving.transport.shared import WAIT_SHARE

TIMEOUT_HEADER = b"x-request-timeout-ms"
BATCH_SHARE = 0.4
"""Of what a batch may wait, so that batches are refused before single requests are."""
SHORT_SHARE = 0.25
"""Of what a request may wait: behind a shorter wait it is not refused by the server's limit, late as it may be."""
_MILLISECONDS = re.compile(rb"[0-9]{1,9}")


def timeout_s(headers: Mapping[bytes, bytes]) -> float:
    """Seconds after which the client does not need its answer any more; infinite when it does not say.

    Raises ValidationFailed.
    """
    given = headers.get(TIMEOUT_HEADER)
    if given is None:
        return math.inf
    if not _MILLISECONDS.fullmatch(given) or not int(given):
        message = "Input should be a whole number of milliseconds, 1 or more"
        errors = [{"loc": ["header", "X-Request-Timeout-Ms"], "msg": message, "type": "int_parsing"}]
        raise ValidationFailed(f"header: X-Request-Timeout-Ms: {message}", errors=errors)
    return int(given) / 1000


class Patience:
    """How long one request may wait, from when it came. `most_s` is the server's own limit; 0: none.

    With `late_s` it was found before it was parsed that it would wait for so long, which is too long.
    """

    __slots__ = ("_arrived_s", "_late_s", "_most_s", "_own_s")

    def __init__(self, headers: Mapping[bytes, bytes], arrived_s: float, most_s: float, *, late_s: float = 0.0) -> None:
        self._late_s = late_s
        self._own_s = timeout_s(headers)
        self._most_s = most_s or math.inf
        self._arrived_s = arrived_s

    def require(self, wait_s: float, *, is_batch: bool, is_next: bool = False) -> None:
        """Raise Overloaded when another `wait_s` would be too long. Whoever need not wait is never refused here.

        What `is_next` is answered by the next call: only its own limit refuses it, so that batches, which make calls
        long, never shut single requests out. What has little left to wait is too late for its own limit only: the
        machine may have paused, and where nobody waits for long there is nothing that a refusal would mend.
        """
        if self._late_s:
            raise overloaded(self._late_s + trio.current_time() - self._arrived_s)
        if not wait_s:
            return
        share = BATCH_SHARE if is_batch else WAIT_SHARE
        is_short = is_next or wait_s <= SHORT_SHARE * share * self._most_s
        may_s = self._own_s if is_short else min(self._own_s, self._most_s)
        if trio.current_time() - self._arrived_s + wait_s > may_s * share:
            raise overloaded(wait_s)


def overloaded(wait_s: float) -> Overloaded:
    """The refusal of a request that would wait so long: by then others have been answered.

    The time that a late refusal took counts too: the more there is to refuse, the later all come again.
    """
    return Overloaded(fields={"retry_after": max(1, math.ceil(wait_s))})

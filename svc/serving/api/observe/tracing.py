"""W3C trace context, which identifies a request across systems."""

from __future__ import annotations

import random
import re
from typing import NamedTuple

# Version ff is not allowed, nor are ids of zeros. A later version may add fields behind the flags.
_TRACEPARENT = re.compile(
    rb"(?!ff)(?P<version>[0-9a-f]{2})-(?P<trace>(?!0{32})[0-9a-f]{32})-(?P<span>(?!0{16})[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})"
    rb"(?P<more>-[!-~]*)?"
)


class Trace(NamedTuple):
    """The trace of a request and the caller's span in it, in lower-case hex."""

    trace_id: bytes
    span_id: bytes
    flags: bytes

    def header(self) -> tuple[bytes, bytes]:
        """Return the header `traceparent` of this span."""
        return b"traceparent", b"00-%b-%b-%b" % self

    def step(self) -> Trace:
        """Return the same trace with a new span id, for an answer without a recorded span."""
        return self._replace(span_id=b"%016x" % (random.getrandbits(64) or 1))


def parse_trace(value: bytes | None) -> Trace | None:
    """Return the trace of a `traceparent` header, or None if the header is missing or invalid."""
    match = _TRACEPARENT.fullmatch(value or b"")
    if match is None or (match["version"] == b"00" and match["more"]):
        return None
    return Trace(match["trace"], match["span"], match["flags"])

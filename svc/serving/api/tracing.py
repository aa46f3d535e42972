"""W3C trace context: the id that a request has in the systems around this one."""

from __future__ import annotations

import random
import re
from typing import NamedTuple

# Version ff is not allowed, nor are ids of zeros; a later version may say more behind the flags.
_TRACEPARENT = re.compile(
    rb"(?!ff)(?P<version>[0-9a-f]{2})-(?P<trace>(?!0{32})[0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-(?P<flags>[0-9a-f]{2})"
    rb"(?P<more>-[!-~]*)?"
)


class Trace(NamedTuple):
    """The trace of a request. Its answer has the same trace, with this server's own step in it."""

    trace_id: bytes
    flags: bytes

    def header(self) -> tuple[bytes, bytes]:
        """`traceparent` of the answer."""
        return b"traceparent", b"00-%b-%016x-%b" % (self.trace_id, random.getrandbits(64) or 1, self.flags)


def parse_trace(value: bytes | None) -> Trace | None:
    """The trace that `traceparent` names; None without one, and for one that is not valid, which is ignored."""
    match = _TRACEPARENT.fullmatch(value or b"")
    if match is None or (match["version"] == b"00" and match["more"]):
        return None
    return Trace(match["trace"], match["flags"])

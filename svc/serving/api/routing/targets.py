"""Decodes the target of a request once, for routing, checks and answers."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from svc.errors import MalformedRequest

_PLAIN = re.compile(rb"/[\w:/.-]*")  # needs no decoding
_ABSOLUTE = re.compile(rb"https?://([^/?]*)", re.IGNORECASE)
_VISIBLE = re.compile(rb'[!"$-~]*')  # ASCII without blanks and controls, and without "#": a target has no fragment
_BROKEN_CODE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


class Target(NamedTuple):
    """A request target: the decoded path, the raw query and the host, which is None unless the target is a full URL."""

    path: str
    query: bytes
    host: bytes | None


def parse_target(target: bytes, method: str) -> Target:
    """Parse a target (RFC 9112, 3.2), without merging slashes or resolving dot segments.

    The path `*`, which only OPTIONS may have, matches no endpoint. Raises MalformedRequest.
    """
    if _PLAIN.fullmatch(target):
        return Target(target.decode("ascii"), b"", None)
    if not _VISIBLE.fullmatch(target):
        raise MalformedRequest("the request target holds a character that no target may have")
    absolute = _ABSOLUTE.match(target)
    rest = target[absolute.end() :] if absolute else target
    path, _, query = rest.partition(b"?")
    if absolute:
        path = path or b"/"
    elif not path.startswith(b"/") and (target, method) != (b"*", "OPTIONS"):
        raise MalformedRequest("the path of the request does not begin with a slash")
    return Target(_decode(path), query, absolute[1] if absolute else None)


def _decode(path: bytes) -> str:
    if b"%" not in path:
        return path.decode("ascii")
    if _BROKEN_CODE.search(path):
        raise MalformedRequest("a percent sign in the path is not followed by two hexadecimal digits")
    try:
        return unquote_to_bytes(path).decode()
    except UnicodeDecodeError:
        raise MalformedRequest from None

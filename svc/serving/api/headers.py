"""Parsers of the request target and of the headers Host, Origin and traceparent."""

from __future__ import annotations

import ipaddress
import os
import random
import re
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from svc.errors import HostNotAllowed, MalformedRequest
from svc.serving.transport.messages import Headers
from svc.settings import Settings

_PLAIN = re.compile(rb"/[\w:/.-]*")  # a path without query and percent signs needs no decoding
_ABSOLUTE = re.compile(rb"https?://([^/?]*)", re.IGNORECASE)
_VISIBLE = re.compile(rb'[!"$-~]*')  # visible ASCII except "#", because a request target has no fragment
_BROKEN_CODE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


class Target(NamedTuple):
    """A request target: the decoded path, the raw query, and the host with its port if the target is a full URL."""

    path: str
    query: bytes
    host: bytes | None


def parse_target(target: bytes, method: str) -> Target:
    """Parse a request target (RFC 9112, 3.2). Raises MalformedRequest.

    Neither merges slashes nor resolves dot segments, so `//v1` and `/x/../v1` match no endpoint. The target may be `*`
    if the method is OPTIONS.
    """
    if _PLAIN.fullmatch(target):
        return Target(target.decode("ascii"), b"", None)
    if not _VISIBLE.fullmatch(target):
        raise MalformedRequest("the request target holds a character that no target may have")
    absolute = _ABSOLUTE.match(target)
    rest = target[absolute.end() :] if absolute else target
    path, _, query = rest.partition(b"?")
    if absolute:
        # A URL without a path means / (RFC 9110, 4.2.3).
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
        # Not `unquote`, which replaces invalid bytes, so that several paths would become one.
        return unquote_to_bytes(path).decode()
    except UnicodeDecodeError:
        raise MalformedRequest from None


LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
LONGEST_NAME = 253
_LABEL = "[A-Za-z0-9_~-]{1,63}"  # with underscores, which DNS forbids but names of containers may have
_HOST = re.compile(rf"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>{_LABEL}(?:\.{_LABEL})*)\.?)(?::[0-9]{{0,5}})?")


class HostRules:
    """The host names under which clients may address the server. They protect servers without keys from DNS rebinding.

    A rule is a host name, `*.example.com` for all names that end with `.example.com`, or `*` for all names. Without
    SVC_ALLOWED_HOSTS a server with keys has the rule `*`, and a server without keys has the rules LOOPBACK_NAMES.
    """

    def __init__(self, settings: Settings, *, has_keys: bool) -> None:
        rules = settings.allowed_hosts
        if rules is None:
            rules = ("*",) if has_keys else LOOPBACK_NAMES
        self._names = frozenset(map(_normal, rules))
        # With the dot, so that `*.example.com` does not allow `evilexample.com`.
        self._suffixes = tuple(rule[1:].lower() for rule in rules if rule.startswith("*."))
        self._any = "*" in rules

    def check(self, host: str) -> None:
        """Raise HostNotAllowed if no rule allows `host`, which is a result of `parse_host`."""
        if self._any or host in self._names or (self._suffixes and host.endswith(self._suffixes)):
            return
        raise HostNotAllowed


def _normal(rule: str) -> str:
    """Return a rule in the spelling in which `parse_host` returns hosts."""
    try:
        # One address has many spellings, such as ::1 and 0:0:0:0:0:0:0:1.
        return str(ipaddress.IPv6Address(rule.strip("[]")))
    except ValueError:
        return rule.lower().rstrip(".")


def parse_host(host: bytes) -> str:
    """Return the name or address in `host`, in lower case and without port, brackets and final dot.

    `host` is the value of a Host header, or the host of a full URL. The result for an empty value is "".

    Raises MalformedRequest for an invalid host, such as `a..b`, `[::1].evil.com` or `localhost:80@evil.com`.
    """
    # Before the cache, which would keep long names that clients invent.
    if len(host) > LONGEST_NAME + len(":65535."):
        raise MalformedRequest("the host of the request is not a valid host")
    return _parse(host)


# Errors are not cached, so invalid hosts push no valid one out.
@lru_cache(maxsize=64)
def _parse(host: bytes) -> str:
    if not host:
        return ""
    match = _HOST.fullmatch(host.decode("latin-1"))
    if match is None:
        raise MalformedRequest("the host of the request is not a valid host")
    if match["name"]:
        return match["name"].lower()
    try:
        return str(ipaddress.IPv6Address(match["address"]))
    except ValueError:
        raise MalformedRequest("the host of the request is not a valid IPv6 address") from None


PREFLIGHT_AGE_S = 600


class Origins:
    """The origins of web pages that may use the API from a browser (CORS)."""

    def __init__(self, settings: Settings) -> None:
        self._any = "*" in settings.allowed_origins
        # A variable may have bytes that are not UTF-8, which `str.encode` refuses.
        self._allowed = frozenset(map(os.fsencode, settings.allowed_origins))

    def headers(self, origin: bytes | None) -> Headers:
        """Return the headers that let a page of `origin` read the answer, or () if `origin` is None or not allowed."""
        if origin is None or not (self._any or origin in self._allowed):
            return ()
        return [
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", b"Retry-After, traceparent, X-Request-ID, X-Svc-Model-Version"),
            (b"vary", b"Origin"),
        ]


PREFLIGHT_HEADERS: Headers = [
    (b"access-control-allow-methods", b"GET, POST"),
    (
        b"access-control-allow-headers",
        b"Authorization, Content-Type, traceparent, X-API-Key, X-Request-ID, X-Request-Timeout-Ms",
    ),
    (b"access-control-max-age", str(PREFLIGHT_AGE_S).encode()),
]


# W3C Trace Context forbids version ff and ids of zeros. Later versions may add fields after the flags (`more`).
_TRACEPARENT = re.compile(
    rb"(?!ff)(?P<version>[0-9a-f]{2})-(?P<trace>(?!0{32})[0-9a-f]{32})-(?P<span>(?!0{16})[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})"
    rb"(?P<more>-[!-~]*)?"
)


class Trace(NamedTuple):
    """The trace context of a request: trace id, span id and flags, in lower-case hexadecimal digits."""

    trace_id: bytes
    span_id: bytes
    flags: bytes

    def header(self) -> tuple[bytes, bytes]:
        """Return name and value of the header `traceparent` with this trace context."""
        return b"traceparent", b"00-%b-%b-%b" % self

    def step(self) -> Trace:
        """Return the same trace with a new span id. An answer gets this trace if the server records no spans."""
        # An id of zeros is invalid.
        return self._replace(span_id=b"%016x" % (random.getrandbits(64) or 1))


def parse_trace(value: bytes | None) -> Trace | None:
    """Return the trace of a `traceparent` header, or None if the header is missing or invalid."""
    match = _TRACEPARENT.fullmatch(value or b"")
    if match is None or (match["version"] == b"00" and match["more"]):
        return None
    return Trace(match["trace"], match["span"], match["flags"])

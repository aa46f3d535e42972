"""What a client may send and ask for: hosts, origins, and how much body in how much time."""

from __future__ import annotations

import io
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import trio

from svc.errors import BodyTimeout, HostNotAllowed, PayloadTooLargeForRequest
from svc.settings import Settings

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Headers = Mapping[bytes, bytes]
Pairs = list[tuple[bytes, bytes]]

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
PREFLIGHT_AGE_S = 600
SLOWEST_BYTES_PER_S = 1 << 20
"""A body that arrives faster than this may take longer than the client timeout."""


class ClientGone(Exception):
    """The client closed its connection before the request was whole: nobody waits for an answer."""


class HostRules:
    """Which names of the Host header are served: guards servers without keys against DNS rebinding.

    A rule is a name, `*.name` for all names below it, or `*`.
    """

    def __init__(self, settings: Settings, *, has_keys: bool) -> None:
        rules = settings.allowed_hosts
        if rules is None:
            rules = ("*",) if has_keys else LOOPBACK_NAMES
        self._names = frozenset(rule.lower().strip("[]") for rule in rules)
        self._suffixes = tuple(rule[1:].lower() for rule in rules if rule.startswith("*."))
        self._any = "*" in rules

    def check(self, host: bytes | None) -> None:
        """Raises HostNotAllowed."""
        if self._any:
            return
        name = _host_name((host or b"").decode("latin-1"))
        if name not in self._names and not name.endswith(self._suffixes or ("\n",)):
            raise HostNotAllowed("this server does not answer for the host of the request; see SVC_ALLOWED_HOSTS")


def _host_name(host: str) -> str:
    """The name of a Host header, without its port and in lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].rstrip(".").lower()


class Origins:
    """CORS: which web pages may call from a browser, and what their preflight is told."""

    def __init__(self, settings: Settings) -> None:
        self._any = "*" in settings.allowed_origins
        self._allowed = frozenset(origin.encode() for origin in settings.allowed_origins)

    def headers(self, origin: bytes | None) -> Pairs:
        """Headers that let a page of `origin` read the answer; none for others."""
        if origin is None or not (self._any or origin in self._allowed):
            return []
        return [
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", b"X-Request-ID, X-Svc-Model-Version"),
            (b"vary", b"Origin"),
        ]


PREFLIGHT_HEADERS: Pairs = [
    (b"access-control-allow-methods", b"GET, POST"),
    (b"access-control-allow-headers", b"Content-Type, X-API-Key, X-Request-ID"),
    (b"access-control-max-age", str(PREFLIGHT_AGE_S).encode()),
]


async def read_body(receive: Receive, headers: Headers, settings: Settings) -> bytes:
    """The whole body.

    Raises PayloadTooLargeForRequest by Content-Length before reading and by count while reading, BodyTimeout when
    it has not come in `client_timeout_s` and a second for each MiB, and ClientGone.
    """
    cap = settings.max_body_bytes
    declared = headers.get(b"content-length", b"0")
    if len(declared) > len(str(cap)) or int(declared) > cap:
        raise PayloadTooLargeForRequest(f"the body is larger than {cap} bytes")
    length = int(declared) if b"content-length" in headers and b"transfer-encoding" not in headers else None
    with trio.move_on_after(settings.client_timeout_s) as scope:
        return await _collect(receive, length, cap, scope)
    raise BodyTimeout(f"the body did not arrive within {settings.client_timeout_s:g} seconds")


async def _collect(receive: Receive, length: int | None, cap: int, scope: trio.CancelScope) -> bytes:
    """The body. One of known length is whole with its last byte, before an empty message says so."""
    message = await receive()
    body: bytes = message.get("body", b"")
    buffer: io.BytesIO | None = None  # its value is taken without another copy
    size = len(body)
    while message.get("more_body") and size != length:
        message = await receive()
        part: bytes = message.get("body", b"")
        if part:
            if buffer is None:
                buffer = io.BytesIO()
                buffer.write(body)
            buffer.write(part)
            size += len(part)
            scope.deadline += len(part) / SLOWEST_BYTES_PER_S
        if size > cap:
            raise PayloadTooLargeForRequest(f"the body is larger than {cap} bytes")
    if message["type"] == "http.disconnect":
        raise ClientGone
    return buffer.getvalue() if buffer else body

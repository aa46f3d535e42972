"""Which hosts and origins are served."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from svc.errors import HostNotAllowed
from svc.settings import Settings

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Headers = Mapping[bytes, bytes]
Pairs = list[tuple[bytes, bytes]]

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
PREFLIGHT_AGE_S = 600


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

"""Checks of the Host header."""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache

from svc.errors import HostNotAllowed, MalformedRequest
from svc.settings import Settings

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
LONGEST_NAME = 253
_LABEL = "[A-Za-z0-9_~-]{1,63}"  # names of containers may have underscores
_HOST = re.compile(rf"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>{_LABEL}(?:\.{_LABEL})*)\.?)(?::[0-9]{{0,5}})?")


class HostRules:
    """The allowed hosts, which protect servers without keys from DNS rebinding.

    A rule is a name, `*.name` for all names below it, or `*`.
    """

    def __init__(self, settings: Settings, *, has_keys: bool) -> None:
        rules = settings.allowed_hosts
        if rules is None:
            rules = ("*",) if has_keys else LOOPBACK_NAMES
        self._names = frozenset(map(_normal, rules))
        self._suffixes = tuple(rule[1:].lower() for rule in rules if rule.startswith("*."))
        self._any = "*" in rules

    def check(self, host: str) -> None:
        """Raise HostNotAllowed if no rule allows `host`, a result of `parse_host`."""
        if self._any or host in self._names or (self._suffixes and host.endswith(self._suffixes)):
            return
        raise HostNotAllowed


def _normal(rule: str) -> str:
    """Return a rule in the spelling of `parse_host`."""
    try:
        return str(ipaddress.IPv6Address(rule.strip("[]")))
    except ValueError:
        return rule.lower().rstrip(".")


def parse_host(host: bytes) -> str:
    """Return the name or address of a Host header in lower case without the port, or "" for a missing header.

    Raises MalformedRequest for an invalid host, such as `a..b`, `[::1].evil.com` or `localhost:80@evil.com`.
    """
    if len(host) > LONGEST_NAME + len(":65535."):
        raise MalformedRequest("the host of the request is not a valid host")
    return _parse(host)


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

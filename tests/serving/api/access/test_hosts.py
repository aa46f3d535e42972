"""Host headers: valid hosts, and allowed hosts."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.errors import HostNotAllowed, MalformedRequest
from svc.serving.api.access.hosts import HostRules, parse_host
from svc.settings import Settings


@pytest.mark.parametrize(
    ("host", "name"),
    [
        (b"", ""),
        (b"LocalHost:8080", "localhost"),
        (b"a.b.", "a.b"),
        (b"my_service:80", "my_service"),
        (b"127.0.0.1:", "127.0.0.1"),
        (b"[::1]:99999", "::1"),
        (b"[0:0:0:0:0:0:0:1]", "::1"),
        (b"x" * 63, "x" * 63),
    ],
)
def test_a_host_is_read_without_its_port(host: bytes, name: str) -> None:
    """Hosts are in lower case, and addresses in their shortest form."""
    assert parse_host(host) == name


@pytest.mark.parametrize(
    "host",
    [
        *(b"a..b", b"127.0..1", b".", b"..", b".a", b"x" * 64, b"x" * 70 + b".com", b".".join([b"abc"] * 80)),
        *(b"[::1].evil.com", b"[::1", b"::1", b"[", b"[]", b"[1::2::3]", b"[fe80::1%25eth0]", b"localhost:80@evil.com"),
        *(b"u@h", b"a:b", b"a:123456", b"a b", b"a/b", b"a,b", b"a\x00", b"x%E2%84%80", b"\xe2\x84\x80", b"a#b"),
    ],
)
def test_invalid_hosts_are_refused(host: bytes) -> None:
    """An invalid host raises MalformedRequest."""
    with pytest.raises(MalformedRequest):
        parse_host(host)


@given(st.binary(max_size=80))
def test_any_bytes_are_parsed_or_refused(host: bytes) -> None:
    """No other exception is raised."""
    with suppress(MalformedRequest):
        assert "@" not in parse_host(host)


@pytest.mark.parametrize("host", ["evil.com", "", "localhost.evil.com", "::2", "xlocalhost"])
def test_other_hosts_than_loopback_need_a_rule(host: str) -> None:
    """Without keys and without the setting, only loopback hosts are allowed."""
    rules = HostRules(Settings(), has_keys=False)
    with pytest.raises(HostNotAllowed):
        rules.check(host)
    for name in ("localhost", "127.0.0.1", "::1"):
        rules.check(name)
    HostRules(Settings(), has_keys=True).check(host)
    HostRules(Settings(allowed_hosts=("*",)), has_keys=False).check(host)


def test_rules_match_hosts_in_any_spelling() -> None:
    """Rules may have any case, brackets, any form of an address, and a wildcard for all names below one."""
    rules = HostRules(Settings(allowed_hosts=("Shop.Test.", "[0::1]", "fe80:0::2", "*.Api.test")), has_keys=False)
    for name in ("shop.test", "::1", "fe80::2", "a.api.test", "a.b.api.test"):
        rules.check(name)
    with pytest.raises(HostNotAllowed):
        rules.check("api.test")

"""Parsing of request targets, hosts and trace contexts."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.contextvars import get_contextvars
from structlog.testing import capture_logs

from svc.errors import HostNotAllowed, MalformedRequest
from svc.serving.api.headers import HostRules, Target, parse_host, parse_target, parse_trace
from svc.settings import Settings
from tests.serving.client import serving


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (b"/", Target("/", b"", None)),
        (b"/v1/recipes?a=%20&b", Target("/v1/recipes", b"a=%20&b", None)),
        (b"//v1/recipes", Target("//v1/recipes", b"", None)),
        (b"/v1/./x/../recipes", Target("/v1/./x/../recipes", b"", None)),
        (b"/%76%31/a%2Fb", Target("/v1/a/b", b"", None)),
        (b"/%2576", Target("/%76", b"", None)),
        (b"/%c3%A9", Target("/\u00e9", b"", None)),
        (b"/a%00b", Target("/a\x00b", b"", None)),
        (b"/a?b?c", Target("/a", b"b?c", None)),
        (b"http://any/v1/recipes?a", Target("/v1/recipes", b"a", b"any")),
        (b"HTTPS://any:1", Target("/", b"", b"any:1")),
        (b"http://any?a", Target("/", b"a", b"any")),
        (b"http:///v1", Target("/v1", b"", b"")),
        (b"http://[/v1", Target("/v1", b"", b"[")),
    ],
)
def test_a_target_is_decoded_once(target: bytes, expected: Target) -> None:
    """Slashes and dots are kept. A percent sign that was encoded is not decoded again."""
    assert parse_target(target, "GET") == expected


@pytest.mark.parametrize(
    "target",
    [
        *(b"", b"?a=b", b"v1/recipes", b"a:/v1/recipes", b"%2fv1", b"ws://h/v1", b"localhost:80", b"*"),
        *(
            b"/%",
            b"/%a",
            b"/%zz",
            b"/%ff",
            b"/%c0%af",
            b"/%ed%a0%80",
            b"/a#b",
            b"/a b",
            b"/\xc3\xa9",
            b"/\x00",
            b"/\x7f",
        ),
    ],
)
def test_invalid_targets_are_refused(target: bytes) -> None:
    """A path without a leading slash is refused.

    Broken percent codes, invalid UTF-8, fragments and non-ASCII characters are refused, too.
    """
    with pytest.raises(MalformedRequest):
        parse_target(target, "GET")


def test_the_target_asterisk_is_accepted_for_options_only() -> None:
    """The target `*` matches no endpoint."""
    assert parse_target(b"*", "OPTIONS").path == "*"
    with pytest.raises(MalformedRequest):
        parse_target(b"*?a", "OPTIONS")


@given(st.binary(max_size=40))
def test_any_target_is_parsed_or_refused(target: bytes) -> None:
    """Any bytes give a path with a leading slash or MalformedRequest."""
    try:
        path = parse_target(target, "GET").path
    except MalformedRequest:
        return
    assert path.startswith("/")


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
def test_any_host_is_parsed_or_refused(host: bytes) -> None:
    """Any bytes give a host or MalformedRequest."""
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
    """Rules accept any case, brackets and any form of an address. A wildcard covers all names below one."""
    rules = HostRules(Settings(allowed_hosts=("Shop.Test.", "[0::1]", "fe80:0::2", "*.Api.test")), has_keys=False)
    for name in ("shop.test", "::1", "fe80::2", "a.api.test", "a.b.api.test"):
        rules.check(name)
    with pytest.raises(HostNotAllowed):
        rules.check("api.test")


TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GIVEN = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    "value",
    [
        *(None, "", "nonsense", GIVEN.upper(), GIVEN + "-x", GIVEN + " ", f"ff-{TRACE}-{SPAN}-01"),
        *(f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE}-{SPAN}", f"00-{TRACE[:-1]}-{SPAN}-01"),
    ],
)
def test_an_invalid_traceparent_is_ignored(value: str | None) -> None:
    """W3C requires lower case, ids other than zeros, and a version other than ff."""
    assert parse_trace(None if value is None else value.encode()) is None


@pytest.mark.parametrize("value", [GIVEN, f"00-{TRACE}-{SPAN}-00", f"cc-{TRACE}-{SPAN}-01-more"])
def test_an_answer_has_the_trace_and_a_new_span_id(value: str) -> None:
    """The answer keeps the caller's flags. The version is the server's own."""
    trace = parse_trace(value.encode())
    assert trace is not None
    assert trace.span_id == SPAN.encode()
    name, answer = trace.step().header()
    assert name == b"traceparent"
    match = re.fullmatch(rf"00-{TRACE}-([0-9a-f]{{16}})-{value.split('-')[3]}", answer.decode())
    assert match is not None
    assert match[1] not in (SPAN, "0" * 16)


@pytest.mark.anyio
async def test_a_trace_is_logged_with_its_request_only() -> None:
    """Errors have the trace too. The next request without a trace has none."""
    async with serving() as (client, _):
        with capture_logs() as records:
            traced = await client.post("/v1/recipes/none:recommend", {}, headers={"traceparent": GIVEN})
        assert "trace_id" not in get_contextvars()
        plain = await client.post("/v1/recipes/none:recommend", {})
    assert traced.headers["traceparent"].split("-")[1] == TRACE
    assert "traceparent" not in plain.headers
    assert plain.headers.keys() == traced.headers.keys() - {"traceparent"}
    assert records

"""Request targets, which are decoded once, and refused if RFC 9112 does not allow them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.errors import MalformedRequest
from svc.serving.api.routing.targets import Target, parse_target


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
    """Slashes and dots stay, and a decoded percent sign is not decoded again."""
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
    """They are paths without a slash, broken codes or UTF-8, fragments, and characters outside of ASCII."""
    with pytest.raises(MalformedRequest):
        parse_target(target, "GET")


def test_an_asterisk_is_for_options_only() -> None:
    """No endpoint has this path."""
    assert parse_target(b"*", "OPTIONS").path == "*"
    with pytest.raises(MalformedRequest):
        parse_target(b"*?a", "OPTIONS")


@given(st.binary(max_size=40))
def test_any_bytes_are_parsed_or_refused(target: bytes) -> None:
    """No other exception, and a path that begins with a slash."""
    try:
        path = parse_target(target, "GET").path
    except MalformedRequest:
        return
    assert path.startswith("/")

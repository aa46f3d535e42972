"""Trace context: accepted, logged and returned, or ignored."""

from __future__ import annotations

import re

import pytest
from structlog.contextvars import get_contextvars
from structlog.testing import capture_logs

from svc.serving.api.observe.tracing import parse_trace
from tests.serving.client import serving

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
    """The flags stay, and the version is that of this server."""
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
    """Errors have it too. The next request of the connection, without a trace, has none."""
    async with serving() as (client, _):
        with capture_logs() as records:
            traced = await client.post("/v1/recipes/none:recommend", {}, headers={"traceparent": GIVEN})
        assert "trace_id" not in get_contextvars()
        plain = await client.post("/v1/recipes/none:recommend", {})
    assert traced.headers["traceparent"].split("-")[1] == TRACE
    assert "traceparent" not in plain.headers
    assert plain.headers.keys() == traced.headers.keys() - {"traceparent"}
    assert records

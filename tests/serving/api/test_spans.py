"""OpenTelemetry spans: one for each request, within the caller's trace."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider, sampling
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from structlog.contextvars import get_contextvars
from structlog.testing import capture_logs

from svc import events
from svc.errors import ConfigError
from svc.serving import process
from svc.serving.api import spans
from svc.serving.api.application import Application
from svc.serving.api.spans import LastMessages, ReportingExporter, Spans
from tests.serving.api.test_headers import GIVEN, SPAN, TRACE
from tests.serving.client import Client, serving
from tests.serving.sent import Sent

pytestmark = pytest.mark.anyio

MOVIES = "/v1/recipes/movies:recommend"


class Collected:
    """Spans of a server, kept in memory."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(sampler=sampling.DEFAULT_ON, shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.spans = Spans(provider)

    def take(self) -> list[ReadableSpan]:
        """Return the spans that ended since the last call, in the order of their ends."""
        ended = self._exporter.get_finished_spans()
        self._exporter.clear()
        return list(ended)


def with_spans(client: Client) -> tuple[Client, Collected]:
    """Return a client of the same server with spans, and the collected spans."""
    state = client.app._state
    collected = Collected()
    state.spans = collected.spans
    return Client(Application(state)), collected


def context(span: ReadableSpan) -> Any:
    assert span.context is not None
    return span.context


async def test_a_request_is_a_span_of_the_callers_trace() -> None:
    """The span is a child of the caller's span and has facts of the request. The answer has its id."""
    async with serving() as (plain, _):
        client, collected = with_spans(plain)
        headers = {"traceparent": GIVEN, "x-request-id": "mine", "user-agent": "shop/1"}
        answer = await client.post(MOVIES, {"user_id": "u3"}, headers=headers)
        step, span = collected.take()
        await client.post(f"{MOVIES}?{'k' * 43}", {"user_id": "u3"})
    (refused,) = collected.take()
    assert (refused.attributes or {})["url.path"] == MOVIES  # a query may hold a key
    assert (span.name, span.kind) == ("POST /v1/recipes/{name}:recommend", SpanKind.SERVER)
    assert span.parent is not None
    assert (f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, SPAN)
    assert answer.headers["traceparent"] == f"00-{TRACE}-{context(span).span_id:016x}-01"
    assert dict(span.attributes or {}) == {
        "http.request.method": "POST",
        "url.scheme": "http",
        "url.path": MOVIES,
        "server.address": "localhost",
        "client.address": "127.0.0.1",
        "user_agent.original": "shop/1",
        "http.route": "/v1/recipes/{name}:recommend",
        "http.response.status_code": 200,
        "svc.recipe": "movies",
        "svc.request_id": "mine",
        "svc.model_version": answer.headers["x-svc-model-version"],
    }
    assert span.status.status_code is StatusCode.UNSET
    assert step.name == "rank"
    assert step.parent is not None
    assert step.parent.span_id == context(span).span_id


@pytest.mark.parametrize("verb", ["recommend", "batch-recommend"])
async def test_spans_change_no_answer(verb: str) -> None:
    """Body and headers equal those of a server without spans, except the span id of the trace."""
    body = {"user_id": "u3"} if verb == "recommend" else {"requests": [{"user_id": "u3"}, {"user_id": "?"}]}
    headers = {"x-request-id": "same"}
    async with serving() as (plain, _):
        expected = await plain.post(f"/v1/recipes/movies:{verb}", body, headers=headers)
        client, collected = with_spans(plain)
        assert await client.post(f"/v1/recipes/movies:{verb}", body, headers=headers) == expected
    assert [span.name for span in collected.take()] == ["rank", f"POST /v1/recipes/{{name}}:{verb}"]


async def test_without_a_callers_trace_a_request_begins_one() -> None:
    """The new trace id is in the log and in no header. The next request of the task begins another trace."""
    async with serving() as (plain, _):
        client, collected = with_spans(plain)
        with capture_logs() as records:
            answers = [await client.post("/v1/recipes/none:recommend", {}) for _ in range(2)]
        assert "trace_id" not in get_contextvars()
    first, second = collected.take()
    assert first.parent is second.parent is None
    assert context(first).trace_id != context(second).trace_id
    assert all("traceparent" not in answer.headers for answer in answers)
    assert records
    assert all("svc.recipe" not in (span.attributes or {}) for span in (first, second)), "no such recipe"


async def test_a_caller_that_does_not_sample_gets_no_span() -> None:
    """The caller's flag decides, as in OpenTelemetry's default sampler. The answer keeps the flag."""
    async with serving() as (plain, _):
        client, collected = with_spans(plain)
        answer = await client.post(MOVIES, {"user_id": "u3"}, headers={"traceparent": GIVEN[:-1] + "0"})
    assert answer.headers["traceparent"].endswith("-00")
    assert collected.take() == []


async def test_errors_of_the_server_are_errors_of_the_span() -> None:
    """A 5xx marks the span as an error, a 4xx does not. An unknown method or path makes no new span name."""
    async with serving() as (plain, _):
        client, collected = with_spans(plain)
        await client.post("/v1/recipes/broken:recommend", {"user_id": "u3"})
        await client.post("/v1/recipes/movies:recommend", {"user_id": "?"})
        await client.call("BREW", f"/coffee/{'0' * 64}/{'x' * 300}", headers={"host": "a..b"})
        await client.get("/v1/recipes")
    failed, missing, unknown, listed = (span for span in collected.take() if span.name != "rank")
    assert (failed.status.status_code, (failed.attributes or {})["error.type"]) == (StatusCode.ERROR, "500")
    assert missing.status.status_code is StatusCode.UNSET
    assert (missing.attributes or {})["http.response.status_code"] == 404
    assert unknown.name == "HTTP"
    assert (unknown.attributes or {})["http.request.method"] == "_OTHER"
    assert (unknown.attributes or {})["http.request.method_original"] == "BREW"
    assert "http.route" not in (unknown.attributes or {})
    assert str((unknown.attributes or {})["url.path"]).startswith("/coffee/[REDACTED]/xxx")
    assert len(str((unknown.attributes or {})["url.path"])) == 256
    assert "server.address" not in (unknown.attributes or {})
    assert listed.name == "GET /v1/recipes"


async def test_probes_make_no_spans() -> None:
    """Orchestrators send probes every second."""
    async with serving() as (plain, _):
        client, collected = with_spans(plain)
        for path in ("/v1/health", "/v1/health/live", "/v1/health/ready"):
            await client.get(path)
    assert collected.take() == []


async def test_a_client_that_disconnects_ends_its_span() -> None:
    """The span has an error for the disconnection, and no status."""
    async with serving() as (plain, _):
        client, collected = with_spans(plain)
        headers = [(b"host", b"localhost:8080"), (b"content-length", b"20")]
        sent = Sent("POST", MOVIES.encode(), headers, breaks_off=True)
        assert await client.app(sent) is None
    (span,) = collected.take()
    assert (span.attributes or {})["error.type"] == "client_gone"
    assert "http.response.status_code" not in (span.attributes or {})


class Flaky:
    """An exporter that fails on demand."""

    def __init__(self) -> None:
        self.fails = True
        self.is_open = True

    def export(self, batch: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.FAILURE if self.fails else SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        self.is_open = False


def test_failed_exports_are_logged_once() -> None:
    """One event marks the first failure. One marks the recovery, with the number of lost spans."""
    flaky = Flaky()
    exporter = ReportingExporter(flaky, LastMessages())
    batch: list[Any] = [object(), object()]
    with capture_logs() as records:
        for fails in (True, True, False, False, True):
            flaky.fails = fails
            exporter.export(batch)
    failed, resumed = events.SPANS_EXPORT_FAILED.name, events.SPANS_EXPORT_RESUMED.name
    assert [record["event"] for record in records] == [failed, resumed, failed]
    assert records[1]["lost"] == 4
    exporter.shutdown()
    assert not flaky.is_open


def test_an_invalid_variable_of_opentelemetry_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server does not start, and logs no traceback."""
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1000000")
    with pytest.raises(ConfigError, match="OTEL_"):
        spans.create()


def test_spans_without_the_extra_otel_are_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the command that installs the extra."""
    monkeypatch.delattr("svc.serving.api.spans")
    monkeypatch.delitem(sys.modules, "svc.serving.api.spans")
    monkeypatch.setitem(sys.modules, "opentelemetry.context", None)
    with pytest.raises(ConfigError, match=r"'\.\[otel\]'"):
        process.spans()


@pytest.mark.system
def test_without_spans_the_sdk_is_not_imported() -> None:
    """Only one module imports the SDK, and only SVC_OTEL_ENABLED=1 imports that module."""
    code = "import sys, svc.serving.run; print(sorted(name for name in sys.modules if 'opentelemetry' in name))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

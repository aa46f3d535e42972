"""OpenTelemetry spans of requests, exported to an OTLP collector.

This module needs the extra `otel`, and is imported only with SVC_OTEL_ENABLED=1. The environment variables of
OpenTelemetry's SDK (`OTEL_*`) set the address of the collector, headers, sampling and batching.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    set_span_in_context,
    use_span,
)

from svc import __version__, events, logs
from svc.errors import ApiError, ConfigError
from svc.serving.api.endpoint import Route
from svc.serving.api.headers import Trace, parse_host, parse_target
from svc.serving.transport.messages import Head, Response

_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"))
_HEX = 16
_SHOWN_METHOD_CHARACTERS = 32
_SHOWN_CHARACTERS = 256


def create() -> Spans:
    """Return a tracer whose spans are exported in a background thread.

    Raises ConfigError if OpenTelemetry refuses the value of an `OTEL_*` variable.
    """
    names = {"service.name": "svc", "service.version": __version__}
    # In this order the variables of OpenTelemetry replace the names.
    resource = Resource.create(names).merge(OTELResourceDetector().detect())
    try:
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        messages = LastMessages()
        provider.add_span_processor(BatchSpanProcessor(ReportingExporter(OTLPSpanExporter(), messages)))
    except ValueError as error:
        raise ConfigError(f"SVC_OTEL_ENABLED=1: OpenTelemetry refuses one of its OTEL_ variables: {error}") from None
    # Redirects the log of the SDK only now, so that its warnings about `OTEL_*` variables still reach svc's log.
    library = logging.getLogger("opentelemetry")
    library.handlers, library.propagate = [messages], False
    return Spans(provider)


class Spans:
    """The tracer of one server. It creates a span for each request, and child spans for steps of the request."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("svc", __version__)

    @contextmanager
    def request(self, head: Head, client: str, scheme: str, trace: Trace | None) -> Iterator[RequestSpan]:
        """Yield the span of one request.

        The span is a child of the client's span in `trace`, or the root of a new trace if `trace` is None.
        """
        attributes = {"url.scheme": scheme, "client.address": client, **_method(head.method), **_address(head)}
        name = head.method if head.method in _METHODS else "HTTP"
        span = self._tracer.start_span(name, _context(trace), SpanKind.SERVER, attributes=attributes)
        # Errors are turned into answers within the span, and `record_answer` records those.
        with use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            yield RequestSpan(span, name)

    def step(self, name: str) -> AbstractContextManager[object]:
        """Return a context manager that records a step of the current request as a child span."""
        step: AbstractContextManager[object] = self._tracer.start_as_current_span(
            name, record_exception=False, set_status_on_exception=False
        )
        return step

    def close(self) -> None:
        """Export the remaining spans.

        Blocks until the collector has accepted or refused them, but at most for the time limit of the SDK (30 s).
        """
        self._provider.shutdown()


class RequestSpan:
    """The span of a request that is being answered."""

    def __init__(self, span: Any, method: str) -> None:
        self._span = span
        self._method = method
        made = span.get_span_context()
        self.trace = Trace(b"%032x" % made.trace_id, b"%016x" % made.span_id, b"%02x" % made.trace_flags)

    def record_answer(
        self, request_id: str, route: Route | None, recipe: str | None, response: Response | None
    ) -> None:
        """Record route, recipe and status of the request. `response` is None if the client has disconnected.

        `recipe` is None if no such recipe exists, so that no name that a client invented becomes an attribute.
        """
        span = self._span
        span.set_attribute("svc.request_id", request_id)
        if route is not None:
            span.update_name(f"{self._method} {route.row.path}")
            span.set_attribute("http.route", route.row.path)
        if recipe is not None:
            span.set_attribute("svc.recipe", recipe)
        if response is None:
            span.set_attribute("error.type", "client_gone")
            return
        span.set_attribute("http.response.status_code", response.status)
        for name, value in response.headers:
            if name == b"x-svc-model-version":
                span.set_attribute("svc.model_version", value.decode())
        if response.status >= 500:
            span.set_attribute("error.type", str(response.status))
            span.set_status(StatusCode.ERROR)


def _method(method: str) -> dict[str, str]:
    """Return the span's attributes for the HTTP method. OpenTelemetry requires `_OTHER` for unknown methods."""
    if method in _METHODS:
        return {"http.request.method": method}
    return {"http.request.method": "_OTHER", "http.request.method_original": method[:_SHOWN_METHOD_CHARACTERS]}


def _address(head: Head) -> dict[str, str]:
    """Return the span's attributes for path, host and user agent, without missing or invalid values.

    Clients choose these texts, so the values are shortened, and secrets in them are redacted as in the log.
    """
    headers = dict(head.headers)
    texts = {"user_agent.original": headers.get(b"user-agent", b"").decode("latin-1")}
    with suppress(ApiError):
        target = parse_target(head.target, head.method)
        texts["url.path"] = target.path
        texts["server.address"] = parse_host(headers.get(b"host", b"") if target.host is None else target.host)
    return {name: logs.redact_text(text)[:_SHOWN_CHARACTERS] for name, text in texts.items() if text}


def _context(trace: Trace | None) -> Context:
    """Return an OpenTelemetry context whose parent span is the client's span in `trace`.

    Without a trace the context is empty, because the current task's context may have the span of another request.
    """
    if trace is None:
        return Context()
    caller = SpanContext(int(trace.trace_id, _HEX), int(trace.span_id, _HEX), True, TraceFlags(int(trace.flags, _HEX)))
    return set_span_in_context(NonRecordingSpan(caller), Context())


class ReportingExporter(SpanExporter):
    """An exporter that logs an event when exports begin to fail, and another event when they work again.

    The first event quotes the SDK's last two log messages. The SDK logs several messages for every failed batch, so
    svc logs them in no other way.
    """

    def __init__(self, exporter: Any, messages: LastMessages) -> None:
        self._exporter = exporter
        self._messages = messages
        self._lost = 0

    def export(self, spans: Sequence[Any]) -> SpanExportResult:
        """Export one batch of spans. The SDK calls this method in its own thread."""
        self._messages.texts.clear()
        result: SpanExportResult = self._exporter.export(spans)
        if result is not SpanExportResult.SUCCESS:
            if not self._lost:
                logs.emit(events.SPANS_EXPORT_FAILED, spans=len(spans), error="; ".join(self._messages.texts))
            self._lost += len(spans)
        elif self._lost:
            logs.emit(events.SPANS_EXPORT_RESUMED, lost=self._lost)
            self._lost = 0
        return result

    def shutdown(self) -> None:
        """Close the exporter, and end its retries."""
        self._exporter.shutdown()


class LastMessages(logging.Handler):
    """A log handler that keeps the exporter's last two messages, which say why it retried and why it gave up."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: deque[str] = deque(maxlen=2)

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith("opentelemetry.exporter."):
            self.texts.append(record.getMessage())

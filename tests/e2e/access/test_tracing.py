"""Trace ids from the client through a real nginx into the log, and spans in a real collector.

The collector is rotel, which the integration tests install. `Backend` decodes the spans that it forwards with
OpenTelemetry's own messages.
"""

from __future__ import annotations

import gzip
import importlib.util
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.access.test_balancers import free_port, nginx, running_process
from tests.e2e.server import Server, until

pytestmark = pytest.mark.integration
TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GIVEN = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
OFTEN = {"SVC_OTEL_ENABLED": "1", "OTEL_BSP_SCHEDULE_DELAY": "100"}
ROTEL = importlib.util.find_spec("rotel")
needs_nginx = pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
needs_collector = pytest.mark.skipif(ROTEL is None, reason="the collector rotel is not installed")


class Backend(ThreadingHTTPServer):
    """The OTLP/HTTP server behind the collector: stores each span with the service name of its resource."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _BackendHandler)
        self.spans: list[tuple[str, Any]] = []


class _BackendHandler(BaseHTTPRequestHandler):
    server: Backend

    def do_POST(self) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            names = {one.key: one.value.string_value for one in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.server.spans += [(names["service.name"], span) for span in scope.spans]
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, to keep the output of the tests short."""


@contextmanager
def collector() -> Iterator[tuple[str, Backend]]:
    """Yield the endpoint of a running collector and the backend to which it forwards spans."""
    assert ROTEL is not None
    assert ROTEL.origin is not None
    receives, grpc = free_port(), free_port()
    with Backend() as backend:
        taking = threading.Thread(target=backend.serve_forever, daemon=True)
        taking.start()
        port = backend.server_address[1]
        command = [
            *(str(Path(ROTEL.origin).parent / "rotel-agent"), "start"),
            *("--otlp-http-endpoint", f"127.0.0.1:{receives}", "--otlp-grpc-endpoint", f"127.0.0.1:{grpc}"),
            *("--exporter", "otlp", "--otlp-exporter-protocol", "http"),
            *("--otlp-exporter-endpoint", f"http://127.0.0.1:{port}"),
        ]
        try:
            with running_process(command, receives) as url:
                yield url, backend
        finally:
            backend.shutdown()
            taking.join()


def attributes(span: Any) -> dict[str, Any]:
    return {one.key: one.value.string_value or one.value.int_value for one in span.attributes}


@pytest.fixture
def front(tmp_path: Path) -> Path:
    folder = tmp_path / "front"
    folder.mkdir()
    return folder


def nginx_before(server: Server, folder: Path) -> Any:
    """Run nginx with a configuration of the docs in front of `server`."""
    own = server.url.rpartition(":")[2]
    ports = {"80": free_port(), "8081": int(own), "8082": int(own)}
    return running_process(nginx(folder, ports), ports["80"])


@needs_nginx
def test_a_trace_id_passes_through_nginx_to_log_and_answer(home: Path, front: Path) -> None:
    """nginx passes the caller's `traceparent` without configuration, and the trace id reaches log and answer.

    The answer has a new parent id, even if the server exports no spans.
    """
    with Server(home, env={"SVC_ACCESS_LOG": "all", "SVC_ALLOWED_HOSTS": "127.0.0.1"}) as server:
        with nginx_before(server, front) as url:
            answer = httpx.post(f"{url}/v1/recipes/a:recommend", json={"user_id": "u3"}, headers=GIVEN)
            plain = httpx.post(f"{url}/v1/recipes/a:recommend", json={"user_id": "u3"})
        version, trace, step, flags = answer.headers["traceparent"].split("-")
        assert (answer.status_code, version, trace, flags) == (200, "00", TRACE, "01")
        assert step != CALLER
        assert "traceparent" not in plain.headers
        logged = server.wait_for("request_answered", request_id=answer.headers["x-request-id"])
        assert logged["trace_id"] == TRACE
        assert "trace_id" not in server.wait_for("request_answered", request_id=plain.headers["x-request-id"])


@needs_nginx
@needs_collector
def test_spans_reach_a_collector_within_the_callers_trace(home: Path, front: Path) -> None:
    """The collector receives the spans of request and ranking within the caller's trace.

    They have the ids that the answer and the log name.
    """
    with collector() as (endpoint, backend):
        env = {**OFTEN, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "SVC_ACCESS_LOG": "all"}
        with Server(home, env={**env, "SVC_ALLOWED_HOSTS": "127.0.0.1"}) as server, nginx_before(server, front) as url:
            answer = httpx.post(f"{url}/v1/recipes/a:recommend", json={"user_id": "u3"}, headers=GIVEN)
            assert answer.status_code == 200
            until(lambda: len(backend.spans) >= 2, server.log)
            logged = server.wait_for("request_answered", request_id=answer.headers["x-request-id"])
    spans = {span.name: span for _, span in backend.spans}
    assert {name for name, _ in backend.spans} == {"svc"}
    span, rank = spans["POST /v1/recipes/{name}:recommend"], spans["rank"]
    assert {one.trace_id.hex() for one in spans.values()} == {TRACE, logged["trace_id"]} == {TRACE}
    assert span.parent_span_id.hex() == CALLER
    assert rank.parent_span_id == span.span_id
    assert span.span_id.hex() == answer.headers["traceparent"].split("-")[2]
    assert span.start_time_unix_nano <= rank.start_time_unix_nano <= rank.end_time_unix_nano <= span.end_time_unix_nano
    said = attributes(span)
    assert (said["svc.recipe"], said["http.response.status_code"]) == ("a", 200)
    assert said["svc.request_id"] == logged["request_id"]
    assert said["svc.model_version"] == answer.headers["x-svc-model-version"]


@needs_collector
@pytest.mark.parametrize("workers", [1, 2])
def test_a_drain_exports_the_last_spans(home: Path, workers: int) -> None:
    """A drain exports the spans of all workers at once, without waiting for the next batch."""
    with collector() as (endpoint, backend):

        def names() -> list[str]:
            return [span.name for _, span in backend.spans]

        env = {**OFTEN, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "600000"}
        with Server(home, env={**env, "SVC_WORKERS": str(workers)}) as server:
            with httpx.Client(base_url=server.url) as first, httpx.Client(base_url=server.url) as second:
                for client in (first, second, first, second):
                    assert client.post("/v1/recipes/a:recommend", json={"user_id": "u3"}).status_code == 200
            assert server.stop() == 0
            until(lambda: names().count("POST /v1/recipes/{name}:recommend") == 4, server.log)
            assert not server.said("spans_export_failed")
    # Each worker ranks once and then answers from its cache. One worker may have accepted both connections.
    assert 1 <= names().count("rank") <= workers


def test_an_unreachable_collector_is_logged_once_and_delays_nothing(home: Path) -> None:
    """If the collector is unreachable, the server answers, logs one warning, and ends in time.

    The log contains no password of the endpoint.
    """
    address = f"http://somebody:hunter2@127.0.0.1:{free_port()}"
    env = {**OFTEN, "OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    with Server(home, env=env) as server:
        assert server.recommend("a").status_code == 200
        failed = server.wait_for("spans_export_failed")
        assert failed["error"]  # the connection was refused, or on a slow machine it timed out after a second
        for _ in range(20):
            assert server.recommend("a").status_code == 200
        assert server.stop() == 0
        assert server.said("serve_shutdown")
        assert len(server.said("spans_export_failed")) == 1
        assert not server.said("library_log")
        assert "hunter2" not in server.log()

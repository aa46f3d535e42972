"""A context for sources, web servers with faults on request, and a BigQuery server with REST and gRPC."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from svc import logs
from svc.recipe.source_options import SourceSpec
from svc.settings import Settings
from svc.sources.base import DataSource, SourceContext, build_source

MakeSource = Callable[..., DataSource]


@pytest.fixture
def make(tmp_path: Path) -> MakeSource:
    """Return a function that makes a source of a type, with its files in tmp_path."""

    def source(
        type_name: str,
        *,
        columns: tuple[str, ...] | None = None,
        text: tuple[str, ...] = ("user_id", "item_id"),
        settings: Settings | None = None,
        purpose: Any = "interactions",
        variables: dict[str, str] | None = None,
        progress: Callable[[int], None] | None = None,
        **options: Any,
    ) -> DataSource:
        found = settings or Settings(http_allow_private=True, http_timeout_s=1.0)
        context = SourceContext(tmp_path, found, columns, frozenset(text), purpose, variables or {}, progress)
        return build_source(SourceSpec(type=type_name, **options), context)

    return source


@pytest.fixture
def records() -> Iterator[list[dict[str, Any]]]:
    """Record the logged events of the test."""
    lines: list[dict[str, Any]] = []
    logs.configure(Settings(log_format="json"), write=lambda line: lines.append(json.loads(line)))
    yield lines
    logs.configure(Settings())


@dataclass
class Page:
    """The answer of the web server for a path."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    hang: bool = False
    trickle: bool = False
    chunked: bool = False
    parts: bool = False


class WebServer:
    """A server of pages by their path, over plain HTTP or TLS."""

    def __init__(self, scheme: str, context: ssl.SSLContext | None) -> None:
        self.pages: dict[str, Page] = {}
        self.hits: list[str] = []
        self.sent = 0
        self.released = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        self.url = f"{scheme}://localhost:{self.port}"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_args: Any) -> None: ...

            def do_GET(self) -> None:
                server.hits.append(self.path)
                server.answer(self, server.pages.get(urlsplit(self.path).path, Page(status=404)))

        return Handler

    def answer(self, handler: BaseHTTPRequestHandler, page: Page) -> None:
        asked = handler.headers.get("Range", "").removeprefix("bytes=-")
        if page.parts and asked:
            begin, total = max(0, len(page.body) - int(asked)), len(page.body)
            place = {"Content-Range": f"bytes {begin}-{total - 1}/{total}"}
            page = Page(page.body[begin:], 206, page.headers | place)
        if page.hang:
            self.released.wait(30)
        handler.close_connection = True
        handler.send_response(page.status)
        for name, value in page.headers.items():
            handler.send_header(name, value)
        if page.chunked:
            handler.send_header("Transfer-Encoding", "chunked")
        else:
            handler.send_header("Content-Length", str(len(page.body) * (2 if page.cut else 1)))
        handler.end_headers()
        if page.trickle:
            self._trickle(handler, page.body)
        elif page.chunked:
            end = b"" if page.cut else b"0\r\n\r\n"
            handler.wfile.write(b"%x\r\n%b\r\n%b" % (len(page.body), page.body, end))
        else:
            with contextlib.suppress(OSError):  # a client that has seen enough
                handler.wfile.write(page.body)
            self.sent += len(page.body)

    def _trickle(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        with contextlib.suppress(OSError):  # until the client leaves
            for at in range(len(body)):
                handler.wfile.write(body[at : at + 1])
                if self.released.wait(0.05):
                    return

    def run(self) -> Iterator[WebServer]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield self
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        thread.join()


@pytest.fixture
def web() -> Iterator[WebServer]:
    """Run a plain HTTP server on loopback."""
    yield from WebServer("http", None).run()


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Make a private certificate authority that httpx and gRPC trust. gRPC reads its roots once in a process."""
    import trustme

    made = trustme.CA()
    path = str(tmp_path_factory.mktemp("authority") / "ca.pem")
    made.cert_pem.write_to_path(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", path)
        patch.setenv("SSL_CERT_FILE", path)
        yield made


def tls_context(certificate: Any) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    return context


@pytest.fixture
def secure_web(authority: Any) -> Iterator[WebServer]:
    """Run an HTTPS server with a certificate for localhost only."""
    yield from WebServer("https", tls_context(authority.issue_cert("localhost"))).run()


class BigQuery:
    """One table behind BigQuery's REST calls and its Storage Read API. It records the calls."""

    def __init__(self, table: Any, certificate: Any) -> None:
        self.table = table
        self.calls: list[str] = []
        self.jobs: list[dict[str, Any]] = []
        self.deny_storage = False
        self.deny_query = False
        self.rest_status = 200
        self.hang_rest = False
        self.hang_storage = False
        self.cut_once = False
        self.cut_for_good = False
        self.released = threading.Event()
        self._certificate = certificate

    def run(self) -> Iterator[BigQuery]:
        import grpc

        rest = ThreadingHTTPServer(("127.0.0.1", 0), self._rest_handler())
        thread = threading.Thread(target=rest.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        stub = grpc.server(futures.ThreadPoolExecutor(2))
        stub.add_generic_rpc_handlers((self._grpc_handler(),))
        key = self._certificate.private_key_pem.bytes()
        chain = b"".join(blob.bytes() for blob in self._certificate.cert_chain_pems)
        self.storage = f"localhost:{stub.add_secure_port('localhost:0', grpc.ssl_server_credentials([(key, chain)]))}"
        self.rest = f"http://127.0.0.1:{rest.server_address[1]}"
        stub.start()
        yield self
        self.released.set()
        stub.stop(None).wait()
        rest.shutdown()
        rest.server_close()
        thread.join()

    def _schema(self) -> dict[str, Any]:
        kinds = {"int64": "INTEGER", "string": "STRING", "double": "FLOAT"}
        return {"fields": [{"name": f.name, "type": kinds[str(f.type)], "mode": "NULLABLE"} for f in self.table.schema]}

    def _job(self, sent: dict[str, Any]) -> dict[str, Any]:
        query = sent["configuration"]["query"]
        query["destinationTable"] = {"projectId": "test", "datasetId": "anonymous", "tableId": "result"}
        statistics = {"query": {"totalBytesProcessed": "4096", "schema": self._schema()}, "totalBytesProcessed": "4096"}
        reference = sent.get("jobReference", {"projectId": "test", "jobId": "dry"})
        return {**sent, "jobReference": reference, "status": {"state": "DONE"}, "statistics": statistics}

    def _results(self, query: dict[str, list[str]]) -> dict[str, Any]:
        start, size = int(query.get("pageToken", ["0"])[0]), min(int(query.get("maxResults", ["1000"])[0]), 1000)
        body: dict[str, Any] = {
            "jobComplete": True,
            "schema": self._schema(),
            "totalRows": str(self.table.num_rows),
            "jobReference": {"projectId": "test", "jobId": "j"},
        }
        if size == 0:
            return body
        rows = self.table.slice(start, size).to_pylist()
        body["rows"] = [{"f": [{"v": None if v is None else str(v)} for v in row.values()]} for row in rows]
        if start + size < self.table.num_rows:
            body["pageToken"] = str(start + size)
        return body

    def _rest_handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_args: Any) -> None: ...

            def reply(self, body: dict[str, Any], status: int = 200) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_POST(self) -> None:
                sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.calls.append("query")
                server.jobs.append(sent)
                if server.hang_rest:
                    server.released.wait(60)
                if server.deny_query or server.rest_status != 200:
                    status = 403 if server.deny_query else server.rest_status
                    words = "Access Denied" if server.deny_query else f"status {status}"
                    self.reply({"error": {"code": status, "message": words, "errors": [{"reason": "told"}]}}, status)
                    return
                self.reply(server._job(sent))

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                if "/queries/" in parts.path:
                    server.calls.append("results")
                    self.reply(server._results(parse_qs(parts.query)))
                else:
                    self.reply(server._job(server.jobs[-1]))

        return Handler

    def _grpc_handler(self) -> Any:
        import grpc
        from google.cloud.bigquery_storage_v1 import types

        def create(request: Any, context: Any) -> Any:
            self.calls.append("session")
            if self.deny_storage:
                context.abort(grpc.StatusCode.PERMISSION_DENIED, "bigquery.readsessions.create")
            self.selected = self.table.select(list(request.read_session.read_options.selected_fields))
            schema = types.ArrowSchema(serialized_schema=self.selected.schema.serialize().to_pybytes())
            return types.ReadSession(name="s", arrow_schema=schema, streams=[types.ReadStream(name="s/1")])

        def read(request: Any, context: Any) -> Iterator[Any]:
            self.calls.append(f"rows from {request.offset}")
            sent = 0
            for batch in self.selected.slice(request.offset).to_batches(max_chunksize=1000):
                if self.cut_once and sent >= 2000:
                    self.cut_once = False
                    context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
                if self.cut_for_good and sent >= 2000:
                    context.abort(grpc.StatusCode.DATA_LOSS, "cut")
                if self.hang_storage and sent >= 2000:
                    self.released.wait(60)
                record = types.ArrowRecordBatch(serialized_record_batch=batch.serialize().to_pybytes())
                yield types.ReadRowsResponse(arrow_record_batch=record, row_count=batch.num_rows)
                sent += batch.num_rows

        handlers = {
            "CreateReadSession": grpc.unary_unary_rpc_method_handler(
                create, types.CreateReadSessionRequest.deserialize, types.ReadSession.serialize
            ),
            "ReadRows": grpc.unary_stream_rpc_method_handler(
                read, types.ReadRowsRequest.deserialize, types.ReadRowsResponse.serialize
            ),
        }
        return grpc.method_handlers_generic_handler("google.cloud.bigquery.storage.v1.BigQueryRead", handlers)


@pytest.fixture
def bigquery(authority: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[BigQuery]:
    """Run a BigQuery server with 5,000 rows for Google's own clients."""
    import pyarrow as pa

    n = 5000
    table = pa.table(
        {"user_id": pa.array(range(n)), "item_id": [f"i{k % 7}" for k in range(n)], "extra": [0.5] * n, "ts": range(n)}
    )
    for server in BigQuery(table, authority.issue_cert("localhost")).run():
        monkeypatch.setenv("BIGQUERY_EMULATOR_HOST", server.rest)
        monkeypatch.setenv("BIGQUERY_STORAGE_EMULATOR_HOST", server.storage)
        yield server

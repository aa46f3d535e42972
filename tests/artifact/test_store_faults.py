"""Stores that refuse, hang, throttle, cut or answer with garbage: clear errors, nothing half done, no secrets shown."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import trustme

from svc import events, logs
from svc.artifact.layout import Written
from svc.artifact.store import Store, open_store
from svc.errors import ArtifactReadError, ArtifactWriteError, DataSourceError, PayloadTooLarge
from svc.recipe.source_options import SourceSpec
from svc.settings import Settings
from svc.sources.base import SourceContext, build_source
from tests.artifact.conftest import (
    WebPlace,
    azure_environment,
    gcs_environment,
    s3fs_environment,
    web_server,
)

SETTINGS = Settings(http_timeout_s=1, http_allow_private=True)
PATIENT = Settings(http_timeout_s=20)
SECRETS = ("SECRET", "AKIAEXAMPLE", "U0VDUkVU")
CAP = 1 << 20
Answer = Callable[[BaseHTTPRequestHandler], None]


def write(out: BinaryIO) -> Written:
    out.write(b"SVCMODEL")
    return Written("0" * 64, 8, 0)


def status(code: int, body: bytes = b"<Error><Code>SlowDown</Code><Message>token=SECRET</Message></Error>") -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        handler.send_response(code)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(body)

    return answer


def promise(handler: BaseHTTPRequestHandler) -> bool:
    """Answer with headers of 1000 bytes. Returns whether the client waits for the body."""
    handler.send_response(206 if handler.headers.get("x-ms-range") else 200)
    handler.send_header("Content-Length", "1000")
    handler.send_header("Content-Range", "bytes 0-999/1000")
    handler.send_header("ETag", '"1"')
    handler.send_header("Last-Modified", "Sat, 21 Nov 2026 00:00:00 GMT")
    handler.end_headers()
    return handler.command != "HEAD"


def cut(handler: BaseHTTPRequestHandler) -> None:
    """Send less than promised, then close."""
    if promise(handler):
        handler.wfile.write(b"SVCMODEL")
    handler.close_connection = True


def slow(handler: BaseHTTPRequestHandler) -> None:
    """Send a byte now and then, until the client gives up."""
    handler.close_connection = True
    with suppress(OSError):
        for _ in range(1000 if promise(handler) else 0):
            handler.wfile.write(b"S")
            time.sleep(0.05)


def hang(handler: BaseHTTPRequestHandler) -> None:
    """Send nothing until the client gives up."""
    handler.connection.recv(1 << 20)
    while handler.connection.recv(1 << 20):
        pass
    handler.close_connection = True


FAULTS: dict[str, Answer] = {"403": status(403), "503": status(503), "500": status(500), "cut": cut, "hang": hang}
FAULTS["slow"] = slow
EXPIRED: dict[str, Answer] = {
    "s3": status(400, b"<Error><Code>ExpiredToken</Code><Message>token=SECRET</Message></Error>"),
    "gs": status(401, b'{"error": {"code": 401, "message": "Invalid Credentials SECRET"}}'),
    "az": status(403, b"<Error><Code>AuthenticationFailed</Code><Message>SECRET</Message></Error>"),
}
ENVIRONMENTS = {
    "s3": s3fs_environment,
    "gs": gcs_environment,
    "az": lambda patch, endpoint: azure_environment(patch, endpoint, key="U0VDUkVU" * 8),
}


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Record every logged event."""
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(logs, "emit", lambda event, **fields: seen.append({"event": event.name, **fields}))
    return seen


def messages(error: BaseException) -> str:
    return str(error) + str(getattr(error, "fields", ""))


@contextmanager
def faulty_server(scheme: str, fault: str) -> Iterator[str]:
    """Run a server with this fault and yield its base URL."""
    if fault == "refused":
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            yield f"http://127.0.0.1:{unused.getsockname()[1]}"
    elif fault == "certificate":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trustme.CA().issue_cert("other.example").configure_cert(context)
        with web_server(status(500), context) as base:
            yield base
    else:
        with web_server(EXPIRED[scheme] if fault == "expired" else FAULTS[fault]) as base:
            yield base


def read_data(uri: str) -> None:
    context = SourceContext(Path(), SETTINGS, None, frozenset(), "interactions", {}, None)
    build_source(SourceSpec(type="csv", path=uri), context).fetch()


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # clients that leave connections open
@pytest.mark.parametrize("fault", [*FAULTS, "expired", "certificate", "refused"])
@pytest.mark.parametrize("scheme", list(ENVIRONMENTS))
def test_faulty_object_stores_give_clear_errors(
    scheme: str, fault: str, monkeypatch: pytest.MonkeyPatch, records: list[dict[str, Any]]
) -> None:
    """For every fault, polls, reads, writes and data fetches end in time with svc's own errors, without secrets."""
    monkeypatch.setattr("warnings.showwarning", lambda *_, **__: None)
    uri = f"{scheme}://bucket/models/movies.svc"
    calls: list[tuple[type[Exception], Callable[[Store], object]]] = [
        (ArtifactReadError, lambda store: store.read(CAP)),
        (ArtifactWriteError, lambda store: store.publish(write, "append_sha")),
        (DataSourceError, lambda _: read_data(uri)),
    ]
    if fault not in ("cut", "slow"):  # a HEAD has no body
        calls.append((ArtifactReadError, Store.marker))
    with faulty_server(scheme, fault) as endpoint, ThreadPoolExecutor(len(calls)) as threads:
        ENVIRONMENTS[scheme](monkeypatch, endpoint)
        store = open_store(uri, SETTINGS, label="movies")
        running = [(error, threads.submit(call, store)) for error, call in calls]
        texts = []
        for error, future in running:
            with pytest.raises(error, match=f"{scheme}://bucket/models/movies") as caught:
                future.result(60)
            texts.append(messages(caught.value))
    assert not any(secret in text for secret in SECRETS for text in (*texts, str(records)))


@pytest.mark.integration
def test_a_wrong_azure_key_is_permission_denied(azure_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real server refuses the signature of another key, and the error does not show the key."""
    azure_environment(monkeypatch, azure_endpoint, key="U0VDUkVU" * 8)
    store = open_store("az://bucket/movies.svc", PATIENT)
    with pytest.raises(ArtifactReadError, match="permission denied, status 403") as caught:
        store.marker()
    assert "U0VDUkVU" not in messages(caught.value)


@pytest.mark.integration
def test_a_missing_bucket_is_a_missing_artifact(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading raises FileNotFoundError. Writing names the bucket."""
    s3fs_environment(monkeypatch, s3_endpoint)
    store = open_store("s3://no-such-bucket/movies.svc", PATIENT)
    with pytest.raises(FileNotFoundError):
        store.marker()
    with pytest.raises(ArtifactWriteError, match=r"s3://no-such-bucket/movies\.svc cannot be written"):
        store.publish(write, "always_overwrite")


@pytest.mark.integration
def test_a_failed_probe_is_logged_and_the_read_is_capped(s3_place, monkeypatch, records) -> None:  # type: ignore[no-untyped-def]
    """A store that does not report sizes is still read, up to the cap."""
    s3_place.write("movies.svc", b"x" * 1000)
    store = open_store(s3_place.uri("movies.svc"), PATIENT, label="movies")
    import s3fs

    async def refuses(*_: Any, **__: Any) -> None:
        raise PermissionError("HeadObject is not allowed")

    monkeypatch.setattr(s3fs.S3FileSystem, "_info", refuses)
    assert bytes(store.read(1000).view) == b"x" * 1000
    with pytest.raises(PayloadTooLarge, match="more than 999"):
        store.read(999)
    assert [record["event"] for record in records] == [events.SIZE_CAP_PROBE_FAILED.name] * 2
    assert records[0]["name"] == "movies"


@pytest.mark.integration
def test_an_object_that_changes_while_it_is_read_is_refused(s3_place, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """Pieces of two versions are never combined."""
    from svc.artifact import store_fsspec

    monkeypatch.setattr(store_fsspec, "_PIECE_BYTES", 100)
    s3_place.write("movies.svc", b"x" * 250)
    import s3fs

    fetch = s3fs.S3FileSystem._cat_file
    calls: list[int] = []

    async def fetch_and_overwrite(self: Any, path: str, **options: Any) -> bytes:
        calls.append(1)
        if len(calls) == 2:
            await self._pipe_file(path, b"y" * 250)
        return await fetch(self, path, **options)  # type: ignore[no-any-return]

    monkeypatch.setattr(s3fs.S3FileSystem, "_cat_file", fetch_and_overwrite)
    with pytest.raises(ArtifactReadError, match="changed while it was read"):
        open_store(s3_place.uri("movies.svc"), PATIENT).read(CAP)


@pytest.fixture
def web_store(web_place: WebPlace) -> Store:
    return open_store(f"{web_place.uri('movies.svc')}?sig=SECRET", web_place.settings, label="movies")


def test_the_query_of_a_url_is_sent_but_never_shown(web_place: WebPlace, web_store: Store) -> None:
    """An access signature is sent with every request, also for the pointer's target, and appears in no message."""
    with pytest.raises(ArtifactReadError) as caught:
        web_store.read(CAP)
    published = web_store.publish(write, "append_sha")
    web_store.read(CAP)
    assert {path.partition("?")[2] for _, path in web_place.requests} == {"sig=SECRET"}
    assert "SECRET" not in f"{caught.value}{published}{web_store.uri}{web_store.read(CAP).resolved}"


@pytest.mark.parametrize("fault", [*FAULTS, "certificate", "refused"])
def test_faulty_web_servers_give_clear_errors(fault: str) -> None:
    """Refusals, throttling, cut bodies and silence are errors that name the URL, for reads and writes."""

    with faulty_server("web", fault) as base:
        uri = f"{base}/models/movies.svc"
        store = open_store(f"{uri}?token=SECRET", Settings(http_timeout_s=0.3, http_allow_private=True))
        with pytest.raises(ArtifactReadError, match=uri) as reading:
            store.read(CAP)
        assert "SECRET" not in messages(reading.value)
        if fault in ("cut", "slow"):
            return
        with pytest.raises(ArtifactWriteError, match=f"{base}/models/movies") as writing:
            store.publish(write, "append_sha")
        assert "SECRET" not in messages(writing.value)


def test_private_addresses_are_refused_by_default(web_place: WebPlace) -> None:
    """Artifacts follow the same network rules as data."""
    web_place.write("movies.svc", b"x")
    with pytest.raises(ArtifactReadError, match="SVC_HTTP_ALLOW_PRIVATE"):
        open_store(web_place.uri("movies.svc"), Settings()).read(CAP)
    assert web_place.requests == []


def bare(headers: dict[str, str], body: bytes) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(body)
        handler.close_connection = True

    return answer


def test_without_a_length_the_read_is_capped_and_the_failed_probe_logged(records: list[dict[str, Any]]) -> None:
    """A body of unknown length is read up to the cap and refused beyond it."""
    with web_server(bare({"Connection": "close"}, b"x" * 1000)) as base:
        store = open_store(f"{base}/movies.svc", SETTINGS, label="movies")
        assert bytes(store.read(1000).view) == b"x" * 1000
        with pytest.raises(PayloadTooLarge, match="payload exceeds max bytes"):
            store.read(999)
    assert {(record["event"], record["name"]) for record in records} == {("size_cap_probe_failed", "movies")}


def test_concurrent_reads_of_one_store_are_whole(web_place: WebPlace, web_store: Store) -> None:
    """Reads in eight threads return the same bytes."""
    web_place.write("movies.svc", b"SVCMODEL" * 1000)
    seen: list[str] = []
    threads = [threading.Thread(target=lambda: seen.append(web_store.read(CAP).sha256)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 8
    assert len(set(seen)) == 1


def test_a_full_disk_for_the_temporary_file_is_a_clear_error(
    web_store: Store, web_place: WebPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is sent if the new artifact cannot be written locally."""

    def no_room(out: BinaryIO) -> Written:
        raise OSError(28, "No space left on device")

    with pytest.raises(
        ArtifactWriteError, match=r"No space left on device \([0-9,]+ bytes are free in .+\); see TMPDIR"
    ):
        web_store.publish(no_room, "always_overwrite")
    assert web_place.requests == []

"""Artifacts behind a web server: what its answers must tell, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler

import pytest

from svc.artifact.store_http import HttpFolder
from svc.errors import ArtifactReadError, ArtifactWriteError, PayloadTooLarge
from svc.settings import Settings
from tests.artifact.conftest import web_server

SETTINGS = Settings(http_allow_private=True, http_timeout_s=5.0)
Answer = Callable[[BaseHTTPRequestHandler], None]


@pytest.fixture
def folder() -> Iterator[Callable[[Answer], HttpFolder]]:
    """`folder(answer)`: the folder of a server that answers every request so."""
    with ExitStack() as stack:
        yield lambda answer: HttpFolder(f"{stack.enter_context(web_server(answer))}/m/a.svc", SETTINGS, "a")


def answering(status: int, body: bytes = b"", **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(body)

    return answer


def test_a_change_shows_in_the_marker(folder: Callable[[Answer], HttpFolder]) -> None:
    """By ETag, else by time; a server that tells neither could never be followed."""
    tagged = folder(answering(200, b"x", ETag='"1"', Last_Modified="Mon, 01 Jan 2026 00:00:00 GMT"))
    assert tagged.marker("a.svc") == '"1":1'
    timed = folder(answering(200, b"xy", Last_Modified="Mon, 01 Jan 2026 00:00:00 GMT"))
    assert timed.marker("a.svc") == "Mon, 01 Jan 2026 00:00:00 GMT:2"
    with pytest.raises(ArtifactReadError, match="neither ETag nor Last-Modified"):
        folder(answering(200, b"x")).marker("a.svc")


def test_what_cannot_be_read_is_told(folder: Callable[[Answer], HttpFolder]) -> None:
    """Missing, refused, too large, and compressed, whose digest would be that of other bytes."""
    for status in (404, 410):
        with pytest.raises(FileNotFoundError):
            folder(answering(status)).read("a.svc", 100)
    with pytest.raises(ArtifactReadError, match="403"):
        folder(answering(403)).read("a.svc", 100)
    with pytest.raises(PayloadTooLarge, match="SVC_MAX_ARTIFACT_BYTES"):
        folder(answering(200, b"x" * 101)).read("a.svc", 100)
    with pytest.raises(ArtifactReadError, match="compressed"):
        folder(answering(200, b"x", Content_Encoding="gzip")).read("a.svc", 100)
    assert bytes(folder(answering(200, b"x" * 100)).read("a.svc", 100)) == b"x" * 100


def test_a_refused_write_is_an_error(folder: Callable[[Answer], HttpFolder]) -> None:
    """As is a version that cannot be removed; one that is gone already is fine."""
    with pytest.raises(ArtifactWriteError, match="cannot be put in place"):
        folder(answering(405)).put(lambda out: out.write(b"x"), lambda _: "a.svc")
    with pytest.raises(ArtifactWriteError, match="cannot be removed"):
        folder(answering(403)).remove("a.svc")
    folder(answering(404)).remove("a.svc")
    assert folder(answering(200)).names() is None

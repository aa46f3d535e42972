"""Artifacts on a web server: HEAD detects changes, GET reads, PUT writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, TypeVar
from urllib.parse import quote, urlsplit, urlunsplit

from svc import events, logs
from svc.artifact.buffer import private_buffer
from svc.artifact.spool import spooled
from svc.errors import ArtifactReadError, ArtifactWriteError, FetchError, FetchTooLarge, PayloadTooLarge
from svc.net import HttpRules, Response, exchange
from svc.settings import Settings

T = TypeVar("T")
_GONE = (404, 410)


class HttpFolder:
    """The siblings of one URL. Its query, such as an access signature, is sent with requests but never shown."""

    def __init__(self, uri: str, settings: Settings, label: str) -> None:
        self._parts = urlsplit(uri)
        self._rules = HttpRules.of(settings)
        self._label = label

    def uri_of(self, name: str) -> str:
        return self._url(name, query="")

    def _url(self, name: str, query: str) -> str:
        folder = self._parts.path.rpartition("/")[0]
        return urlunsplit((self._parts.scheme, self._parts.netloc, f"{folder}/{quote(name)}", query, ""))

    @contextmanager
    def _answer(self, method: str, name: str, body: BinaryIO | None = None) -> Iterator[Response]:
        with exchange(method, self._url(name, self._parts.query), self._rules, body=body) as response:
            yield response

    @contextmanager
    def _reading(self, method: str, name: str) -> Iterator[Response]:
        """The successful response to a request for `name`."""
        try:
            with self._answer(method, name) as response:
                if response.status in _GONE:
                    raise FileNotFoundError(self.uri_of(name))
                response.require(200)
                yield response
        except FetchTooLarge as error:
            raise PayloadTooLarge(f"payload exceeds max bytes: {error}; SVC_MAX_ARTIFACT_BYTES") from error
        except FetchError as error:
            raise ArtifactReadError(str(error)) from error

    def marker(self, name: str) -> str:
        with self._reading("HEAD", name) as response:
            validators = [response.headers.get(header) for header in ("etag", "last-modified")]
            if not any(validators):
                raise ArtifactReadError(
                    f"{response.url} tells neither ETag nor Last-Modified, so no change can be noticed"
                )
            return f"{validators[0] or validators[1]}:{response.length}"

    def read(self, name: str, max_bytes: int) -> memoryview:
        with self._reading("GET", name) as response:
            if response.headers.get("content-encoding", "identity") != "identity":
                raise ArtifactReadError(
                    f"{response.url} is answered in compressed form; artifacts must come as they are"
                )
            if response.length is None:
                logs.emit(events.SIZE_CAP_PROBE_FAILED, name=self._label, error="no Content-Length")
            # Without Content-Length the buffer has the maximal size; only written pages use memory.
            buffer = private_buffer(max_bytes if response.length is None else min(response.length, max_bytes))
            filled = 0
            for chunk in response.chunks(max_bytes):
                buffer[filled : filled + len(chunk)] = chunk
                filled += len(chunk)
            return buffer[:filled]

    def names(self) -> list[str] | None:
        return None

    def remove(self, name: str) -> None:
        try:
            with self._answer("DELETE", name) as response:
                response.require(200, 202, 204, *_GONE)
        except FetchError as error:
            raise ArtifactWriteError(f"a version cannot be removed: {error}") from error

    def put(self, write: Callable[[BinaryIO], T], name_of: Callable[[T], str]) -> T:
        with spooled(write) as (file, result):
            try:
                with self._answer("PUT", name_of(result), file) as response:
                    response.require(200, 201, 204)
            except FetchError as error:
                raise ArtifactWriteError(f"the artifact cannot be put in place: {error}") from error
        return result

"""Stores of artifacts, independent of the URI scheme: read whole, detect changes, publish atomically.

A store is one artifact name in a folder of objects. With the versioning `append_sha`, this name belongs to a pointer:
one line of text that names the artifact itself, `<stem>.<first 8 hex digits of its sha256>.svc`, in the same folder.
Such an artifact is a version, and the version that the pointer names is live.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol, TypeVar
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from svc import events, logs
from svc.artifact import keys as signing
from svc.artifact import layout
from svc.artifact.layout import Parsed, Written
from svc.artifact.store_local import LocalFolder, private_buffer, spool_file
from svc.errors import (
    ArtifactError,
    ArtifactMisplaced,
    ArtifactReadError,
    ArtifactWriteError,
    FetchError,
    FetchTooLarge,
    NoSuchVersion,
    PayloadTooLarge,
    UsageError,
)
from svc.late_imports import LateModule
from svc.logs import redact_text
from svc.names import HTTP_SCHEMES, OBJECT_SCHEMES, Versioning
from svc.net import HttpRules, RemoteResponse, exchange
from svc.settings import Settings

if TYPE_CHECKING:
    from svc.artifact import store_fsspec
else:
    store_fsspec = LateModule("svc.artifact.store_fsspec")

_GONE = (404, 410)
_TABLES = (".csv", ".csv.gz", ".zip", ".tsv", ".parquet", ".jsonl", ".xlsx")


class HttpFolder:
    """The objects beside one URL. Requests repeat the URL's query, such as an access signature. Messages omit it."""

    def __init__(self, uri: str, settings: Settings, label: str) -> None:
        self._parts = urlsplit(uri)
        self._rules = HttpRules.of(settings)
        self._label = label

    def uri_of(self, name: str) -> str:
        return self._url(name, query="")

    def _url(self, name: str, query: str) -> str:
        folder = self._parts.path.rpartition("/")[0]
        return urlunsplit((self._parts.scheme, self._parts.netloc, f"{folder}/{quote(name)}", query, ""))

    def _answer(self, method: str, name: str, body: BinaryIO | None = None) -> AbstractContextManager[RemoteResponse]:
        return exchange(method, self._url(name, self._parts.query), self._rules, body=body)

    @contextmanager
    def _reading(self, method: str, name: str) -> Iterator[RemoteResponse]:
        """Yield the successful response to a request for `name`."""
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
            # ETag first: Last-Modified counts whole seconds, in which an artifact may be replaced twice.
            validators = [response.headers.get(header) for header in ("etag", "last-modified")]
            if not any(validators):
                raise ArtifactReadError(
                    f"{response.url} states neither ETag nor Last-Modified, so no change can be noticed"
                )
            return f"{validators[0] or validators[1]}:{response.length}"

    def read(self, name: str, max_bytes: int) -> memoryview:
        with self._reading("GET", name) as response:
            # The buffer below is sized by Content-Length, which then counts compressed bytes.
            if response.headers.get("content-encoding", "identity") != "identity":
                raise ArtifactReadError(
                    f"{response.url} is answered in compressed form; artifacts must be sent uncompressed"
                )
            if response.length is None:
                logs.emit(events.SIZE_CAP_PROBE_FAILED, name=self._label, error="no Content-Length")
            # Without Content-Length the buffer has the maximal size. It is cheap, since only written pages use memory.
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
                # A version that is already gone counts as removed, so that an interrupted command can be repeated.
                response.require(200, 202, 204, *_GONE)
        except FetchError as error:
            raise ArtifactWriteError(f"a version cannot be removed: {error}") from error

    def put(self, write: Callable[[BinaryIO], T], name_of: Callable[[T], str]) -> T:
        with spool_file(write) as (file, result):
            try:
                with self._answer("PUT", name_of(result), file) as response:
                    response.require(200, 201, 204)
            except FetchError as error:
                raise ArtifactWriteError(f"the artifact cannot be put in place: {error}") from error
        return result


T = TypeVar("T")
MAX_POINTER_BYTES: Final = 1024
SHA8: Final = 8
"""The number of hex digits of the sha256 in the name of a version."""
MAX_LOG_BYTES: Final = 16 << 20
_SUFFIX = ".svc"
_LOG_SUFFIX = ".log.jsonl"


@dataclass(frozen=True, slots=True, eq=False)
class Blob:
    """The bytes of one artifact in a private, page-aligned, read-only buffer, and their sha256.

    `resolved` is the location after following a pointer. `named` is the 8 hex digits of a sha256 in the file name of a
    version, or None for another name. Everyone who can write to the store can choose the name, so it proves nothing.
    """

    view: memoryview
    sha256: str
    resolved: str
    named: str | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """A written artifact, and whether it is live.

    - `artifact` is its location. `pointer` is the path that servers read. It is None if it leads to another artifact,
      and for `always_overwrite`, where servers read `artifact` itself.
    - `promoted` tells whether the new artifact went live. `held` tells whether it did not because a hold is set.
    - `live` is the version that the pointer names now, if the artifact has a log line. It is None if there is no
      pointer, or if the signed log does not confirm that version.
    """

    artifact: str
    pointer: str | None
    written: Written
    promoted: bool = True
    held: bool = False
    live: str | None = None

    @property
    def sha8(self) -> str:
        return self.written.sha256_hex[:SHA8]

    @property
    def kept(self) -> str:
        """Return the words about the new artifact that are logged if the training later fails or is interrupted."""
        if not self.promoted:
            return f"the new artifact {self.artifact} is written, and not live"
        return f"the new artifact {self.pointer or self.artifact} is in place"


class Folder(Protocol):
    """The objects of one folder, bucket prefix or web path. Every call may block, so call it in a thread.

    `read` and `marker` raise FileNotFoundError for a missing object and ArtifactReadError for every other failure, but
    `read` raises PayloadTooLarge for a large object. `names` raises ArtifactReadError. `put` and `remove` raise
    ArtifactWriteError. Object stores also raise ConfigError if svc lacks their extra. Messages contain no secrets.
    """

    def uri_of(self, name: str) -> str:
        """Return the full name, for messages and logs."""
        ...

    def read(self, name: str, max_bytes: int) -> memoryview:
        """Read the whole object into a private buffer.

        Raises PayloadTooLarge as soon as the object exceeds `max_bytes`.
        """
        ...

    def marker(self, name: str) -> str:
        """Return a text that changes with the object, such as its ETag, from one cheap call."""
        ...

    def put(self, write: Callable[[BinaryIO], T], name_of: Callable[[T], str]) -> T:
        """Publish a new object atomically. `write` fills it. `name_of` makes its name from the result of `write`."""
        ...

    def names(self) -> list[str] | None:
        """Return the names of the objects in the folder, or None when the store cannot list them."""
        ...

    def remove(self, name: str) -> None:
        """Remove an object, if it exists. Raises ArtifactWriteError."""
        ...


class Store:
    """The location of one artifact. Reading is thread-safe. Callers must run only one `publish` at a time."""

    def __init__(self, folder: Folder, name: str) -> None:
        self._folder = folder
        self._name = name

    @property
    def uri(self) -> str:
        return self._folder.uri_of(self._name)

    def read(self, max_bytes: int) -> Blob:
        """Read the artifact and follow a pointer.

        Raises ArtifactReadError, also for a missing file, and PayloadTooLarge.
        """
        # One read for both forms: only the content tells a pointer from an artifact.
        view = self._read(self._name, max_bytes)
        sha8 = _version_in(view, self._name)
        if sha8 is None:
            return self._blob(self._name, view, None)
        sha8, view = self._follow(sha8, max_bytes)
        return self._blob(self._target(sha8), view, sha8)

    def _blob(self, name: str, view: memoryview, named: str | None) -> Blob:
        return Blob(view, hashlib.sha256(view).hexdigest(), self._folder.uri_of(name), named)

    def _read(self, name: str, max_bytes: int) -> memoryview:
        try:
            return self._folder.read(name, max_bytes).toreadonly()
        except FileNotFoundError:
            raise ArtifactReadError(f"{self._folder.uri_of(name)} does not exist") from None

    def _follow(self, sha8: str, max_bytes: int) -> tuple[str, memoryview]:
        """Read the version that the pointer names, and return it with its name.

        If that fails, a training may have replaced the pointer and removed the version. So the pointer is read again.
        """
        try:
            return sha8, self._read(self._target(sha8), max_bytes)
        except ArtifactReadError as error:
            newer = _version_in(self._read(self._name, max_bytes), self._name)
            if newer is None or newer == sha8:
                raise ArtifactReadError(f"{self.uri} points to an artifact that cannot be read: {error}") from error
            return newer, self._read(self._target(newer), max_bytes)

    def read_log(self) -> bytes:
        """Read the version log beside the artifact, or return no bytes if it is missing.

        Raises ArtifactReadError, and PayloadTooLarge above MAX_LOG_BYTES.
        """
        try:
            return bytes(self._folder.read(f"{self._name}{_LOG_SUFFIX}", MAX_LOG_BYTES))
        except FileNotFoundError:
            return b""

    def marker(self) -> str:
        """Return the text that two polls compare: the marker of the artifact, or of its pointer.

        Raises FileNotFoundError for a missing object, ArtifactReadError for every other failure.
        """
        return self._folder.marker(self._name)

    def sidecar_exists(self) -> bool:
        """Return whether a `.sha256` file exists beside the artifact.

        svc itself writes no such file, because the artifact contains its signature.
        """
        return self._has(f"{self._name}.sha256")

    def publish(self, write: Callable[[BinaryIO], Written], versioning: Versioning) -> Published:
        """Publish the output of `write`.

        With `append_sha` the artifact is written before the pointer. Raises ArtifactWriteError. After an error readers
        still see the previous artifact, unless a remote store has written the new one and only its answer was lost.
        """
        if versioning == "always_overwrite":
            written = self._folder.put(write, lambda _: self._name)
            return Published(self.uri, None, written)
        sha8, written = self.put_version(write)
        self.point_to(sha8)
        return Published(self.uri_of_version(sha8), self.uri, written)

    def put_version(self, write: Callable[[BinaryIO], Written]) -> tuple[str, Written]:
        """Write a version without moving the pointer. Returns the first 8 hex digits of its sha256."""
        written = self._folder.put(write, lambda made: self._target(made.sha256_hex[:SHA8]))
        return written.sha256_hex[:SHA8], written

    def point_to(self, sha8: str) -> None:
        self._folder.put(lambda out: out.write(f"{self._target(sha8)}\n".encode()), lambda _: self._name)

    def uri_of_version(self, sha8: str) -> str:
        return self._folder.uri_of(self._target(sha8))

    def live(self) -> str | None:
        """Return the version that the pointer names, or None if the object is missing or not a pointer."""
        try:
            view = self._folder.read(self._name, MAX_POINTER_BYTES)
        except (FileNotFoundError, PayloadTooLarge):  # more bytes than a pointer has: an artifact
            return None
        return _version_in(view, self._name)

    def versions(self) -> set[str] | None:
        """Return the versions beside the pointer, or None when the store cannot list its objects."""
        names = self._folder.names()
        if names is None:
            return None
        matches = (_version_pattern(self._name).fullmatch(name) for name in names)
        return {match[1] for match in matches if match}

    def has_version(self, sha8: str) -> bool:
        return self._has(self._target(sha8))

    def read_version(self, sha8: str, max_bytes: int) -> Blob:
        """Read the version `sha8`. Raises NoSuchVersion, and the errors of `read`."""
        name = self._target(sha8)
        # Checked before the store is asked: the text may come from a command line and becomes part of a path.
        if not re.fullmatch(r"[0-9a-f]{8}", sha8) or not self._has(name):
            raise NoSuchVersion(f"there is no version {sha8} beside {self.uri}")
        return self._blob(name, self._read(name, max_bytes), sha8)

    def remove_version(self, sha8: str) -> None:
        self._folder.remove(self._target(sha8))

    def has_log(self) -> bool:
        return self._has(f"{self._name}{_LOG_SUFFIX}")

    def write_log(self, data: bytes) -> None:
        self._folder.put(lambda out: out.write(data), lambda _: f"{self._name}{_LOG_SUFFIX}")

    def _target(self, sha8: str) -> str:
        """Return the file name of a version."""
        return f"{self._name.removesuffix(_SUFFIX)}.{sha8}{_SUFFIX}"

    def _has(self, name: str) -> bool:
        try:
            self._folder.marker(name)
        except FileNotFoundError:
            return False
        return True


def _version_pattern(name: str) -> re.Pattern[str]:
    return re.compile(re.escape(name.removesuffix(_SUFFIX)) + r"\.([0-9a-f]{8})" + re.escape(_SUFFIX))


def _version_in(view: memoryview, name: str) -> str | None:
    """Return the version whose file name a pointer holds, or None if the bytes are not a pointer.

    Only versions of the pointer's own name are accepted, so that a pointer cannot lead to another file.
    """
    # The length first, so that a large artifact is not copied into a text.
    if len(view) > MAX_POINTER_BYTES or bytes(view[: len(layout.MAGIC)]) == layout.MAGIC:
        return None
    text = bytes(view).decode("utf-8", "replace").removesuffix("\n")
    match = _version_pattern(name).fullmatch(text)
    return match[1] if match else None


def scheme_of(uri: str) -> str:
    """Return the scheme of a URI, in lower case, or "" for a local path."""
    scheme, separator, _ = uri.partition("://")
    return scheme.lower() if separator else ""


def refuse_other_kinds(artifact: str) -> None:
    """Raise UsageError if `artifact` has the ending of a table or a recipe."""
    if artifact.lower().endswith(_TABLES):
        raise UsageError(f"{artifact} is a table; this takes an artifact, a .svc file")
    if artifact.lower().endswith((".yaml", ".yml")):
        raise UsageError(f"{artifact} is a recipe; this takes its artifact, the .svc file at its `output.path`")


def require_file(artifact: str) -> None:
    """Raise ArtifactReadError if `artifact` is a local path at which nothing exists or may be accessed."""
    try:
        if scheme_of(artifact) in ("", "file") and not local_path(artifact).exists():
            raise ArtifactReadError(f"{artifact} does not exist")
    except PermissionError as error:
        raise ArtifactReadError(f"{artifact} cannot be read: {error.strerror}") from None


def local_path(uri: str) -> Path:
    """Return the path of a local path or a file:// URI."""
    return Path(unquote(urlsplit(uri).path)) if scheme_of(uri) == "file" else Path(uri)


def open_store(uri: str, settings: Settings, *, label: str | None = None) -> Store:
    """Return the store of the artifact at `uri`. Nothing is opened yet.

    `uri` is a local path, or a file, s3, gs, az, abfs, abfss, http or https URI. Log records name the store `label`.
    SVC_ARTIFACT_ROOT bounds local paths. Raises UsageError for any other scheme.
    """
    root = Path(settings.artifact_root) if settings.artifact_root is not None else None
    return Store(*open_folder(uri, settings, label=label, root=root))


def open_folder(
    uri: str, settings: Settings, *, label: str | None = None, root: Path | None = None
) -> tuple[Folder, str]:
    """Return the folder of the object at `uri`, and the object's name in it.

    In a local folder, nothing outside of `root` is read or written. Raises UsageError as `open_store` does.
    """
    scheme = scheme_of(uri)
    if scheme in ("", "file"):
        path = local_path(uri)
        return LocalFolder(path.parent, path.name, root), path.name
    name = (unquote(urlsplit(uri).path) if scheme in HTTP_SCHEMES else uri).rpartition("/")[2]
    chained = scheme in OBJECT_SCHEMES and "::" in uri  # fsspec would open the URI after `::`
    if not name or chained or scheme not in OBJECT_SCHEMES | HTTP_SCHEMES:
        raise UsageError(
            f"{redact_text(uri)} is not a place for artifacts: give a path or a file, s3, gs, az, abfs or http(s) URI"
        )
    if scheme in HTTP_SCHEMES:
        return HttpFolder(uri, settings, label or name), name
    return store_fsspec.ObjectFolder(uri, settings, label or name), name


def read_verified(uri: str, keys: signing.SigningKeys, settings: Settings) -> tuple[Blob, Parsed]:
    """Read an artifact, and check its lengths, size limits, signature and name (see `verify_blob`).

    The payload is not decoded. SVC_ARTIFACT_ROOT does not apply, because it bounds the paths in recipes, and here the
    caller names the file. Raises ArtifactError.
    """
    blob = open_store(uri, replace(settings, artifact_root=None)).read(settings.max_artifact_bytes)
    try:
        return blob, verify_blob(blob, keys, settings)
    except ArtifactError as error:
        raise locate_error(error, blob.resolved) from None


def verify_blob(blob: Blob, keys: signing.SigningKeys, settings: Settings) -> Parsed:
    """Return the parts of an artifact after checking its size limits, signature and name.

    The artifact must be signed with one of `keys`. Its sha256 must match the name of a version's file, because anyone
    who can write to the store could put a signed older version under that name. Raises ArtifactError.
    """
    parsed = layout.parse(blob.view, max_payload_bytes=settings.max_payload_bytes)
    signing.verify(parsed, keys)
    if blob.named is not None and not blob.sha256.startswith(blob.named):
        raise ArtifactMisplaced(
            f"the file holds another version: its sha256 begins with {blob.sha256[:SHA8]}, the name says {blob.named}"
        )
    return parsed


def locate_error(error: ArtifactError, where: str) -> ArtifactError:
    """Return the same error, with the file's location appended to the message."""
    return type(error)(f"{error.message} ({redact_text(where)})", fields=error.fields)

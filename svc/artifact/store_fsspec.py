"""Artifacts in object stores: S3, Google Cloud Storage and Azure Blob, through their fsspec file systems.

Credentials, endpoints and regions come from where each client looks for them: its own variables, files and
instance metadata. Listings are never cached, for a cached one would hide another writer's artifact.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, BinaryIO, Final, TypeVar

from fsspec.asyn import sync
from fsspec.core import url_to_fs

from svc import events, logs
from svc.artifact.buffer import private_buffer
from svc.artifact.spool import spooled
from svc.errors import ArtifactError, ArtifactReadError, ArtifactWriteError, ConfigError, PayloadTooLarge
from svc.settings import MIB, Settings

T = TypeVar("T")
_PIECE_BYTES: Final = 16 * MIB
_LEAST_UPLOAD_BYTES_PER_S: Final = 256 << 10
_IDENTITY: Final = ("VersionId", "generation", "ETag", "etag", "size")
_EXTRAS: Final = {"s3": "s3", "gs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure"}


class ObjectFolder:
    """The objects under one prefix. `timeout_s` bounds each call, the client's own retries included."""

    def __init__(self, uri: str, settings: Settings, label: str) -> None:
        self._folder = uri.rpartition("/")[0]
        self._timeout_s = settings.http_timeout_s
        self._label = label

    def uri_of(self, name: str) -> str:
        return f"{self._folder}/{name}"

    @cached_property
    def _fs(self) -> Any:
        scheme = self._folder.partition(":")[0].lower()
        try:
            return url_to_fs(f"{self._folder}/-", **_options(scheme, self._timeout_s))[0]
        except ImportError:
            raise ConfigError(
                f"{scheme}:// needs the extra {_EXTRAS[scheme]}: pip install 'svc[{_EXTRAS[scheme]}]'"
            ) from None

    def _call(self, method: str, *arguments: Any, timeout_s: float | None = None, **options: Any) -> Any:
        """One operation of the file system, which runs on fsspec's own thread; given up on after its timeout."""
        operation = getattr(self._fs, f"_{method}")
        return sync(self._fs.loop, operation, *arguments, timeout=timeout_s or self._timeout_s, **options)

    def _path(self, name: str) -> str:
        return str(self._fs._strip_protocol(self.uri_of(name)))

    def marker(self, name: str) -> str:
        with self._reading(name):
            return _identity(self._info(name))

    def _info(self, name: str) -> Mapping[str, Any]:
        info: Mapping[str, Any] = self._call("info", self._path(name))
        if info.get("type") != "file":
            raise FileNotFoundError(name)
        return info

    def read(self, name: str, max_bytes: int) -> memoryview:
        info = self._probe(name)
        if info is None:
            return self._read_unprobed(name, max_bytes)
        size = int(info["size"])
        if size > max_bytes:
            raise _too_large(self.uri_of(name), str(size), max_bytes)
        buffer = private_buffer(size)
        with self._reading(name):
            for start in range(0, size, _PIECE_BYTES):
                end = min(start + _PIECE_BYTES, size)
                piece = self._call("cat_file", self._path(name), start=start, end=end)
                if len(piece) != end - start:
                    raise ArtifactReadError(f"{self.uri_of(name)} was cut: {len(piece)} bytes instead of {end - start}")
                buffer[start:end] = piece
            if size > _PIECE_BYTES and _identity(self._info(name)) != _identity(info):
                raise ArtifactReadError(f"{self.uri_of(name)} changed while it was read")
        return buffer

    def _probe(self, name: str) -> Mapping[str, Any] | None:
        """What the store tells of the object before it is read; None, and a warning, when it does not tell."""
        try:
            with self._reading(name):
                info = self._info(name)
                return info if info.get("size") is not None else None
        except ArtifactReadError as error:
            logs.emit(events.SIZE_CAP_PROBE_FAILED, name=self._label, error=str(error))
            return None

    def _read_unprobed(self, name: str, max_bytes: int) -> memoryview:
        """Ask for one byte more than may be: a store that sends it holds too much."""
        with self._reading(name):
            content = self._call("cat_file", self._path(name), start=0, end=max_bytes + 1)
        if len(content) > max_bytes:
            raise _too_large(self.uri_of(name), f"more than {max_bytes}", max_bytes)
        buffer = private_buffer(len(content))
        buffer[:] = content
        return buffer

    def put(self, write: Callable[[BinaryIO], T], name_of: Callable[[T], str]) -> T:
        with spooled(write) as (file, result):
            uri, size = self.uri_of(name_of(result)), os.fstat(file.fileno()).st_size
            timeout_s = self._timeout_s + size / _LEAST_UPLOAD_BYTES_PER_S
            try:
                source = f"/proc/self/fd/{file.fileno()}"
                self._call("put_file", source, self._path(name_of(result)), timeout_s=timeout_s)
            except ConfigError:
                raise
            except Exception as error:
                raise ArtifactWriteError(f"{uri} cannot be written: {explain(error)}") from error
        return result

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """Turn whatever a client raises into the two errors of a folder."""
        try:
            yield
        except (ArtifactError, ConfigError):
            raise
        except Exception as error:
            if isinstance(error, FileNotFoundError) or status_of(error) == 404:
                raise FileNotFoundError(self.uri_of(name)) from error
            raise ArtifactReadError(f"{self.uri_of(name)} cannot be read: {explain(error)}") from error


def _options(scheme: str, timeout_s: float) -> dict[str, Any]:
    options: dict[str, Any] = {"use_listings_cache": False}
    if scheme == "s3":
        timeouts = {"connect_timeout": timeout_s, "read_timeout": timeout_s, "retries": {"max_attempts": 2}}
        return options | {"config_kwargs": timeouts}
    if scheme == "gs":
        # gcsfs else asks over gRPC what kind of bucket it meets, and waits a minute where gRPC does not pass.
        os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        return options | {"requests_timeout": timeout_s}
    return options | {"connection_timeout": int(timeout_s), "read_timeout": int(timeout_s)}


def _identity(info: Mapping[str, Any]) -> str:
    """What changes with every write: a version or generation where the store has them, else its ETag."""
    return "|".join(str(info[key]) for key in _IDENTITY if info.get(key) is not None)


def _too_large(uri: str, size: str, cap: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"payload exceeds max bytes: {uri} has {size}, SVC_MAX_ARTIFACT_BYTES is {cap}")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(8):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def status_of(error: BaseException) -> int | None:
    """The HTTP status behind a client's error: botocore, azure and gcsfs each keep it elsewhere."""
    for cause in _causes(error):
        told = _answer_of(cause).get("ResponseMetadata", {}).get("HTTPStatusCode")
        for status in (told, getattr(cause, "status_code", None), getattr(cause, "code", None)):
            if isinstance(status, int):
                return status
    return None


def _answer_of(error: BaseException) -> Mapping[str, Any]:
    """What botocore keeps of the store's answer."""
    response = getattr(error, "response", None)
    return response if isinstance(response, dict) else {}


def explain(error: BaseException) -> str:
    """One line on what went wrong.

    Of what a store answered only its status and its code are told: its text may repeat what was sent.
    """
    if isinstance(error, TimeoutError):
        return "the store did not answer in time"
    status = status_of(error)
    if status is None and not isinstance(error, PermissionError):
        first_line = next(iter(logs.redact_text(str(error)).splitlines()), "")
        return f"{type(error).__name__}: {first_line:.160}"
    codes = (
        _answer_of(cause).get("Error", {}).get("Code") or getattr(cause, "error_code", None) for cause in _causes(error)
    )
    code = next((str(getattr(code, "value", code)) for code in codes if code), type(error).__name__)
    refused = isinstance(error, PermissionError) or status in (401, 403)
    return f"{'permission denied, ' if refused else ''}status {status or 'unknown'}, {code:.60}"

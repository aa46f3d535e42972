"""Artifacts in object stores, such as S3, through fsspec."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, Final, TypeVar

from svc import events, logs
from svc.artifact.store_local import private_buffer, spool_file, too_large
from svc.errors import ArtifactError, ArtifactReadError, ArtifactWriteError, ConfigError
from svc.objects import ObjectStore, explain, identity, is_missing
from svc.settings import MIB, Settings

T = TypeVar("T")
_PIECE_BYTES: Final = 16 * MIB


class ObjectFolder:
    """The objects of an object store under one prefix."""

    def __init__(self, uri: str, settings: Settings, label: str) -> None:
        self._folder = uri.rpartition("/")[0]
        self._objects = ObjectStore(uri, settings.http_timeout_s)
        self._label = label

    def uri_of(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def marker(self, name: str) -> str:
        with self._reading(name):
            return identity(self._objects.info(self.uri_of(name)))

    def read(self, name: str, max_bytes: int) -> memoryview:
        info = self._probe(name)
        if info is None:
            return self._read_unprobed(name, max_bytes)
        size = int(info["size"])
        if size > max_bytes:
            raise too_large(self.uri_of(name), size, max_bytes)
        buffer = private_buffer(size)
        with self._reading(name):
            # In pieces, because clients return bytes: one read of all would hold the artifact in memory twice.
            for start in range(0, size, _PIECE_BYTES):
                end = min(start + _PIECE_BYTES, size)
                piece = self._objects.read(self.uri_of(name), start, end)
                # `read` returns fewer bytes, not an error, if the object has become shorter.
                if len(piece) != end - start:
                    raise ArtifactReadError(f"{self.uri_of(name)} was cut: {len(piece)} bytes instead of {end - start}")
                buffer[start:end] = piece
            # Several reads can mix two versions of an object. One read cannot.
            if size > _PIECE_BYTES and identity(self._objects.info(self.uri_of(name))) != identity(info):
                raise ArtifactReadError(f"{self.uri_of(name)} changed while it was read")
        return buffer

    def _probe(self, name: str) -> Mapping[str, Any] | None:
        """Return the object's information, or None if the store does not report a size.

        If the request fails, logs an event and returns None too. Raises FileNotFoundError for a missing object.
        """
        try:
            with self._reading(name):
                info = self._objects.info(self.uri_of(name))
                return info if info.get("size") is not None else None
        except ArtifactReadError as error:
            logs.emit(events.SIZE_CAP_PROBE_FAILED, name=self._label, error=str(error))
            return None

    def _read_unprobed(self, name: str, max_bytes: int) -> memoryview:
        """Read at most one byte above the cap. Receiving that byte means that the object is too large."""
        with self._reading(name):
            content = self._objects.read(self.uri_of(name), 0, max_bytes + 1, expected=0)
        if len(content) > max_bytes:
            raise too_large(self.uri_of(name), f"more than {max_bytes}", max_bytes)
        buffer = private_buffer(len(content))
        buffer[:] = content
        return buffer

    def put(self, write: Callable[[BinaryIO], T], name_of: Callable[[T], str]) -> T:
        with spool_file(write) as (file, result):
            uri = self.uri_of(name_of(result))
            try:
                self._objects.write(uri, file.fileno())
            except ConfigError:  # the extra is missing, so nothing was sent
                raise
            except Exception as error:
                if not self._has_arrived(uri, file):
                    raise ArtifactWriteError(f"{uri} cannot be written: {explain(error)}") from error
        return result

    def _has_arrived(self, uri: str, file: BinaryIO) -> bool:
        """Return whether the object has the bytes of `file`, although the store reported an error.

        The store may have written the object, and only its answer was lost. Treating this as a failure would leave a
        version in the store without a line in the log.
        """
        file.seek(0)
        try:
            if int(self._objects.info(uri)["size"]) != os.fstat(file.fileno()).st_size:
                return False
            start = 0
            while piece := file.read(_PIECE_BYTES):
                end = start + len(piece)
                if self._objects.read(uri, start, end) != piece:
                    return False
                start = end
        except Exception:
            return False  # the caller raises the first error, not this one
        return True

    def names(self) -> list[str] | None:
        try:
            with self._reading(""):
                return self._objects.names(self._folder)
        except FileNotFoundError:  # object stores have no folder without objects
            return []

    def remove(self, name: str) -> None:
        uri = self.uri_of(name)
        try:
            self._objects.remove(uri)
        except ConfigError:
            raise
        except Exception as error:
            if not is_missing(error):
                raise ArtifactWriteError(f"{uri} cannot be removed: {explain(error)}") from error

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """Turn the exceptions of clients into FileNotFoundError and ArtifactReadError."""
        try:
            yield
        except (ArtifactError, ConfigError):
            raise
        except Exception as error:
            if is_missing(error):
                raise FileNotFoundError(self.uri_of(name)) from error
            raise ArtifactReadError(f"{self.uri_of(name)} cannot be read: {explain(error)}") from error

"""Files in object stores, read in pieces on demand.

All functions raise ConfigError if the extra for the store is not installed, and DataSourceError for other failures.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, Final, cast

from svc.errors import DataSourceError, SvcError
from svc.logs import redact_text
from svc.objects import ObjectStore, explain, identity, is_missing, status_of
from svc.recipe.paths import Location
from svc.settings import MIB, Settings

_PIECE_BYTES: Final = 8 * MIB


@contextmanager
def open_object(location: Location, settings: Settings) -> Iterator[tuple[BinaryIO, int]]:
    """Open the object as a seekable file, and yield it with its size in bytes.

    Raises DataSourceError also if the object was replaced before the block ends and more than one piece was read,
    because the pieces may then come from two versions.
    """
    store = ObjectStore(location.uri, settings.http_timeout_s)
    with _store_errors(location.uri):
        info = _info(store, location.uri)
    remote = _RemoteFile(store, location.uri, int(info["size"]))
    yield cast("BinaryIO", io.BufferedReader(remote, _PIECE_BYTES)), remote.size
    if remote.n_pieces > 1:  # a single piece comes from a single version
        with _store_errors(location.uri):
            if identity(store.info(location.uri)) != identity(info):
                raise DataSourceError(f"{redact_text(location.uri)} changed while it was read; run it again")


def kind(location: Location, settings: Settings) -> str | None:
    """Return `file` for an object, `directory` for a prefix of objects, otherwise None. Raises DataSourceError."""
    with _store_errors(location.uri):
        return ObjectStore(location.uri, settings.http_timeout_s).kind(location.uri)


def list_files(uri: str, settings: Settings) -> list[tuple[str, int]]:
    """Return address and size of every object below `uri`. Raises DataSourceError."""
    with _store_errors(uri):
        return ObjectStore(uri, settings.http_timeout_s).list_files(uri)


def read_whole(location: Location, size: int, settings: Settings) -> bytes:
    """Read an object of `size` bytes in one request, so that all bytes are of one version. Raises DataSourceError."""
    with _store_errors(location.uri):
        # One byte more than `size`, to notice that the object has grown.
        content = ObjectStore(location.uri, settings.http_timeout_s).read(location.uri, 0, size + 1)
    if len(content) != size:
        raise DataSourceError(f"{redact_text(location.uri)} changed while it was read; run it again")
    return content


def _info(store: ObjectStore, uri: str) -> Mapping[str, Any]:
    try:
        return store.info(uri)
    except Exception as error:
        if status_of(error) in (400, 401, 403):
            store.read(uri, 0, 1)  # raises with the store's reason, which only the answer to a GET contains
        raise


class _RemoteFile(io.RawIOBase):
    """A seekable file of one object, read in pieces. Raises DataSourceError."""

    def __init__(self, store: ObjectStore, uri: str, size: int) -> None:
        self._store = store
        self._uri = uri
        self._position = 0
        self.size = size
        self.n_pieces = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        # Reading decides whether there are bytes, so a position after the end is allowed.
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        end = min(self._position + len(buffer), self.size)
        count = max(0, end - self._position)
        if count:
            with _store_errors(self._uri):
                piece = self._store.read(self._uri, self._position, end)
            if len(piece) != count:
                raise DataSourceError(f"{redact_text(self._uri)} was cut: {len(piece)} bytes instead of {count}")
            buffer[:count] = piece
            self._position = end
            self.n_pieces += 1
        return count


@contextmanager
def _store_errors(uri: str) -> Iterator[None]:
    try:
        yield
    # Settings and missing extras have their own errors.
    except SvcError:
        raise
    except Exception as error:
        if is_missing(error):
            raise DataSourceError(f"{redact_text(uri)} does not exist") from None
        raise DataSourceError(f"{redact_text(uri)} cannot be read: {explain(error)}") from error

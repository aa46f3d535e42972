"""Access to the file of a csv or parquet source, local or remote. Enforces size caps and checks or records sha256."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Event, Lock
from typing import Any, BinaryIO, Final, Literal, cast

from svc import events, logs
from svc.errors import DataSourceError, FetchError, FetchTooLarge, SourceTooLarge
from svc.local_paths import failure, naming_size
from svc.logs import redact_text
from svc.net import HttpRules, RemoteResponse, exchange
from svc.recipe.paths import Location
from svc.sources import objects
from svc.sources.base import Purpose, SourceContext

Record = Callable[[str, str], None]
_record: ContextVar[Record | None] = ContextVar("record", default=None)
EXPANSION = 8
"""A file from http(s) may expand to this many times SVC_MAX_DOWNLOAD_BYTES."""
STOP_S = 0.5
"""Longest wait until Arrow's read-ahead thread has seen the end of the stream.

A thread that has already read ahead enough does not read again, so the wait needs a limit.
"""
PART_BYTES = 256 * 1024
Part = Literal["all", "beginning", "end"]
_CHUNK = 1 << 20
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_CONTENT_RANGE: Final = re.compile(r"bytes (?P<begin>[0-9]{1,18})-[0-9]{1,18}/[0-9]{1,18}")


class HashingFile:
    """A file that computes sha256 and size of the bytes written to it, and passes the bytes on to `out`, if given."""

    # Arrow's PythonFile reads this attribute of a file, and calls `flush` and `close`.
    closed = False

    def __init__(self, out: BinaryIO | None = None) -> None:
        self._out = out
        self._digest = hashlib.sha256()
        self.n_bytes = 0

    def write(self, data: Any) -> int:
        piece = memoryview(data)
        self._digest.update(piece)
        if self._out is not None:
            self._out.write(piece)
        self.n_bytes += piece.nbytes
        return piece.nbytes

    def flush(self) -> None: ...
    def close(self) -> None: ...

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


@contextmanager
def record_digests(record: Record) -> Iterator[None]:
    """Call `record(where, sha256)` for each file or table in memory that this thread reads whole within the context.

    A local file is digested before it is parsed, so a change between the two goes unnoticed. Databases have no digest.
    """
    token = _record.set(record)
    try:
        yield
    finally:
        _record.reset(token)


def records_digests() -> bool:
    return _record.get() is not None


def record_digest(where: str, sha256: str) -> None:
    record = _record.get()
    if record is not None:
        record(where, sha256)


def download(url: str, out: BinaryIO, context: SourceContext, *, at_most: int | None = None) -> str:
    """Write the body of `url` to `out` and return its sha256 (hex).

    With `at_most`, reading stops without an error after that many bytes. Raises SourceTooLarge above
    SVC_MAX_DOWNLOAD_BYTES, DataSourceError for every other failure.
    """
    hashing = HashingFile(out)
    with _answer(url, context) as response:
        response.require(200)
        for chunk in response.chunks(context.settings.max_download_bytes):
            hashing.write(chunk)
            if at_most is not None and hashing.n_bytes >= at_most:
                break
        if at_most is None:
            _require_whole(response.url, response.length, hashing.n_bytes)
    return hashing.sha256


def download_end(url: str, out: BinaryIO, context: SourceContext, n_bytes: int) -> int | None:
    """Write the last `n_bytes` of the body to `out`, at the offset that they have in the body. Return the offset.

    Returns None if the answer is larger than `n_bytes`, because the server ignores ranges, or if its length is not
    stated. Raises as `download` does.
    """
    with _answer(url, context, {"Range": f"bytes=-{n_bytes}"}) as response:
        response.require(200, 206)
        content_range = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
        begin = int(content_range["begin"]) if response.status == 206 and content_range else 0
        if response.length is None or response.length > n_bytes:
            return None
        # The footer of a Parquet file counts offsets from the start of the file.
        out.seek(begin)
        out.writelines(response.chunks(n_bytes))
        _require_whole(response.url, response.length, out.tell() - begin)
    return begin


@contextmanager
def _answer(url: str, context: SourceContext, headers: Mapping[str, str] | None = None) -> Iterator[RemoteResponse]:
    """Yield the final response to a GET. Logs redirects. Every failure becomes a DataSourceError."""
    redirect = events.METADATA_SOURCE_REDIRECT if context.purpose == "metadata" else events.CSV_SOURCE_REDIRECT

    def on_redirect(from_: str, to: str, status: int) -> None:
        logs.emit(redirect, from_=from_, to=to, status=status)

    where = url
    rules = HttpRules.of(context.settings)
    try:
        with exchange("GET", url, rules, headers=headers, on_redirect=on_redirect) as response:
            # After redirects this is another address than `url`.
            where = response.url
            yield response
    except FetchTooLarge as error:
        too_large(where, error.fields["bytes_read"], context.settings.max_download_bytes, context.purpose)
        raise SourceTooLarge(f"{error.message}: SVC_MAX_DOWNLOAD_BYTES", fields=error.fields) from None
    except FetchError as error:
        raise DataSourceError(error.message, fields=error.fields) from error


def too_large(path: str, bytes_read: int, cap: int, purpose: Purpose) -> None:
    """Log that reading `path` stopped because of the size cap."""
    event = events.METADATA_SOURCE_SIZE_EXCEEDED if purpose == "metadata" else events.CSV_SOURCE_SIZE_EXCEEDED
    logs.emit(event, path=path, bytes_read=bytes_read, cap=cap)


def _require_whole(url: str, length: int | None, read: int) -> None:
    if length is not None and read != length:
        raise DataSourceError(f"{url} was cut: {read} of {length} bytes arrived")


@dataclass(frozen=True, slots=True)
class DataFile:
    """An open file that can seek.

    `where` names it in messages. `max_expanded` bounds its size after decompression. `whole` is False if only a part
    of the file was fetched. `begin` is the offset of the first fetched byte, or None if the end of the file was wanted
    but the server could not send it alone.
    """

    file: BinaryIO
    where: str
    size: int
    max_expanded: int | None
    whole: bool = True
    begin: int | None = 0


@contextmanager
def open_location(
    location: Location, context: SourceContext, *, sha256: str | None = None, part: Part = "all"
) -> Iterator[DataFile]:
    """Open the file at a location, verified against `sha256` if it is given.

    With `part` `beginning` or `end`, only that part of an http(s) file is fetched and nothing is verified. Raises
    DataSourceError.
    """
    with file_errors(address_of(location, context)), _open(location, sha256, context, part) as file:
        yield file


@contextmanager
def in_memory(content: Callable[[], bytes], where: str) -> Iterator[DataFile]:
    """Yield the result of `content` as a file. Raises DataSourceError."""
    with file_errors(where):
        data = content()
        if records_digests():
            record_digest(where, hashlib.sha256(data).hexdigest())
        yield DataFile(io.BytesIO(data), where, len(data), None)


def address_of(location: Location, context: SourceContext) -> str:
    """Return the address without secrets, for messages."""
    if not location.is_remote:
        return str(location.resolve(context.base_dir))
    # Signed addresses have their signature in the query.
    return redact_text(location.uri.partition("?")[0])


@contextmanager
def file_errors(where: str) -> Iterator[None]:
    """Turn failures of the file system into a DataSourceError that names the file."""
    try:
        yield
    except FileNotFoundError:
        raise DataSourceError(f"{where} does not exist") from None
    except IsADirectoryError:
        raise DataSourceError(f"{where} is a folder, not a file") from None
    except PermissionError:
        raise DataSourceError(f"{where} may not be read: permission denied") from None
    except OSError as error:
        reason = error.strerror or redact_text(str(error))
        raise DataSourceError(f"{where} cannot be read: {reason[:300]}") from error


@contextmanager
def _open(location: Location, sha256: str | None, context: SourceContext, part: Part) -> Iterator[DataFile]:
    if location.is_http:
        with _spool(address_of(location, context)) as file:
            yield _fetch(location, sha256, context, file, part)
    elif location.is_remote:
        with _object(location, sha256, context, part) as remote:
            yield remote
    else:
        path = location.resolve(context.base_dir)
        # Checked before the file is opened, because opening a pipe would wait for its writer.
        if not stat.S_ISREG(path.stat().st_mode):
            raise IsADirectoryError if path.is_dir() else DataSourceError(f"{path} is not a regular file")
        with path.open("rb") as file:
            if part == "all" and (sha256 is not None or records_digests()):
                _check(_digest(file), sha256, str(path))
            size = os.fstat(file.fileno()).st_size
            yield DataFile(file, str(path), size, None)
            # A csv file that another program cuts between two lines would be half a table without an error.
            if os.fstat(file.fileno()).st_size < size:
                raise DataSourceError(f"{path} was cut while it was read")


def _fetch(location: Location, sha256: str | None, context: SourceContext, file: BinaryIO, part: Part) -> DataFile:
    where = address_of(location, context)
    begin: int | None = 0
    if part == "end":
        begin = download_end(location.uri, file, context, PART_BYTES)
    elif part == "beginning":
        download(location.uri, file, context, at_most=PART_BYTES)
    else:
        _check(download(location.uri, file, context), sha256, where)
    size = file.tell()
    file.seek(0)
    # Fewer bytes than were asked for are the whole file.
    whole = part == "all" or size < PART_BYTES
    return DataFile(file, where, size, context.settings.max_download_bytes * EXPANSION, whole, begin)


@contextmanager
def _object(location: Location, sha256: str | None, context: SourceContext, part: Part) -> Iterator[DataFile]:
    where = address_of(location, context)
    with objects.open_object(location, context.settings) as (remote, size):
        if part != "all" or (sha256 is None and not records_digests()):
            yield DataFile(remote, where, size, None)
            return
        with _spool(where) as copy:  # a second read of the object could return other bytes than the verified ones
            hashing = HashingFile(copy)
            with naming_size(size):
                shutil.copyfileobj(remote, hashing, _CHUNK)
                copy.seek(0)
            _check(hashing.sha256, sha256, where)
            yield DataFile(copy, where, size, None)


@contextmanager
def _spool(where: str) -> Iterator[BinaryIO]:
    """Yield a temporary file for a copy of `where`, deleted after the block.

    Raises DataSourceError if there is no folder for temporary files, or no room in it.
    """
    try:
        # Looked for first, because `file_errors` would report this FileNotFoundError as a missing table.
        tempfile.gettempdir()
    except FileNotFoundError:
        raise DataSourceError("there is no folder for temporary files; name one in TMPDIR") from None
    try:
        with tempfile.TemporaryFile() as file:
            yield cast("BinaryIO", file)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise DataSourceError(
            f"{tempfile.gettempdir()} (TMPDIR) cannot hold a copy of {where}: {failure(error, tempfile.gettempdir())}"
        ) from error


def _digest(file: BinaryIO) -> str:
    hashing = HashingFile()
    shutil.copyfileobj(file, hashing, _CHUNK)
    file.seek(0)
    return hashing.sha256


def _check(digest: str, expected: str | None, where: str) -> None:
    """Record the digest. Raise DataSourceError if it differs from the expected one."""
    record_digest(where, digest)
    if expected is not None and digest != expected:
        raise DataSourceError(
            f"{where} is not the expected file: it has sha256:{digest}, the recipe says sha256:{expected}"
        )


class CappedReader(io.RawIOBase):
    """A reader of `stream` up to the cap of `file`. Above the cap it logs an event and raises SourceTooLarge.

    It does not close the stream.
    """

    def __init__(self, stream: Any, file: DataFile, context: SourceContext) -> None:
        self._stream = stream
        self._file = file
        self._context = context
        self._read = 0
        self._reading = Lock()
        self._stopped = False
        self._at_end = Event()

    def readable(self) -> bool:
        return True

    def stop(self) -> None:
        """End the stream here, and wait until Arrow's read-ahead thread has seen its end.

        If the thread is still reading when the process exits, the process aborts or hangs.
        """
        # So that no read is under way when `stop` returns.
        with self._reading:
            self._stopped = True
        if not self._at_end.is_set():
            self._at_end.wait(STOP_S)

    def readinto(self, buffer: Any) -> int:
        with self._reading:
            count = 0 if self._stopped else self._read_some(buffer)
        if not count:
            self._at_end.set()
        return count

    def _read_some(self, buffer: Any) -> int:
        count = int(self._stream.readinto(buffer) or 0)
        self._read += count
        cap = self._file.max_expanded
        if cap is not None and self._read > cap:
            refuse_expansion(self._file.where, self._read, cap, self._context)
        return count


def refuse_expansion(where: str, n_bytes: int, cap: int, context: SourceContext) -> None:
    """Log an event and raise SourceTooLarge for a file that expands to more than its cap."""
    too_large(where, n_bytes, cap, context.purpose)
    raise SourceTooLarge(
        f"{where} expands to more than {cap} bytes, {EXPANSION} times SVC_MAX_DOWNLOAD_BYTES",
        fields={"bytes_read": n_bytes, "cap": cap},
    )

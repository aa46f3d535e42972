"""Artifacts in a local or mounted folder.

A new file replaces the old one atomically and durably. A writer first removes the temporary files of killed runs
(see svc/atomic_write.py).

The check of a root (SVC_ARTIFACT_ROOT) is free of races, except when a missing folder is created. The file or folder is
opened first (O_PATH), its location is checked by the descriptor, and all access goes through that descriptor.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import BinaryIO, TypeVar

from svc.atomic_write import remove_leftovers, write_file
from svc.errors import ArtifactReadError, ArtifactWriteError, PayloadTooLarge
from svc.local_paths import failure

T = TypeVar("T")
_MISSING = (errno.ENOENT, errno.ENOTDIR)


def private_buffer(size: int) -> memoryview:
    """Return `size` writable zero bytes.

    Pages use memory only after they are written. The memory is anonymous, not a mapping of a file, so verified bytes
    cannot change.
    """
    if size == 0:  # mmap refuses a length of 0
        return memoryview(bytearray())
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return memoryview(pages)


def too_large(uri: object, size: object, cap: int) -> PayloadTooLarge:
    """Return the error for an artifact of more than `cap` bytes."""
    return PayloadTooLarge(f"payload exceeds max bytes: {uri} has {size}, SVC_MAX_ARTIFACT_BYTES is {cap}")


@contextmanager
def spool_file(write: Callable[[BinaryIO], T]) -> Iterator[tuple[BinaryIO, T]]:
    """Yield an unnamed temporary file that `write` has filled, and the result of `write`.

    The file is in `TMPDIR`. It is deleted after the block or with the process. Raises ArtifactWriteError if it cannot
    be written.
    """
    try:
        with TemporaryFile() as file:
            result = write(file)
            file.flush()
            yield file, result
    except OSError as error:
        raise ArtifactWriteError(
            f"no temporary file can be written: {failure(error, gettempdir())}; see TMPDIR"
        ) from error


class LocalFolder:
    """The files of one folder.

    Temporary files begin with `base`, so that a run removes only leftovers of its own output. With a `root`, nothing
    outside of that folder is read or written, not even through links.
    """

    def __init__(self, folder: Path, base: str, root: Path | None = None) -> None:
        self._folder = folder
        self._base = base
        self._root = root

    def uri_of(self, name: str) -> str:
        return str(self._folder / name)

    def read(self, name: str, max_bytes: int) -> memoryview:
        path = self._folder / name
        with _reading(path), self._checked_path(path, 0) as opened:
            # If a named pipe has replaced the file, opening without O_NONBLOCK would wait forever for a writer.
            descriptor = os.open(opened, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            # Unbuffered, so that `readinto` fills the artifact's own memory without a copy in between.
            with os.fdopen(descriptor, "rb", buffering=0) as file:
                return _read_all(file, path, max_bytes)

    def marker(self, name: str) -> str:
        path = self._folder / name
        with _reading(path), self._checked_path(path, 0) as opened:
            status = opened.stat()
        # The ctime is part of the marker because it changes even if a copy restores size and mtime.
        return f"{status.st_mtime_ns}:{status.st_size}:{status.st_ino}:{status.st_ctime_ns}"

    def put(self, write: Callable[[BinaryIO], T], name_of: Callable[[T], str]) -> T:
        try:
            if self._root is not None:  # checked before `mkdir`, which could create folders outside of the root
                _require_below(self._folder.resolve(), self._root, self._folder)
            self._folder.mkdir(parents=True, exist_ok=True)
            with self._checked_path(self._folder, os.O_DIRECTORY) as folder:
                remove_leftovers(folder, self._base)
                return write_file(folder, self._base, write, name_of)
        except ArtifactReadError as error:
            raise ArtifactWriteError(error.message) from None
        except OSError as error:
            raise ArtifactWriteError(f"cannot write into {self._folder}: {failure(error, self._folder)}") from error

    def names(self) -> list[str] | None:
        try:
            with _reading(self._folder), self._checked_path(self._folder, os.O_DIRECTORY) as folder:
                return [path.name for path in folder.iterdir()]
        except FileNotFoundError:
            return []

    def remove(self, name: str) -> None:
        try:
            with self._checked_path(self._folder, os.O_DIRECTORY) as folder:
                (folder / name).unlink(missing_ok=True)
        except ArtifactReadError as error:
            raise ArtifactWriteError(error.message) from None
        except OSError as error:
            raise ArtifactWriteError(f"cannot remove {self._folder / name}: {error.strerror or error}") from error

    @contextmanager
    def _checked_path(self, path: Path, flags: int) -> Iterator[Path]:
        """Yield the path through which to access `path`.

        With a root, it is the path of an open descriptor that was verified to be below the root.
        """
        if self._root is None:
            yield path
            return
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC | flags)
        try:
            # Access through the descriptor reaches the checked file, even if a link in `path` changes afterwards.
            opened = Path(f"/proc/self/fd/{descriptor}")
            _require_below(opened.readlink(), self._root, path)
            yield opened
        finally:
            os.close(descriptor)


def _require_below(real: Path, root: Path, path: Path) -> None:
    # The root is resolved too, because it may itself be a link.
    if not real.is_relative_to(root.resolve()):
        raise ArtifactReadError(f"{path} leads outside SVC_ARTIFACT_ROOT ({root})")


def _read_all(file: BinaryIO, path: Path, max_bytes: int) -> memoryview:
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise ArtifactReadError(f"{path} is not a file")
    if status.st_size > max_bytes:
        raise too_large(path, status.st_size, max_bytes)
    buffer = private_buffer(status.st_size)
    filled = 0
    # A loop, because Linux reads at most 2 GiB a call. BinaryIO of typeshed lacks readinto.
    while filled < len(buffer) and (count := file.readinto(buffer[filled:])):  # type: ignore[attr-defined]
        filled += count
    # One more byte means that the file has grown. Its beginning may then belong to another version.
    if filled < len(buffer) or file.read(1):
        raise ArtifactReadError(f"{path} changed its size while it was read")
    return buffer


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn the OSErrors of `path` into FileNotFoundError and ArtifactReadError."""
    try:
        yield
    except OSError as error:
        if error.errno in _MISSING:
            raise FileNotFoundError(error.errno, "no such artifact", str(path)) from None
        raise ArtifactReadError(f"{path} cannot be read: {error.strerror or error}") from error

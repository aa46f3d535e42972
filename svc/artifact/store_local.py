"""Artifacts in a folder of this machine, or one mounted into it.

A new file replaces the old one in one step, and is durable then. A writer first removes the temporary files of runs
that died (see svc/atomic_write.py).

With a root (SVC_ARTIFACT_ROOT) what counts is where an opened file or folder is, not what its path said before:
it is opened without being read, looked up by its descriptor, and used through that descriptor.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar

from svc.artifact.buffer import private_buffer
from svc.atomic_write import remove_leftovers, write_file
from svc.errors import ArtifactReadError, ArtifactWriteError, PayloadTooLarge

T = TypeVar("T")
_MISSING = (errno.ENOENT, errno.ENOTDIR)


class LocalFolder:
    """Files of one folder. `base` names the temporary files, so that a run only cleans up after its own kind.

    With a `root` nothing outside of it is read or written, wherever links lead.
    """

    def __init__(self, folder: Path, base: str, root: Path | None = None) -> None:
        self._folder = folder
        self._base = base
        self._root = root

    def uri_of(self, name: str) -> str:
        return str(self._folder / name)

    def read(self, name: str, max_bytes: int) -> memoryview:
        path = self._folder / name
        with _reading(path), self._place(path, 0) as place:
            # O_NONBLOCK: opening a pipe that took the file's place must not wait for a writer.
            descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb", buffering=0) as file:
                return _read_all(file, path, max_bytes)

    def marker(self, name: str) -> str:
        path = self._folder / name
        with _reading(path), self._place(path, 0) as place:
            status = place.stat()
        return f"{status.st_mtime_ns}:{status.st_size}:{status.st_ino}:{status.st_ctime_ns}"

    def put(self, write: Callable[[BinaryIO], T], name_of: Callable[[T], str]) -> T:
        try:
            if self._root is not None:
                _require_below(self._folder.resolve(), self._root, self._folder)
            self._folder.mkdir(parents=True, exist_ok=True)
            with self._place(self._folder, os.O_DIRECTORY) as folder:
                remove_leftovers(folder, self._base)
                return write_file(folder, self._base, write, name_of)
        except ArtifactReadError as error:
            raise ArtifactWriteError(error.message) from None
        except OSError as error:
            raise ArtifactWriteError(f"cannot write into {self._folder}: {error.strerror or error}") from error

    def names(self) -> list[str] | None:
        try:
            with _reading(self._folder), self._place(self._folder, os.O_DIRECTORY) as folder:
                return [path.name for path in folder.iterdir()]
        except FileNotFoundError:
            return []

    def remove(self, name: str) -> None:
        try:
            with self._place(self._folder, os.O_DIRECTORY) as folder:
                (folder / name).unlink(missing_ok=True)
        except ArtifactReadError as error:
            raise ArtifactWriteError(error.message) from None
        except OSError as error:
            raise ArtifactWriteError(f"cannot remove {self._folder / name}: {error.strerror or error}") from error

    @contextmanager
    def _place(self, path: Path, flags: int) -> Iterator[Path]:
        """The path by which to use what lies at `path`: with a root, that of a descriptor which was found below it."""
        if self._root is None:
            yield path
            return
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC | flags)
        try:
            place = Path(f"/proc/self/fd/{descriptor}")
            _require_below(place.readlink(), self._root, path)
            yield place
        finally:
            os.close(descriptor)


def _require_below(found: Path, root: Path, path: Path) -> None:
    if not found.is_relative_to(root.resolve()):
        raise ArtifactReadError(f"{path} leads outside SVC_ARTIFACT_ROOT ({root})")


def _read_all(file: BinaryIO, path: Path, max_bytes: int) -> memoryview:
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise ArtifactReadError(f"{path} is not a file")
    if status.st_size > max_bytes:
        raise PayloadTooLarge(
            f"payload exceeds max bytes: {path} has {status.st_size}, SVC_MAX_ARTIFACT_BYTES is {max_bytes}"
        )
    buffer = private_buffer(status.st_size)
    filled = 0
    while filled < len(buffer) and (count := file.readinto(buffer[filled:])):  # type: ignore[attr-defined]
        filled += count
    if filled < len(buffer) or file.read(1):
        raise ArtifactReadError(f"{path} changed its size while it was read")
    return buffer


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn what the system says about `path` into the two errors of a folder."""
    try:
        yield
    except OSError as error:
        if error.errno in _MISSING:
            raise FileNotFoundError(error.errno, "no such artifact", str(path)) from None
        raise ArtifactReadError(f"{path} cannot be read: {error.strerror or error}") from error

"""Count the system calls of one kind that concern a folder, and let the n-th of them fail as a kernel would.

Tests repeat a run for n = 1, 2, 3, ... until it makes fewer calls. This shows that files are old or new, never broken,
whichever call fails. The authors of SQLite test their library in this way.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import io
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, Self
from unittest import mock

import trio

Failure = int | Literal["short"]
"""An errno, or "short" for a read or write of fewer bytes than requested."""

KINDS: dict[str, tuple[Failure, ...]] = {
    "open": (errno.EMFILE, errno.EACCES),
    "read": (errno.EIO, "short"),
    "write": (errno.ENOSPC, "short"),
    "fsync": (errno.EIO,),
    "rename": (errno.EIO,),
    "unlink": (errno.EACCES,),
    "list": (errno.EIO,),
    "stat": (errno.EIO,),
    "lock": (errno.ENOLCK,),
    "mmap": (errno.ENOMEM,),
    "thread": (errno.EAGAIN,),
}
WORKER: tuple[str, Failure] = ("worker", errno.EAGAIN)
"""Fails trio's call for a worker thread, also if trio has an idle one and need not start one."""
STRIDE = int(os.environ.get("SVC_TEST_FAULT_STRIDE", "12"))
"""The distance of the calls that fail. With 1, every call of every kind fails in every command, in minutes."""
FAULTS: list[tuple[str, Failure]] = [
    (kind, failure)
    for kind, failures in KINDS.items()
    if STRIDE == 1 or kind in {"open", "read", "write", "fsync", "rename"}
    for failure in (failures if STRIDE == 1 else failures[:1])
]
_BY_PATH = {
    "rename": ("rename", "replace", "link"),
    "unlink": ("unlink", "remove"),
    "list": ("scandir", "listdir"),
    "stat": ("stat", "lstat"),
}


class FailingCalls:
    """During a `with` block, counts the calls of `kind` on `folder` and lets number `nth` fail with `failure`.

    `meanwhile` is called with the number of each call before it is made, so that a test can act between two calls.
    Starts of threads and anonymous memory maps have no folder, so all of them are counted.
    """

    def __init__(
        self,
        folder: Path,
        kind: str,
        failure: Failure = 0,
        nth: int = 0,
        *,
        meanwhile: Callable[[int], object] = lambda made: None,
    ) -> None:
        self._folder = str(folder)
        self._kind = kind
        self._failure = failure
        self._nth = nth
        self._meanwhile = meanwhile
        self._lock = threading.Lock()
        self._patches = ExitStack()
        self.made = 0

    @property
    def failed(self) -> bool:
        return 0 < self._nth <= self.made

    def __enter__(self) -> Self:
        for target, name, replacement in self._replacements():
            self._patches.enter_context(mock.patch.object(target, name, replacement))
        return self

    def __exit__(self, *_: object) -> None:
        self._patches.close()

    def count(self, kind: str) -> bool:
        """Count a call. Return True if it must read or write less than requested. Raises the error of the n-th call."""
        if kind != self._kind:
            return False
        with self._lock:
            self.made += 1
            is_hit = self.made == self._nth
        self._meanwhile(self.made)
        if not is_hit or self._failure == "short":
            return is_hit
        if kind in {"thread", "worker"}:
            raise RuntimeError("can't start new thread")
        raise OSError(self._failure, os.strerror(self._failure))

    def reaches(self, file: object) -> bool:
        """Return whether a path or a descriptor is in the folder."""
        if isinstance(file, int):
            try:
                return str(Path(f"/proc/self/fd/{file}").readlink()).startswith(self._folder)
            except OSError:
                return False
        return os.fspath(file).startswith(self._folder) if isinstance(file, str | os.PathLike) else False

    def _replacements(self) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
        yield builtins, "open", self._open
        yield io, "open", self._open
        yield os, "open", self._counted("open", os.open)
        yield os, "write", self._written
        yield os, "fsync", self._counted("fsync", os.fsync)
        yield fcntl, "flock", self._locked
        for kind, names in _BY_PATH.items():
            for name in names:
                yield os, name, self._counted(kind, getattr(os, name))
        if self._kind == "mmap":
            yield mmap, "mmap", self._always_counted("mmap", mmap.mmap)
        if self._kind == "thread":
            yield threading.Thread, "start", self._always_counted("thread", threading.Thread.start)
        if self._kind == "worker":
            yield trio.to_thread, "run_sync", self._always_counted("worker", trio.to_thread.run_sync)

    def _counted(self, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(file: Any = ".", *arguments: Any, **options: Any) -> Any:
            if kind == self._kind and self.reaches(file):
                self.count(kind)
            return call(file, *arguments, **options)

        return counted

    def _locked(self, file: Any, operation: int) -> None:
        if not operation & fcntl.LOCK_UN and self.reaches(file):  # unlocking never fails
            self.count("lock")
        _FLOCK(file, operation)

    def _always_counted(self, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            self.count(kind)
            return call(*arguments, **options)

        return counted

    def _written(self, descriptor: int, content: Any) -> int:
        is_short = self.reaches(descriptor) and self.count("write")
        return _WRITE(descriptor, memoryview(content)[: _part(len(content))] if is_short else content)

    def _open(  # noqa: PLR0917 - as the builtin
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        if not self.reaches(file):
            return _OPEN(file, mode, buffering, encoding, errors, newline, closefd, opener)
        if not isinstance(file, int):
            self.count("open")
        raw = _FailingFile(file, mode.replace("b", "").replace("t", ""), closefd, opener)
        raw.calls = self
        if buffering == 0:
            return raw
        kind = io.BufferedRandom if "+" in mode else io.BufferedReader if "r" in mode else io.BufferedWriter
        buffered: Any = kind(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)


_OPEN, _WRITE, _FLOCK = builtins.open, os.write, fcntl.flock


def _part(size: int) -> int:
    """Return half of `size`, but at least 1: a call that moves no byte would be repeated for ever."""
    return max(size // 2, 1)


class _FailingFile(io.FileIO):
    """A file whose reads and writes are counted."""

    calls: FailingCalls

    def readinto(self, buffer: Any) -> int | None:
        is_short = self.calls.count("read")
        return super().readinto(memoryview(buffer)[: _part(len(buffer))] if is_short else buffer)

    def readall(self) -> bytes:
        parts = []
        while part := self.read(1 << 20):
            parts.append(part)
        return b"".join(parts)

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            return self.readall()
        return super().read(_part(size) if self.calls.count("read") else size)

    def write(self, content: Any) -> int:
        is_short = self.calls.count("write")
        return super().write(memoryview(content)[: _part(len(content))] if is_short else content)

"""The highest serial served per recipe and kid, in one small file per recipe (SVC_STATE_DIR).

Servers may share the folder: each change re-reads the file under a lock. A file that is lost, damaged or not writable
is logged and stops nothing: this process still remembers in memory what it has served.
"""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout

from svc import events, logs
from svc.artifact.replay.freshness import MAX_SERIAL
from svc.atomic_write import replace_file

_FORMAT: Final = 1
_LOCK_TIMEOUT_S: Final = 2.0
_LOCK_PAUSE_S: Final = 0.05
_MAX_BYTES: Final = 1 << 20

Serials = dict[str, int]


class SerialState:
    """Thread-safe. Each kid has its own serials, so that a stolen key cannot raise the serials of another key."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._served: dict[str, Serials] = {}
        self._lock = threading.Lock()

    def highest(self, recipe: str, kid: str) -> int | None:
        """The highest serial of this recipe and kid; None without one."""
        with self._lock:
            served = self._served.setdefault(recipe, {})
            _raise(served, self._read(recipe))
            return served.get(kid)

    def remember(self, recipe: str, kid: str, serial: int) -> None:
        """Record the serial of an artifact that has passed every check and is about to be served."""
        with self._lock:
            served = self._served.setdefault(recipe, {})
            _raise(served, {kid: serial})
            try:
                with self._locked(recipe):
                    stored = self._read(recipe, quiet=True)
                    _raise(served, stored)
                    if stored != served:
                        self._write(recipe, served)
            except OSError as error:
                self._tell(recipe, f"cannot be written: {error.strerror or error}")

    def _path(self, recipe: str, suffix: str = ".serials.json") -> Path:
        return self._folder / f"{recipe}{suffix}"

    def _read(self, recipe: str, *, quiet: bool = False) -> Serials:
        try:
            with self._path(recipe).open("rb") as file:
                return _parsed(file.read(_MAX_BYTES))
        except FileNotFoundError:
            problem = "is not there: an older artifact would be taken until the next one is served"
        except OSError as error:
            problem = f"cannot be read: {error.strerror or error}"
        except ValueError as error:
            problem = f"is damaged: {error}"
        if not quiet:
            self._tell(recipe, problem)
        return {}

    def _tell(self, recipe: str, problem: str) -> None:
        path = self._path(recipe)
        logs.emit(events.REPLAY_STATE_UNUSABLE, name=recipe, path=str(path), error=f"{path.name} {problem}")

    @contextmanager
    def _locked(self, recipe: str) -> Iterator[None]:
        """Hold the lock of this recipe's file. Raises OSError when another server holds it for too long."""
        self._folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self._path(recipe, ".serials.lock"), mode=0o600, fallback_to_soft=False)
        try:
            lock.acquire(timeout=_LOCK_TIMEOUT_S, poll_interval=_LOCK_PAUSE_S)
        except Timeout:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from None
        except NotImplementedError:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None
        try:
            yield
        finally:
            lock.release()

    def _write(self, recipe: str, serials: Serials) -> None:
        content = json.dumps({"format": _FORMAT, "serials": serials}, sort_keys=True)
        replace_file(self._path(recipe), content.encode())


def _raise(serials: Serials, others: Serials) -> None:
    for kid, serial in others.items():
        serials[kid] = max(serial, serials.get(kid, 0))


def _parsed(content: bytes) -> Serials:
    """Parse a state file. Raises ValueError for content that `SerialState` would not write."""
    try:
        document: Any = json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    serials = document.get("serials") if isinstance(document, dict) and document.get("format") == _FORMAT else None
    if not isinstance(serials, dict) or not all(type(n) is int and 0 <= n <= MAX_SERIAL for n in serials.values()):
        raise ValueError("it does not hold serials")
    return serials

"""Locks on this host. An output has one training run at a time, and its version log one change at a time.

Trainings hold the lock of the output while they run, unless they get `--no-lock`. `publish`, `promote` and `rollback`
of `Versions` hold the lock of the version log.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from svc.artifact.store import local_path, scheme_of
from svc.errors import ConfigError, LockContestedError
from svc.settings import Settings


def lock_path(uri: str, settings: Settings) -> Path:
    """Return the path of the lock for `uri`.

    The lock of a local path is beside it, with the suffix `.lock`. The lock of a remote URI has a name from the URI. It
    is in `SVC_LOCK_DIR`, else in the user's cache folder. Raises ConfigError for a user without a home folder.
    """
    # Beside the output rather than in a cache folder: trainings of several users then share one lock.
    if scheme_of(uri) in ("", "file"):
        path = local_path(uri)
        return path.with_name(path.name + ".lock")
    try:
        folder = Path(settings.lock_dir) if settings.lock_dir else user_cache_path("svc") / "locks"
    except RuntimeError:  # neither HOME nor an entry in the password file
        folder = Path("~")
    if folder.parts[:1] == ("~",):  # earlier versions of platformdirs leave `~` as it is
        raise ConfigError(
            "this user has no home folder for the locks of remote outputs: set SVC_LOCK_DIR to a folder that it can "
            "write, or pass --no-lock"
        )
    readable = re.sub(r"[^A-Za-z0-9_.-]", "_", urlsplit(uri).path.rpartition("/")[2])[:64]
    # The digest tells apart outputs of one name in several buckets or folders.
    return folder / f"{readable}-{hashlib.sha256(uri.encode()).hexdigest()[:16]}.lock"


@contextmanager
def run_lock(output_uri: str, *, timeout_s: float, settings: Settings) -> Iterator[Path]:
    """Hold the lock of `output_uri` inside the block. The system releases it when the process ends or is killed.

    Waits up to `timeout_s` seconds: 0 tries once, a negative number waits forever. Raises LockContestedError if the
    lock is still held then, and ConfigError if the lock file cannot be created or locked.
    """
    path = lock_path(output_uri, settings)
    # Mode 600, because Linux lets everybody who can open a file for reading lock it.
    lock = FileLock(path, mode=0o600, fallback_to_soft=False)  # a soft lock would outlive a killed run
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=timeout_s)
        except Timeout:
            with suppress(FileExistsError):  # FileLock also waits for a file that cannot be created, as in /proc
                path.touch(0o600, exist_ok=False)
            raise LockContestedError(f"another run or command holds the lock {path}") from None
    except (OSError, NotImplementedError) as error:
        reason = getattr(error, "strerror", None) or error
        elsewhere = "" if scheme_of(output_uri) in ("", "file") else ", set SVC_LOCK_DIR to one that is"
        raise ConfigError(
            f"the lock {path} cannot be taken: {reason}; make its folder writable{elsewhere}, or pass --no-lock"
        ) from error
    try:
        yield path
    finally:
        # Unlink before the release, so that a waiting run detects the missing file and locks a new file.
        with suppress(OSError):
            path.unlink()
        lock.release()

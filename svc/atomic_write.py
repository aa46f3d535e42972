"""Write a file under a temporary name in the same folder, then let it replace the old file in one step.

The writer holds a lock on its temporary file. A temporary file without a lock was left by a process that died, and
`remove_leftovers` removes it.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, TypeVar

from svc.local_paths import naming_size

T = TypeVar("T")
LONGEST_BASE = 100
"""Maximum number of characters of `base` in a temporary name, because file systems limit the length of names."""


def replace_file(path: Path, content: bytes, *, mode: int | None = None) -> None:
    """Replace the content of `path` by `content`.

    Readers see the old file or the new one, never a part. `mode` is as in `write_file`. Raises OSError.
    """

    def write(file: BinaryIO) -> None:
        with naming_size(len(content)):
            file.write(content)
            file.flush()

    write_file(path.parent, path.name, write, lambda _: path.name, mode=mode)


def write_file(
    folder: Path,
    base: str,
    write: Callable[[BinaryIO], T],
    name_of: Callable[[T], str],
    *,
    mode: int | None = None,
) -> T:
    """Let `write` fill a new file in `folder`, then rename it to `name_of(result)`. Return the result of `write`.

    `base` begins the temporary name. Without a `mode` the umask decides who may read the file. The file survives a
    power failure once this returns. Raises the exceptions of `write`, and OSError.

    After an exception the old file is intact, unless the folder cannot be synced. Then the new file has replaced the
    old one, or is removed if there was none.
    """
    temporary, descriptor = _create(folder, base, 0o666 if mode is None else mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            result = write(file)
            file.flush()
            if mode is not None:
                os.fchmod(descriptor, mode)  # the umask may have removed permissions when the file was created
            # Before the rename. After a power failure the new name could otherwise have an empty file.
            os.fsync(descriptor)
            target = folder / name_of(result)
            is_new = not target.exists()
            temporary.replace(target)
    # Also for KeyboardInterrupt, which would leave the temporary file until the next `remove_leftovers`.
    except BaseException:
        with suppress(OSError):  # the caller sees the first error
            temporary.unlink(missing_ok=True)
        raise
    _sync_or_withdraw(folder, target if is_new else None)
    return result


def remove_leftovers(folder: Path, base: str) -> None:
    """Remove the temporary files of this `base` whose writers died. Raises OSError if the folder cannot be listed."""
    pattern = re.compile(rf"\.{re.escape(base[:LONGEST_BASE])}\.[0-9a-f]{{16}}\.tmp")
    for path in folder.iterdir():
        if pattern.fullmatch(path.name):
            with suppress(OSError):
                _remove_if_unlocked(path)


def _create(folder: Path, base: str, mode: int) -> tuple[Path, int]:
    """Create an empty file and return it with its descriptor.

    This process holds the file's lock for as long as the descriptor is open. The file never has permissions beyond
    `mode`, even before it is complete.
    """
    while True:
        path = folder / f".{base[:LONGEST_BASE]}.{secrets.token_hex(8)}.tmp"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with suppress(OSError):  # on a file system without locks, remove_leftovers removes nothing either
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return path, descriptor
        os.close(descriptor)  # another writer removed it as a leftover before it was locked


def _remove_if_unlocked(path: Path) -> None:
    """Remove a leftover file. Raises BlockingIOError while its writer lives, or another OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    finally:
        os.close(descriptor)


def _sync_or_withdraw(folder: Path, new: Path | None) -> None:
    """Make a renamed file survive a power failure.

    If that fails, `new` is removed before this raises, because a power failure could still lose its name.
    """
    try:
        _sync(folder)
    except OSError:
        if new is not None:
            with suppress(OSError):
                new.unlink()
        raise


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

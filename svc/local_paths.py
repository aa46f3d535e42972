"""Absolute local paths without `..`, and the words for a write that failed."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path


def absolute(path: Path) -> Path:
    """Return the absolute path of `path`, which starts at the working folder if it is relative.

    Symlinks are not followed. `..` is resolved unless a symlink gives it another meaning.
    """
    return without_detours(path.absolute())


def without_detours(path: Path) -> Path:
    """Return `recipes/../data` as `data`, unless a symlink makes them different folders."""
    if ".." not in path.parts:
        return path
    plain = Path(os.path.normpath(path))
    return plain if os.path.realpath(plain) == os.path.realpath(path) else path


def failure(error: OSError, folder: Path | str) -> str:
    """Return the system's words for a failed write, with the bytes that are free in `folder` if its disk is full.

    If the write was within `naming_size`, the needed bytes stand beside them.
    """
    reason = error.strerror or str(error)
    if error.errno == errno.ENOSPC:
        with suppress(OSError):
            # Closing the file writes its buffer again, and this second error replaces the one with the note.
            needed: Sequence[str] = getattr(error, "__notes__", ()) or getattr(error.__context__, "__notes__", ())
            free = f"{shutil.disk_usage(folder).free:,} bytes are free in {folder}"
            reason += f" ({', '.join([free, *needed])})"
    return reason


@contextmanager
def naming_size(n_bytes: int) -> Iterator[None]:
    """Let `failure` tell that the writes of this block need `n_bytes`."""
    try:
        yield
    except OSError as error:
        error.add_note(f"{n_bytes:,} are needed")
        raise

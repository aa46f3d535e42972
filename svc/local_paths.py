"""Absolute local paths without `..`."""

from __future__ import annotations

import os
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

"""Temporary files for stores that accept only whole files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import BinaryIO, TypeVar

from svc.errors import ArtifactWriteError

T = TypeVar("T")


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
        raise ArtifactWriteError(f"no temporary file can be written: {error.strerror or error}; see TMPDIR") from error

"""Memory and temporary files for one artifact.

A buffer is private, page-aligned, and freed with its last view. Temporary files are for stores that accept only whole
files.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import BinaryIO, TypeVar

from svc.errors import ArtifactWriteError


def private_buffer(size: int) -> memoryview:
    """Return `size` writable zero bytes.

    Pages use memory only after they are written. The memory is anonymous, not a mapping of a file, so verified bytes
    cannot change.
    """
    if size == 0:
        return memoryview(bytearray())
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return memoryview(pages)


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

"""Files on their way to a store that takes only whole ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import BinaryIO, TypeVar

from svc.errors import ArtifactWriteError

T = TypeVar("T")


@contextmanager
def spooled(write: Callable[[BinaryIO], T]) -> Iterator[tuple[BinaryIO, T]]:
    """What `write` wrote, in a nameless file of `TMPDIR`, and its result. The file ends with the block or the process.

    Raises ArtifactWriteError when there is no room for it.
    """
    try:
        with TemporaryFile() as file:
            result = write(file)
            file.flush()
            yield file, result
    except OSError as error:
        raise ArtifactWriteError(f"no temporary file can be written: {error.strerror or error}; see TMPDIR") from error

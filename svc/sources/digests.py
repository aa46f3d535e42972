"""Records of the sha256 of the files that a training reads, for the signed provenance of artifacts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Record = Callable[[str, str], None]
_record: ContextVar[Record | None] = ContextVar("record", default=None)


@contextmanager
def record_digests(record: Record) -> Iterator[None]:
    """Call `record(where, sha256)` for each file that this thread opens and reads whole within the context.

    A local file is digested before it is parsed, so a change between the two goes unnoticed. Databases have no digest.
    """
    token = _record.set(record)
    try:
        yield
    finally:
        _record.reset(token)


def is_wanted() -> bool:
    return _record.get() is not None


def tell(where: str, sha256: str) -> None:
    record = _record.get()
    if record is not None:
        record(where, sha256)

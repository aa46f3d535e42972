"""Selection of the users or items to rank for: rows of the model, in an order that depends only on the request."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from svc.errors import DataSourceError
from svc.export.request import EVERYBODY, ExportRequest, Shard
from svc.model.ids import IdTable, digest
from svc.recipe.paths import parse_location
from svc.sources.base import SourceContext
from svc.sources.files import open_location

CHUNK = 256
"""Number of rows that one call scores, as many as a server scores at once."""
Rows = NDArray[np.int32]


@dataclass(slots=True)
class Selection:
    """Counts of the selected rows. `skipped` counts ids of a file that the model does not know.

    `users` is `all`, or the digest of the file.
    """

    total: int
    skipped: int = 0
    users: str = EVERYBODY


def chunks(table: IdTable, request: ExportRequest, context: SourceContext) -> tuple[Selection, Iterator[Rows]]:
    """Return counts, and chunks of at most CHUNK rows of `table`.

    The counts are complete after the last chunk. For a file `total` is an estimate. Raises DataSourceError for a file
    that cannot be read, also between chunks.
    """
    if request.leaders == EVERYBODY:
        rows = _shard_rows(table, request.shard)
        return Selection(len(rows)), (rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK))
    share = 1 if request.shard is None else request.shard.count
    selection = Selection(len(table) // share)
    return selection, _from_file(table, request, context, selection)


def _shard_rows(table: IdTable, shard: Shard | None) -> Rows:
    """Return the rows of a shard in training order."""
    if shard is None:
        return np.arange(len(table), dtype=np.int32)
    rows = table.rows[table.hashes % np.uint64(shard.count) == shard.index]
    return np.sort(rows)


def _from_file(table: IdTable, request: ExportRequest, context: SourceContext, selection: Selection) -> Iterator[Rows]:
    """Yield chunks of rows in the order of the file, each row once."""
    written = np.zeros(len(table), dtype=np.bool_)
    whole = hashlib.sha256()
    waiting: list[int] = []
    with open_location(parse_location(request.leaders), context) as file:
        for text in _lines(file.file, file.where, whole):
            if request.shard is not None and not request.shard.holds(digest(text.encode())):
                continue
            row = table.index(text)
            if row < 0:
                selection.skipped += 1
            elif not written[row]:
                written[row] = True
                waiting.append(row)
            if len(waiting) == CHUNK:
                yield np.array(waiting, dtype=np.int32)
                waiting = []
    if waiting:
        yield np.array(waiting, dtype=np.int32)
    selection.users = f"sha256:{whole.hexdigest()}"


def _lines(file: BinaryIO, where: str, whole: hashlib._Hash) -> Iterator[str]:
    """Yield the ids of the file without line ends and blank lines. Every byte is added to the digest `whole`."""
    for number, line in enumerate(file, start=1):
        whole.update(line)
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            raise DataSourceError(f"{where}: line {number} is not UTF-8") from None
        if text.strip():
            yield text

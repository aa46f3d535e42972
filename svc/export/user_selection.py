"""Selects the users to export.

They are rows of the model, in an order that depends on the request alone.
"""

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
"""Rows that one call scores, the number that a server scores at once."""
Rows = NDArray[np.int32]


@dataclass(slots=True)
class Chosen:
    """Counts of the rows that `chunks` finds.

    `skipped` counts ids of a file that the model does not know.
    """

    total: int
    skipped: int = 0
    users: str = EVERYBODY


def chunks(table: IdTable, request: ExportRequest, context: SourceContext) -> tuple[Chosen, Iterator[Rows]]:
    """Return counts, and chunks of at most CHUNK rows of `table`.

    The counts are complete once all chunks are taken. `total` is a first guess of the number of rows. Raises
    DataSourceError for a file that cannot be read, also while the chunks are taken.
    """
    if request.leaders == EVERYBODY:
        rows = _shard_rows(table, request.shard)
        return Chosen(len(rows)), (rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK))
    share = 1 if request.shard is None else request.shard.count
    chosen = Chosen(len(table) // share)
    return chosen, _from_file(table, request, context, chosen)


def _shard_rows(table: IdTable, shard: Shard | None) -> Rows:
    """Return the rows of a shard in training order."""
    if shard is None:
        return np.arange(len(table), dtype=np.int32)
    mine = table.rows[table.hashes % np.uint64(shard.count) == shard.index]
    return np.sort(mine)


def _from_file(table: IdTable, request: ExportRequest, context: SourceContext, chosen: Chosen) -> Iterator[Rows]:
    """Yield the rows in the order of the file, each row once."""
    written = np.zeros(len(table), dtype=np.bool_)
    whole = hashlib.sha256()
    waiting: list[int] = []
    with open_location(parse_location(request.leaders), context) as file:
        for text in _lines(file.file, file.where, whole):
            if request.shard is not None and not request.shard.holds(digest(text.encode())):
                continue
            row = table.index(text)
            if row < 0:
                chosen.skipped += 1
            elif not written[row]:
                written[row] = True
                waiting.append(row)
            if len(waiting) == CHUNK:
                yield np.array(waiting, dtype=np.int32)
                waiting = []
    if waiting:
        yield np.array(waiting, dtype=np.int32)
    chosen.users = f"sha256:{whole.hexdigest()}"


def _lines(file: BinaryIO, where: str, whole: hashlib._Hash) -> Iterator[str]:
    """Yield the ids of the file without line ends.

    Blank lines are skipped. The digest `whole` covers every byte.
    """
    for number, line in enumerate(file, start=1):
        whole.update(line)
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            raise DataSourceError(f"{where}: line {number} is not UTF-8") from None
        if text.strip():
            yield text

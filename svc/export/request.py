"""The request for one export, and the rows of the model that it selects.

The order of these rows depends only on the request and the model, not on the threads that rank them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from svc.asking.offer import Offer
from svc.asking.policy import Policy
from svc.errors import DataSourceError, UsageError
from svc.model.ids import IdTable, digest
from svc.model.model import Model
from svc.model.ranking.item_sets import ItemSet
from svc.model.ranking.new_items import NewItems
from svc.names import Order
from svc.recipe.paths import parse_location
from svc.settings import Settings
from svc.sources.base import SourceContext
from svc.sources.files import open_location

EVERYBODY: Final = "all"
MAX_SHARDS: Final = 100_000
_SHARD = re.compile(r"(\d{1,6})/(\d{1,6})")
CHUNK = 256
"""Number of rows that one call scores, as many as a server scores at once."""
Rows = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `index`, from 0, of `count` parts: the ids whose digest modulo `count` is `index`."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Return the shard of the text `I/N`. Raises UsageError."""
        match = _SHARD.fullmatch(text)
        index, count = (int(match[1]), int(match[2])) if match else (0, 0)
        if not index < count <= MAX_SHARDS:
            raise UsageError(
                f"--shard: {text!r} is not a shard: give I/N with I from 0 to N-1, N at most {MAX_SHARDS}, such as 0/16"
            )
        return cls(index, count)

    def holds(self, digest: int) -> bool:
        return digest % self.count == self.index


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """The recommendations to write, and their address.

    - `output` is the address of the whole export. A shard derives its own name from it.
    - `users` is `all`, or the address of a file with one id per line.
    - `related` ranks items for each item of the model instead of for users.
    - `to_users` ranks users for each item, by `order`. `items` is `all` or an address, like `users`.
    - `filter` is the filter tree of the request, for the manifest.
    - `allowed` are the items that the filter and the recipe's server permit. None means all items.
    - `new` are new items to recommend as well. `allowed` then covers them too.
    """

    output: str
    users: str = EVERYBODY
    limit: int = 100
    related: bool = False
    to_users: bool = False
    items: str = EVERYBODY
    order: Order = "score"
    shard: Shard | None = None
    filter: Any = None
    allowed: ItemSet | None = None
    new: NewItems | None = None

    def offer(self, model: Model) -> Offer:
        """Return the offer of a model with the items that may be recommended. It has no rules of the recipe."""
        return Offer(model=model, policy=Policy(users=True), available=self.allowed, new_items=self.new)

    @property
    def leaders(self) -> str:
        """Return the users or items to rank for: `all`, or the address of a file of ids."""
        return self.items if self.to_users else self.users

    def asked(self, leaders: str) -> dict[str, Any]:
        """Return the request for the manifest, the same in all parts of one export. `leaders` is `all` or a digest."""
        if self.to_users:
            return {"items": leaders, "limit": self.limit, "to_users": True, "order": self.order}
        request: dict[str, Any] = {"users": leaders, "limit": self.limit, "related": self.related}
        if self.filter is not None:
            request["filter"] = self.filter
        if self.allowed is not None or self.new is not None:
            request["candidates"] = self._digest()
        return request

    def _digest(self) -> str:
        """Return the digest of the items that may be recommended. It differs if a list changed between shards."""
        candidates, new = hashlib.sha256(), self.new
        if self.allowed is not None:
            flags = self.allowed.flags()
            if new is not None:  # in the order of the hashes, because a query may list new items in any order
                flags[new.n_known :] = flags[new.n_known :][new.ids.rows]
            candidates.update(flags.tobytes())
        if new is not None:  # not the vectors: their last bits depend on the processor
            candidates.update(new.ids.hashes.tobytes())
        return f"sha256:{candidates.hexdigest()}"


def part_name(name: str, shard: Shard | None) -> str:
    """Return the name of the file of a shard, such as `all.3-of-16.parquet` for `all.parquet`."""
    if shard is None:
        return name
    stem, dot, extension = name.rpartition(".")
    return f"{stem}.{shard.index}-of-{shard.count}{dot}{extension}"


def source_context(settings: Settings) -> SourceContext:
    """Return the context for reading lists of ids and parts. Relative paths start at the working folder."""
    return SourceContext(Path(), settings, None, frozenset(), "interactions", {}, None)


@dataclass(slots=True)
class Selection:
    """Counts of the selected rows. `total` is their number, which is estimated for a file of ids.

    `skipped` counts ids of the file that the model does not know. `users` is `all`, or the digest of the file once it
    has been read.
    """

    total: int
    skipped: int = 0
    users: str = EVERYBODY


def row_chunks(table: IdTable, request: ExportRequest, context: SourceContext) -> tuple[Selection, Iterator[Rows]]:
    """Return the selected rows of `table` as an iterator over chunks of at most CHUNK rows, and their counts.

    The counts are complete after the last chunk. If the ids come from a file, `total` is an estimate, and the iterator
    raises DataSourceError if the file cannot be read.
    """
    if request.leaders == EVERYBODY:
        rows = _shard_rows(table, request.shard)
        return Selection(len(rows)), (rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK))
    share = 1 if request.shard is None else request.shard.count
    selection = Selection(len(table) // share)
    return selection, _chunked(_from_file(table, request, context, selection))


def _chunked(rows: Iterator[int]) -> Iterator[Rows]:
    while len(chunk := np.fromiter(islice(rows, CHUNK), dtype=np.int32)):
        yield chunk


def _shard_rows(table: IdTable, shard: Shard | None) -> Rows:
    """Return the rows of a shard in training order."""
    if shard is None:
        return np.arange(len(table), dtype=np.int32)
    rows = table.rows[table.hashes % np.uint64(shard.count) == shard.index]
    return np.sort(rows)


def _from_file(table: IdTable, request: ExportRequest, context: SourceContext, selection: Selection) -> Iterator[int]:
    """Yield the rows in the order of the file, each row once. Complete `selection`. Raises DataSourceError."""
    # One byte for each row of the model, however long the file is.
    written = np.zeros(len(table), dtype=np.bool_)
    whole = hashlib.sha256()
    with open_location(parse_location(request.leaders), context) as file:
        for text in _lines(file.file, file.where, whole):
            if request.shard is not None and not request.shard.holds(digest(text.encode())):
                continue
            row = table.index(text)
            if row < 0:
                selection.skipped += 1
            elif not written[row]:
                written[row] = True
                yield row
    selection.users = f"sha256:{whole.hexdigest()}"  # of the whole file, also if shards read only a part of its ids


def _lines(file: BinaryIO, where: str, whole: hashlib._Hash) -> Iterator[str]:
    """Yield the ids of the file without line ends and blank lines. Every byte is added to the digest `whole`."""
    for number, line in enumerate(file, start=1):
        whole.update(line)
        try:
            # Spreadsheets begin their text files with a byte order mark.
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            raise DataSourceError(f"{where}: line {number} is not UTF-8") from None
        if text.strip():
            yield text

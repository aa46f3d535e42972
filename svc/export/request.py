"""The request for one export."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Final

from svc.errors import UsageError
from svc.model.ranking.item_sets import ItemSet
from svc.model.ranking.new_items import NewItems
from svc.model.ranking.query import Order

EVERYBODY: Final = "all"
MAX_SHARDS: Final = 100_000
_SHARD = re.compile(r"(\d{1,6})/(\d{1,6})")


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
                f"--shard: {text!r} is no shard: give I/N with I from 0 to N-1, N at most {MAX_SHARDS}, such as 0/16"
            )
        return cls(index, count)

    def holds(self, digest: int) -> bool:
        return digest % self.count == self.index


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """The recommendations to write, and their address.

    - `output` is the address of the whole export. A shard derives its own name from it.
    - `users` is `all`, or the address of a file with one id a line.
    - `related` ranks items for each item of the model instead of for users.
    - `to_users` ranks users for each item, by `order`. `items` is `all` or an address, like `users`.
    - `filter` is the filter tree of the request, for the manifest.
    - `allowed` are the items that the filter and the recipe's server permit. None means all items.
    - `new` are new items to recommend as well. `allowed` then has columns for them.
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

    def part(self, index: int, count: int) -> ExportRequest:
        return replace(self, shard=Shard(index, count))

    @property
    def leaders(self) -> str:
        """Return the users or items to rank for: `all`, or the address of a file of ids."""
        return self.items if self.to_users else self.users

    def asked(self, leaders: str) -> dict[str, Any]:
        """Return the request for the manifest, the same in all parts of one export. `leaders` is `all` or a digest."""
        if self.to_users:
            return {"items": leaders, "limit": self.limit, "to_users": True, "order": self.order}
        request = {"users": leaders, "limit": self.limit, "related": self.related}
        return request if self.filter is None else {**request, "filter": self.filter}


def part_name(name: str, shard: Shard | None) -> str:
    """Return the name of the file of a shard, such as `all.3-of-16.parquet` for `all.parquet`."""
    if shard is None:
        return name
    stem, dot, extension = name.rpartition(".")
    return f"{stem}.{shard.index}-of-{shard.count}{dot}{extension}"

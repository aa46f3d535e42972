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
    """Part `index`, from 0, of `count` parts.

    It holds the ids with a digest that leaves the remainder `index` when divided by `count`.
    """

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Return the shard that `I/N` means.

        Raises UsageError.
        """
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

    `users` is `all` or the address of a file with one id a line. With `related` each item of the model is a seed
    instead. With `to_users` users are written for each item, ranked by `order`. The items are all items, or the ids of
    `items`, an address as for users. `output` is the address of the whole export. A shard derives its own name from
    it. `filter` is the filter tree of the request, for the manifest. `allowed` are the items that the filter and the
    recipe's server leave. None means all items. Users are recommended `new` items too, and `allowed` then has columns
    for these.
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
        """Users or items to rank for: `all`, or the address of a file of ids."""
        return self.items if self.to_users else self.users

    def asked(self, leaders: str) -> dict[str, Any]:
        """Return the request as the manifest has it.

        It is the same in all parts of one export. `leaders` is `all` or a digest.
        """
        if self.to_users:
            return {"items": leaders, "limit": self.limit, "to_users": True, "order": self.order}
        request = {"users": leaders, "limit": self.limit, "related": self.related}
        return request if self.filter is None else {**request, "filter": self.filter}


def part_name(name: str, shard: Shard | None) -> str:
    """Return the name of the file that a shard writes.

    `all.parquet` becomes `all.3-of-16.parquet`.
    """
    if shard is None:
        return name
    stem, dot, extension = name.rpartition(".")
    return f"{stem}.{shard.index}-of-{shard.count}{dot}{extension}"

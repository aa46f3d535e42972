"""A cache of bounded size that keeps the most recently used values."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


# functools.lru_cache has no bound of bytes, and calls a function for each missing value.
class LruCache(Generic[Key, Value]):
    """A cache of at most `most` values, which together take at most `most_bytes`.

    It evicts the least recently used value first. It is not thread-safe.
    """

    def __init__(self, most: int, most_bytes: float = math.inf) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self.n_bytes = 0

    def get(self, key: Key) -> Value | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: Key, value: Value, size: int = 0) -> None:
        """Keep `value`, unless it takes more than `most_bytes`.

        `size` is the number of bytes that it takes, together with its key.
        """
        replaced = self._entries.pop(key, None)
        if replaced is not None:
            self.n_bytes -= replaced[1]
        if size > self._most_bytes:
            return
        self._entries[key] = value, size
        self.n_bytes += size
        while self._entries and (len(self._entries) > self._most or self.n_bytes > self._most_bytes):
            _, (_, gone) = self._entries.popitem(last=False)
            self.n_bytes -= gone

    def __len__(self) -> int:
        return len(self._entries)

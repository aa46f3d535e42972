"""Turns of API keys: whoever waits with one key delays no other key."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """Those that wait. Keys take turns, and those that wait with one key are in the order of arrival."""

    def __init__(self) -> None:
        self._keys: OrderedDict[Hashable, deque[T]] = OrderedDict()
        self.count = 0
        """Number of those that wait."""

    def __iter__(self) -> Iterator[T]:
        return (waiter for waiting in self._keys.values() for waiter in waiting)

    def __len__(self) -> int:
        return self.count

    def append(self, key: Hashable, waiter: T) -> None:
        """Add a waiter behind the others with this key."""
        self._keys.setdefault(key, deque()).append(waiter)
        self.count += 1

    def append_first(self, key: Hashable, waiter: T) -> None:
        """Add a waiter before all others, and give its key the next turn."""
        self._keys.setdefault(key, deque()).appendleft(waiter)
        self._keys.move_to_end(key, last=False)
        self.count += 1

    def pop(self) -> T:
        """Remove and return the first of the key whose turn is next. The key moves behind all other keys."""
        key, waiting = next(iter(self._keys.items()))
        waiter = waiting.popleft()
        self.count -= 1
        if waiting:
            self._keys.move_to_end(key)
        else:
            del self._keys[key]
        return waiter

    def remove(self, key: Hashable, waiter: T) -> None:
        """Remove a waiter if it is waiting."""
        waiting = self._keys.get(key)
        if waiting is not None and waiter in waiting:
            waiting.remove(waiter)
            self.count -= 1
            if not waiting:
                del self._keys[key]

    def clear(self) -> None:
        self._keys.clear()
        self.count = 0

    def most_ahead(self, key: Hashable) -> int:
        """Return the largest number that a new waiter with this key must let go first."""
        # Each other key has at most one turn before each waiter of this key.
        own = len(self._keys.get(key, ()))
        return min(self.count, own + (own + 1) * (len(self._keys) - (own > 0)))

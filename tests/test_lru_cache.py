"""A cache drops the least recently used entries when it exceeds its bounds of count and bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from svc.lru_cache import LruCache


def test_the_number_is_bounded() -> None:
    """The least recently used entry is dropped first."""
    cache: LruCache[str, int] = LruCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert (cache.get("a"), cache.get("b"), cache.get("c"), len(cache)) == (1, None, 3, 2)


def test_with_no_room_nothing_is_kept() -> None:
    for cache in (LruCache[str, int](0), LruCache[str, int](5, 0)):
        cache.put("a", 1, size=1)
        assert (cache.get("a"), len(cache), cache.n_bytes) == (None, 0, 0)


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 120), st.booleans()), max_size=60))
def test_the_bytes_are_bounded_and_counted_exactly(steps: list[tuple[str, int, bool]]) -> None:
    """Random reads and writes give the same entries and bytes as a simple model of the cache."""
    cache: LruCache[str, int] = LruCache(4, 100)
    model: dict[str, int] = {}
    for key, size, is_write in steps:
        if is_write:
            model.pop(key, None)
            if size <= 100:
                model[key] = size
            cache.put(key, size, size=size)
            while len(model) > 4 or sum(model.values()) > 100:
                del model[next(iter(model))]
        elif key in model:
            model[key] = model.pop(key)
        assert cache.get(key) == model.get(key)
        if key in model:
            model[key] = model.pop(key)
        assert (len(cache), cache.n_bytes) == (len(model), sum(model.values()))

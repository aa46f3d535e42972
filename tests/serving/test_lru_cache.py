from __future__ import annotations

from svc.serving.lru_cache import Recent


def test_memory_is_bounded() -> None:
    """The longest unused goes first."""
    recent: Recent[str, int] = Recent(2)
    recent.put("a", 1)
    recent.put("b", 2)
    assert recent.get("a") == 1
    recent.put("c", 3)
    assert (recent.get("a"), recent.get("b"), recent.get("c"), len(recent)) == (1, None, 3, 2)


def test_with_no_room_nothing_is_kept() -> None:
    recent: Recent[str, int] = Recent(0)
    recent.put("a", 1)
    assert (recent.get("a"), len(recent)) == (None, 0)

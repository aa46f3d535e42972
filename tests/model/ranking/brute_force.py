"""What the brute-force rankings of several tests share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def with_pins(chosen: Sequence[int], pinned: Mapping[int, int], wanted: int) -> list[int]:
    """The first `wanted` columns, with each pinned column at its position; one behind the whole ranking ends it."""
    page = list(chosen)
    is_whole = len(page) < wanted
    for column, position in sorted(pinned.items(), key=lambda pin: pin[1]):
        if position <= len(page) or is_whole:
            page.insert(position, column)
    return page[:wanted]

"""Brute-force rankings that several tests share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from hypothesis import strategies as st

from svc.model.ranking.query import Shown, Variation
from svc.model.ranking.rerank import Rules


def with_pins(chosen: Sequence[int], pinned: Mapping[int, int], wanted: int) -> list[int]:
    """Return the first `wanted` columns with each pin at its position. A pin beyond the ranking comes last."""
    page = list(chosen)
    is_whole = len(page) < wanted
    for column, position in sorted(pinned.items(), key=lambda pin: pin[1]):
        if position <= len(page) or is_whole:
            page.insert(position, column)
    return page[:wanted]


def variations(ids: Sequence[str]) -> st.SearchStrategy[Variation]:
    """Return a strategy for shown items, some unknown or repeated, and a seed. Any part may be absent or weightless."""
    shown = st.builds(Shown, st.sampled_from([*ids, "none"]), st.sampled_from([1, 1, 2, 100]))
    weights = st.sampled_from([0.0, 0.25, 0.25, 1.0])
    return st.builds(
        Variation,
        st.just(()) | st.lists(shown, max_size=30),
        weights,
        st.none() | st.sampled_from(["u1 monday", "ü"]),
        weights,
    )


def with_rotation(columns: Any, values: Any, rules: Rules, ids: Sequence[str]) -> list[int]:
    """Return the columns of a ranking with these values, its 100 best in the order after rotation."""
    rotation = rules.rotation
    if rotation is None or not len(columns):
        return [int(column) for column in columns]
    deviation = np.std(values[:100])
    counts = [1] * len(rotation.shown) if rotation.times is None else rotation.times.tolist()
    times = dict(zip(rotation.shown.tolist(), counts, strict=True))
    places: list[tuple[float, int, int]] = []
    for place, column in enumerate(columns[:100]):
        gain = -rotation.rotation * times.get(int(column), 0)
        if rotation.seed is not None:
            hashed = blake2b(f"{rotation.seed}\0{ids[column]}".encode(), digest_size=8).digest()
            share = (int.from_bytes(hashed, "big") // 4096 + 0.5) / 2.0**52
            gain += rotation.shuffle * -math.log(-math.log(share))
        places.append((-(values[place] + deviation * gain), place, int(column)))
    return [column for _, _, column in sorted(places)] + [int(column) for column in columns[100:]]

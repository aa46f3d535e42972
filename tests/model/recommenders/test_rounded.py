"""Rounded vectors never lose an item, whatever the data; without numkong the bytes are the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svc.model.recommenders import rounded
from svc.model.recommenders.blend_scan import NormedLayout, first_looks, scan_behind, scan_sum
from svc.model.recommenders.factor_scan import Wanted
from svc.model.recommenders.rounded import RoundedItems
from tests.model.recommenders.test_factor_index import built, same_bits

pytest.importorskip("numkong")
LIMIT = 7
SHAPES = ("normal", "equal", "gaps", "huge", "subnormal", "mixed", "zeros", "one_component", "whole")


def items_of(shape: str, rng: np.random.Generator, n_items: int, components: int) -> np.ndarray:
    """Adversarial item vectors of one kind, (n, K) float32."""
    own = rng.normal(size=(n_items, components)).astype(np.float32)
    if shape == "equal":
        return np.repeat(own[:1], n_items, axis=0)
    if shape == "gaps":
        return own[:1] * (1 + 1e-7 * rng.integers(0, 3, (n_items, 1))).astype(np.float32)
    if shape == "one_component":
        own[:, 1:] *= np.float32(1e-9)
    scales = {
        "huge": np.full(n_items, 1e37),
        "subnormal": np.full(n_items, 1e-42),
        "mixed": 10.0 ** rng.integers(-44, 37, n_items),
        "zeros": rng.integers(0, 2, n_items).astype(np.float64),
    }
    if shape == "whole":
        return np.round(own)
    return (own * scales.get(shape, np.ones(n_items))[:, np.newaxis]).astype(np.float32)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.sampled_from(SHAPES),
    components=st.sampled_from([1, 2, 7, 64, 680, 1_041, 4_096]),
    n_items=st.integers(1, 90),
    scales=st.tuples(st.sampled_from([1e-200, 1e-44, 1e-3, 1.0, 1e30, 1e200]), st.sampled_from([0.0, 1e-40, 1.0, 1e6])),
    seed=st.integers(0, 2**32 - 1),
)
def test_rankings_are_those_of_brute_force_in_float64(
    shape: str, components: int, n_items: int, scales: tuple[float, float], seed: int
) -> None:
    """Items, order and bits of the scores, by either first look, also where nothing can be told by it.

    `scales` are those of the vectors and of the offsets.
    """
    vector_scale, offset_scale = scales
    rng = np.random.default_rng(seed)
    layout = built(items_of(shape, rng, n_items, components)).layout
    index = NormedLayout(layout, np.zeros(n_items))
    vectors = rng.normal(size=(rng.integers(1, 4), components)) * vector_scale
    offsets = np.where(rng.random(n_items) < 0.3, rng.normal(size=n_items), 0.0) * offset_scale
    excluded = rng.integers(0, n_items, n_items // 5).astype(np.int32)
    looks = [first_looks(layout, vectors, n_items)]
    items = RoundedItems.of(layout.factors)
    if items is not None:
        looks.append(items.first_looks(vectors))
    for vector, *own_looks in zip(vectors, *looks, strict=True):
        exact = np.add.reduce(layout.factors * vector, axis=1)
        total = exact + offsets
        total[layout.positions[excluded]] = -np.inf
        order = np.lexsort((layout.columns, -total))
        order = order[total[order] > -np.inf][:LIMIT]
        for look in own_looks:
            assert look.error == np.inf or (np.abs(look.scores - exact) <= look.error).all()
            ranking = scan_behind(index, look, vector, offsets, Wanted(LIMIT, excluded))
            assert ranking.items.tolist() == layout.columns[order].tolist()
            assert ranking.scores.tobytes() == total[order].tobytes()


def test_without_numkong_or_with_wrong_products_there_is_no_first_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor for which the wheel is broken."""
    factors = np.ones((5, 3), dtype=np.float32)
    with monkeypatch.context() as without:
        without.setattr(rounded, "find_spec", lambda _: None)
        assert RoundedItems.of(factors) is None
    monkeypatch.setattr(RoundedItems, "_products", lambda *_: np.zeros((1, 3)))
    assert RoundedItems.of(factors) is None


def test_the_first_look_gives_the_bits_of_the_scan_without_it() -> None:
    """For many items, of which it leaves few."""
    rng = np.random.default_rng(4)
    directions = rng.normal(size=(9_000, 200))
    layout = built(directions / np.linalg.norm(directions, axis=1, keepdims=True)).layout
    index = NormedLayout(layout, np.full(len(directions), 1 + 1e-6))
    items, vectors = RoundedItems.of(layout.factors), rng.normal(size=(3, 200))
    assert items is not None
    offsets, wanted = np.abs(rng.normal(size=9_000)), Wanted(20, np.arange(40, dtype=np.int32))
    for vector, look in zip(vectors, items.first_looks(vectors), strict=True):
        expected = scan_sum(index, vector, offsets, wanted)
        assert np.count_nonzero(look.scores > np.sort(look.scores)[-20] - 2 * look.error) < len(directions) / 10
        assert same_bits(expected, scan_behind(index, look, vector, offsets, wanted))

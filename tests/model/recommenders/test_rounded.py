"""Products of rounded vectors stay within their error bounds. test_scan.py ranks by them."""

from __future__ import annotations

import numpy as np
import pytest

from svc.model.recommenders import rounded
from svc.model.recommenders.rounded import RoundedItems
from tests.model.recommenders.test_scan import EXTREME, KINDS, catalogue


@pytest.mark.parametrize("scale", [1e-200, 1e-12, 1.0, 1e12, 1e200])
@pytest.mark.parametrize("components", [1, 64, 1_041])
@pytest.mark.parametrize("kind", KINDS + EXTREME)
def test_no_product_errs_by_more_than_the_bound(kind: str, components: int, scale: float) -> None:
    """Products of one vector and of several stay within it in any block. Extreme vectors have an infinite bound."""
    rng = np.random.default_rng(components)
    factors = catalogue(kind, 5_000 if components == 64 else 90, components, rng)
    items, vectors = RoundedItems.of(factors), rng.normal(size=(3, components)) * scale
    if items is None:
        assert kind in {*EXTREME, "all zero", "tiny"}
        return
    exact = vectors @ factors.astype(np.float64).T
    for start, stop in ((0, 50), (40, len(factors)), (len(factors) - 7, len(factors))):
        for rows in ([0, 1, 2], [1]):
            looks, errors = items.vectors(vectors).look(rows, start, stop)
            for row, look, error in zip(rows, looks, errors, strict=True):
                assert error == np.inf or (np.abs(look - exact[row, start:stop]) <= error).all()


def test_vectors_are_not_rounded_without_exact_numkong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors are not rounded without numkong, or if its wheel computes wrong products on the processor."""
    factors = np.ones((5, 3), dtype=np.float32)
    with monkeypatch.context() as without:
        without.setattr(rounded, "find_spec", lambda _: None)
        assert RoundedItems.of(factors) is None
    monkeypatch.setattr(RoundedItems, "products", lambda *_: np.zeros((1, 3)))
    assert RoundedItems.of(factors) is None


def test_rounding_leaves_few_items_of_many() -> None:
    """At most a tenth of vectors of one length is within the error of the twentieth best."""
    rng = np.random.default_rng(4)
    directions = rng.normal(size=(9_000, 200))
    items = RoundedItems.of((directions / np.linalg.norm(directions, axis=1, keepdims=True)).astype(np.float32))
    assert items is not None
    looks, errors = items.vectors(rng.normal(size=(3, 200))).look([0, 1, 2], 0, 9_000)
    for look, error in zip(looks, errors, strict=True):
        assert np.count_nonzero(look > np.sort(look)[-20] - 2 * error) < len(directions) / 10

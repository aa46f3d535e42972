"""Products of a vector with the item vectors, compared with numpy for every way to compute them."""

from __future__ import annotations

import numpy as np
import pytest

from svc.model.recommenders import products
from svc.model.recommenders.products import RoundedItems
from tests.model.recommenders.test_scan import EXTREME, KINDS, catalogue


@pytest.mark.parametrize("small_products_pay", [True, False])
@pytest.mark.parametrize("n_vectors", [1, 2, 7, 8, 64, 65])
@pytest.mark.parametrize(("n_items", "components"), [(1, 1), (5, 3), (700, 200), (2_500, 33)])
def test_products_are_those_of_float64(
    n_vectors: int, n_items: int, components: int, *, small_products_pay: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products agree whether or not blocks divide the number of items."""
    monkeypatch.setattr(products, "small_products_pay", lambda: small_products_pay)
    rng = np.random.default_rng(n_vectors)
    vectors, factors = (rng.normal(size=(rows, components)).astype(np.float32) for rows in (n_vectors, n_items))
    found = products.inner_products(vectors, factors)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, vectors.astype(np.float64) @ factors.T, rtol=1e-4, atol=1e-4)


def test_an_invalid_flag_of_the_library_gives_no_warning() -> None:
    """Some processors raise the flag although products are correct. An infinite factor raises it on every processor."""
    found = products.product_of_one(
        np.zeros(2, dtype=np.float32), np.array([[np.inf, 0.0], [1.0, 2.0]], dtype=np.float32)
    )
    np.testing.assert_array_equal(found, [np.nan, 0.0])


def test_the_way_to_compute_products_is_measured_once() -> None:
    """A second measurement could choose another way for the next request."""
    assert products.small_products_pay() is products.small_products_pay()
    assert products.small_products_pay.cache_info().currsize == 1


@pytest.mark.parametrize("scale", [1e-200, 1e-12, 1.0, 1e12, 1e200])
@pytest.mark.parametrize("components", [1, 64, 1_041])
@pytest.mark.parametrize("kind", KINDS + EXTREME)
def test_no_product_errs_by_more_than_the_bound(kind: str, components: int, scale: float) -> None:
    """Products of one vector and of several stay within the bound in any block.

    Extreme vectors have an infinite bound.
    """
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
        without.setattr(products, "find_spec", lambda _: None)
        assert RoundedItems.of(factors) is None
    monkeypatch.setattr(RoundedItems, "products", lambda *_: np.zeros((1, 3)))
    assert RoundedItems.of(factors) is None


def test_rounding_leaves_few_items_of_many() -> None:
    """Of 9,000 vectors of equal length, fewer than a tenth may score as high as the twentieth best, given the error."""
    rng = np.random.default_rng(4)
    directions = rng.normal(size=(9_000, 200))
    items = RoundedItems.of((directions / np.linalg.norm(directions, axis=1, keepdims=True)).astype(np.float32))
    assert items is not None
    looks, errors = items.vectors(rng.normal(size=(3, 200))).look([0, 1, 2], 0, 9_000)
    for look, error in zip(looks, errors, strict=True):
        assert np.count_nonzero(look > np.sort(look)[-20] - 2 * error) < len(directions) / 10

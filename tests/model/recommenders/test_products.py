"""Products of vectors with the items agree with numpy for every way to compute them."""

from __future__ import annotations

import numpy as np
import pytest

from svc.model.recommenders import products


@pytest.mark.parametrize("small_products_pay", [True, False])
@pytest.mark.parametrize("n_vectors", [1, 2, 7, 8, 64, 65])
@pytest.mark.parametrize(("n_items", "components"), [(1, 1), (5, 3), (700, 200), (2_500, 33)])
def test_products_are_those_of_float64(
    n_vectors: int, n_items: int, components: int, *, small_products_pay: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products agree for numbers of items that blocks divide, and for others."""
    monkeypatch.setattr(products, "small_products_pay", lambda: small_products_pay)
    rng = np.random.default_rng(n_vectors)
    vectors, factors = (rng.normal(size=(rows, components)).astype(np.float32) for rows in (n_vectors, n_items))
    found = products.inner_products(vectors, factors)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, vectors.astype(np.float64) @ factors.T, rtol=1e-4, atol=1e-4)


def test_the_way_is_chosen_once() -> None:
    """The measurement runs once: a second one could choose another way for the next request."""
    assert products.small_products_pay() is products.small_products_pay()
    assert products.small_products_pay.cache_info().currsize == 1

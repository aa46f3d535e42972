"""How an index is searched: the bounds that let items be left out."""

from __future__ import annotations

import numpy as np
import pytest

from svc.model.ranking.item_sets import ItemSet
from svc.model.recommenders.factor_scan import error_bound, row_sums
from tests.model.recommenders.test_factor_index import NONE, built, exact, same_bits


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e6])
@pytest.mark.parametrize("components", [1, 8, 257])
def test_no_float32_product_errs_by_more_than_the_bound(components: int, scale: float) -> None:
    """The bound holds also for numbers so small that float32 loses them."""
    rng = np.random.default_rng(components)
    items = (rng.normal(size=(500, components)) * scale).astype(np.float32)
    for vector in rng.normal(size=(20, components)):
        approximate = (items @ vector.astype(np.float32)).astype(np.float64)
        true = row_sums(items.astype(np.float64) * vector)
        reach = np.linalg.norm(items.astype(np.float64), axis=1).max() * np.linalg.norm(vector)
        assert np.abs(approximate - true).max() <= error_bound(components, float(reach))


@pytest.mark.parametrize("allowed", [1, 40, 900, 6000])
def test_an_allowed_part_is_ranked_as_by_a_full_sort(allowed: int) -> None:
    """Few items are gathered one by one, many are masked: the same bits as in the ranking of everything."""
    rng = np.random.default_rng(allowed)
    factors = rng.normal(size=(9000, 12)).astype(np.float32)
    index, vector = built(factors), rng.normal(size=(1, 12))
    columns = rng.choice(9000, allowed, replace=False).astype(np.int32)
    some = ItemSet.of_columns(columns, 9000)
    (ranking,) = index.search(vector, [25], [NONE], [some])
    outside = np.setdiff1d(np.arange(9000), columns)
    assert ranking.items.tolist() == exact(factors, vector[0], 25, outside)
    (excluding,) = index.search(vector, [25], [outside.astype(np.int32)])
    assert same_bits(ranking, excluding)


@pytest.mark.parametrize("cosine", [False, True])
def test_an_allowed_part_without_the_best_is_ranked_as_by_a_full_sort(cosine: bool) -> None:
    """None of the items that a scan looks at first may come back, with exclusions beside."""
    rng = np.random.default_rng(8)
    factors = rng.normal(size=(20_000, 12)).astype(np.float32)
    index, vector = built(factors, cosine=cosine), rng.normal(size=(1, 12))
    (everything,) = index.search(vector, [20_000], [NONE], cosine=cosine)
    allowed, excluded = everything.items[7000:], everything.items[7000:7030]
    some = ItemSet.of_columns(allowed, 20_000)
    (ranking,) = index.search(vector, [25], [excluded], [some], cosine=cosine)
    assert ranking.items.tolist() == allowed[30:55].tolist()
    assert ranking.scores.tobytes() == everything.scores[7030:7055].tobytes()

"""The best by the sum of a product and an offset: what is left out could not have been among them."""

from __future__ import annotations

import numpy as np
import pytest

from svc.model.item_sets import ItemSet
from svc.model.recommenders.blend_scan import NormedLayout, head_of, head_scores, scan_behind, scan_sum
from svc.model.recommenders.factor_scan import Wanted
from tests.model.recommenders.test_factor_index import built, same_bits

N, K = 20_000, 6


@pytest.fixture(scope="module")
def index() -> NormedLayout:
    rng = np.random.default_rng(8)
    layout = built(rng.normal(size=(N, K)) * rng.pareto(1.5, N)[:, np.newaxis]).layout
    return NormedLayout(layout, np.linalg.norm(layout.factors.astype(np.float64), axis=1) * (1 + 1e-9))


@pytest.mark.parametrize("offsets", ["none", "few", "many", "falling"])
@pytest.mark.parametrize("share", [1.0, 0.4, 0.01])
def test_one_and_several_vectors_give_the_answer_of_a_full_sort(
    index: NormedLayout, offsets: str, share: float
) -> None:
    """Whether a bound leaves few items or none at all out; excluded and not allowed ones never come back."""
    rng = np.random.default_rng([9, int(share * 100)])
    layout = index.layout
    own = {
        "none": np.zeros(N),
        "few": np.where(rng.random(N) < 0.001, 50.0, 0.0),
        "many": rng.normal(size=N) * 9,
        "falling": np.linspace(30, -30, N),
    }[offsets]
    allowed = None if share == 1.0 else ItemSet.of_flags(rng.random(N) < share)
    excluded = rng.integers(0, N, 50).astype(np.int32)
    vectors = rng.normal(size=(9, K))
    head = head_scores(layout, vectors, head_of(N))
    for vector, first in zip(vectors, head, strict=True):
        wanted = Wanted(15, excluded, allowed)
        scores = np.add.reduce(layout.factors.astype(np.float64) * vector, axis=1) + own
        scores[layout.positions[excluded]] = -np.inf
        if allowed is not None:
            scores[~allowed.flags()[layout.columns]] = -np.inf
        order = np.lexsort((layout.columns, -scores))[:15]
        alone = scan_sum(index, vector, own, wanted)
        assert alone.items.tolist() == layout.columns[order].tolist()
        assert alone.scores.tolist() == scores[order].tolist()
        assert same_bits(alone, scan_behind(index, first.copy(), vector, own, wanted))

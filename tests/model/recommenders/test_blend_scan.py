"""The best by the sum of a product and an offset: what is left out could not have been among them."""

from __future__ import annotations

import numpy as np
import pytest

from svc.model.ranking.item_sets import ItemSet
from svc.model.recommenders.blend_scan import (
    NormedLayout,
    Plan,
    choose_plan,
    default_plan,
    first_looks,
    scan_behind,
    scan_sum,
)
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
    head, whole = (first_looks(layout, vectors, size) for size in (default_plan(N).head, N))
    for vector, first, all_first in zip(vectors, head, whole, strict=True):
        wanted = Wanted(15, excluded, allowed)
        scores = np.add.reduce(layout.factors.astype(np.float64) * vector, axis=1) + own
        scores[layout.positions[excluded]] = -np.inf
        if allowed is not None:
            scores[~allowed.flags()[layout.columns]] = -np.inf
        order = np.lexsort((layout.columns, -scores))[:15]
        alone = scan_sum(index, vector, own, wanted)
        assert alone.items.tolist() == layout.columns[order].tolist()
        assert alone.scores.tolist() == scores[order].tolist()
        for look in (first, all_first):
            assert same_bits(alone, scan_behind(index, look, vector, own, wanted))


def test_the_plan_picks_items_out_only_where_norms_differ(index: NormedLayout) -> None:
    """The vectors of the first index have long tails; those of the second are all of one length."""
    rng = np.random.default_rng(11)
    directions = rng.normal(size=(N, 60))
    layout = built(directions / np.linalg.norm(directions, axis=1, keepdims=True)).layout
    even = NormedLayout(layout, np.full(N, 1 + 1e-6))
    wanted = Wanted(10, np.zeros(0, dtype=np.int32))
    for normed, components, expected in ((index, K, default_plan(N)), (even, 60, Plan(picks=False, head=N))):
        probes = [(rng.normal(size=components), np.zeros(N), wanted) for _ in range(4)]
        assert choose_plan(normed, probes) == expected
        assert choose_plan(normed, []) == default_plan(N)

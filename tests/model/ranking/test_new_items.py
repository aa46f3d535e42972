"""New items of a list, and their vectors from their features."""

from __future__ import annotations

import numpy as np
import pytest

from svc.errors import FeaturesNotSupported, FeatureValueUnusable
from svc.model.ranking.item_sets import ItemSet
from tests import planned
from tests.families import N_ITEMS, family
from tests.model.test_feature_embedder import N_NEW, embedder_scorer, model_of, new_items


def test_candidates_are_allowed_included_and_not_excluded() -> None:
    """Candidates are rows in ascending order. Ids that are no new items are ignored."""
    items = new_items(None)
    assert items.candidates([], None, None).tolist() == list(range(N_NEW))
    assert items.candidates(["n1", "i1", "?"], ["n1", "n2", "i3", "?"], None).tolist() == [2]
    allowed = ItemSet.of_columns(np.array([0, N_ITEMS + 4, N_ITEMS + 7]), N_ITEMS + N_NEW)
    assert items.candidates(["n7"], None, allowed).tolist() == [4]


def test_new_items_have_the_vectors_of_unseen_seeds() -> None:
    """Known ids are left out. The error for an unusable value names its row, item and column."""
    model = model_of("neighbours")
    rows = [{"tag": "a", "age": 20.0}, {"tag": "b"}, {"tag": None, "age": 60}]
    placed = model.new_items(["x", "i3", "z"], rows, 0.2)
    assert placed.ids.all() == ["x", "z"]
    seed = planned.related(model, seed_items=(), item_features={"z": rows[2]}, user_features=None, limit=1)
    as_seed = embedder_scorer(model).least_squares.items_from_features(seed.query.seed_features)[0]
    np.testing.assert_array_equal(placed.vectors[1], as_seed)
    with pytest.raises(FeatureValueUnusable, match="data row 2, item 'y': feature 'age': a text is not a number"):
        model.new_items(["x", "y"], [{}, {"age": "old"}], None)
    with pytest.raises(FeaturesNotSupported):
        family("SVD").new_items(["x"], [{}], None)

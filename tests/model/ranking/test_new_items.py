"""New items of a list: which they are, and the vectors that their features make."""

from __future__ import annotations

import numpy as np
import pytest

from svc.errors import FeaturesNotSupported, FeatureValueUnusable
from svc.model.ranking.item_sets import ItemSet
from tests.families import N_ITEMS, family
from tests.model.test_feature_embedder import N_NEW, learned, model_of, new_items


def test_candidates_are_those_that_nothing_leaves_out() -> None:
    """By row, rising; ids that are no new items are nothing."""
    items = new_items(None)
    assert items.candidates([], None, None).tolist() == list(range(N_NEW))
    assert items.candidates(["n1", "i1", "?"], ["n1", "n2", "i3", "?"], None).tolist() == [2]
    allowed = ItemSet.of_columns(np.array([0, N_ITEMS + 4, N_ITEMS + 7]), N_ITEMS + N_NEW)
    assert items.candidates(["n7"], None, allowed).tolist() == [4]


def test_features_become_vectors_as_those_of_an_unseen_seed_do() -> None:
    """Ids that the model knows are left out; a value that cannot be used names its row, item and column."""
    model = model_of("neighbours")
    rows = [{"tag": "a", "age": 20.0}, {"tag": "b"}, {"tag": None, "age": 60}]
    placed = model.new_items(["x", "i3", "z"], rows, 0.2)
    assert placed.ids.all() == ["x", "z"]
    seed = model.prepare_related(seed_items=(), item_features={"z": rows[2]}, user_features=None, limit=1)
    as_seed = learned(model).least_squares.items_from_features(seed.query.seed_features)[0]
    np.testing.assert_array_equal(placed.vectors[1], as_seed)
    with pytest.raises(FeatureValueUnusable, match="data row 2, item 'y': feature 'age': a text is not a number"):
        model.new_items(["x", "y"], [{}, {"age": "old"}], None)
    with pytest.raises(FeaturesNotSupported):
        family("SVD").new_items(["x"], [{}], None)

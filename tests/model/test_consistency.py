"""A model with parts that do not fit each other or its header never serves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from svc.errors import FeatureStateMismatch, PayloadInvalid
from svc.model.consistency import check_sizes
from svc.model.history import History
from svc.model.ids import IdTable
from svc.model.recommenders.popularity import PopularityScorer
from tests.model.test_model import made

HEADER = {"version": 1, "active": True, "user": {"dimension": 4, "columns": ["tag", "age"]}}
HEADER["item"] = HEADER["user"]


def test_a_header_that_agrees_with_the_payload_passes() -> None:
    """Active features, inactive ones and no features pass."""
    made("ials", features=True).check_features({"features": HEADER})
    made("svd").check_features({})
    made("svd").check_features({"features": {**HEADER, "active": False}})


@pytest.mark.parametrize(
    "features",
    [
        None,
        {**HEADER, "active": False},
        {**HEADER, "user": {"dimension": 5, "columns": ["tag", "age"]}},
        {**HEADER, "item": {"dimension": 4, "columns": ["age", "tag"]}},
        {"version": 1, "active": True, "user": HEADER["user"]},
    ],
)
def test_a_header_that_disagrees_is_refused(features: dict[str, Any] | None) -> None:
    """Dimension, columns and presence of each side must match."""
    with pytest.raises(FeatureStateMismatch, match="feature state check failed: "):
        made("ials", features=True).check_features({"features": features})


def test_parts_of_different_sizes_are_refused() -> None:
    """A payload with ids and arrays of different sizes is refused."""
    model = made("popularity")
    model.item_ids = IdTable.from_ids(["just one"])
    with pytest.raises(PayloadInvalid, match="3000 scored items"):
        model.ready()


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"hidden": History(np.arange(3), np.zeros(2, np.int32))}, "1 users do not match 2 rows of hidden items"),
        ({"hidden_new": History(np.arange(1), np.zeros(0, np.int32))}, "1 users do not match 0 rows of hidden items"),
        ({"popularity": np.ones(5)}, "3 items do not match the popularity of 5"),
        ({"user_moments": np.ones((2, 4))}, "1 users do not match 8 means and deviations"),
        ({"cold": PopularityScorer(np.ones(4))}, "3 items do not match 4 of the second part"),
    ],
)
def test_optional_parts_have_the_sizes_of_the_model(parts: dict[str, Any], message: str) -> None:
    """Hidden items need a row for each user. Popularity and the cold-start part need an entry for each item."""
    history, scorer = History(np.array([0, 1]), np.array([2], np.int32)), PopularityScorer(np.ones(3))
    names = ("cold", "hidden", "hidden_new", "popularity", "ranker", "user_moments")
    absent: dict[str, Any] = dict.fromkeys(names)
    check_sizes(1, 3, history, scorer, **absent)
    with pytest.raises(PayloadInvalid, match=message):
        check_sizes(1, 3, history, scorer, **absent | parts)

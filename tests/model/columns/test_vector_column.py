"""Vector columns: lists and texts of numbers, which are scaled or refused by the name of their column."""

from __future__ import annotations

import numpy as np
import pytest

from svc.errors import FeatureVectorUnusable
from svc.model.columns.vector_column import VectorColumn

COLUMN = VectorColumn("embedding", dimensions=3, delimiter="|", length=2.0)


@pytest.mark.parametrize("value", ["1|-2|0.5", " 1 | -2 | 5e-1 ", [1, -2.0, 0.5], (1, -2, 0.5), np.array([1, -2, 0.5])])
def test_lists_and_texts_are_the_same_vector(value: object) -> None:
    """Numbers in either form are divided by the usual length of training vectors."""
    (places, values), ignored = COLUMN.read(value)
    assert (places.tolist(), values.tolist(), ignored) == ([0, 1, 2], [0.5, -1.0, 0.25], [])


@pytest.mark.parametrize("value", [None, float("nan"), "", "  "])
def test_a_missing_vector_gives_no_signal(value: object) -> None:
    """A missing vector is encoded like missing values of other kinds."""
    assert len(COLUMN.read(value)[0][0]) == 0


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([1, 2], "has 2 numbers"),
        ("1|2|3|4", "has 4 numbers"),
        ([[1, 2, 3]], "has 1 numbers|other than numbers"),
        (np.ones((3, 1)), "has 3 numbers"),
        ([1, 2, None], "other than numbers"),
        ([1, 2, "3"], "other than numbers"),
        ([1, 2, True], "other than numbers"),
        ("1|2|three", "other than numbers"),
        ("1|2|nan", "number 3 is not finite"),
        ([1, 10**400, 3], "other than numbers"),
        (np.array([1, np.inf, 3]), "number 2 is not finite"),
        (7, "a number is not a vector"),
        ({"x": 1}, "a map is not a vector"),
    ],
)
def test_values_that_are_no_vector_are_refused_by_column(value: object, reason: str) -> None:
    """The error names the column and the expected form."""
    with pytest.raises(FeatureVectorUnusable, match=reason) as caught:
        COLUMN.read(value)
    assert "feature 'embedding'" in caught.value.message
    assert "give 3 finite numbers" in caught.value.message


def test_a_column_without_any_vector_adds_no_dimension() -> None:
    """A column without vectors still refuses values that are no vector."""
    empty = VectorColumn("embedding", dimensions=3, delimiter="|", length=0.0)
    assert empty.width == len(empty.read([1, 2, 3])[0][0]) == 0
    with pytest.raises(FeatureVectorUnusable):
        empty.read([1])

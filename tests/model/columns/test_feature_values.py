"""Values that all feature columns share."""

from __future__ import annotations

import numpy as np
import pytest

from svc.model.columns.feature_values import NOTHING, Encoded, kind_of, token_text


def test_tokens_are_the_text_of_scalars() -> None:
    """A whole number of any type gives its digits. Blanks at the ends of a text do not count."""
    assert token_text(7) == token_text(7.0) == token_text(np.int32(7)) == token_text(" 7 ") == "7"
    assert token_text(True) == token_text(np.bool_(True)) == "true"
    assert token_text(False) == token_text(np.bool_(False)) == "false"
    assert token_text(0.5) == "0.5"
    assert token_text(float("nan")) is None
    assert token_text(None) is None
    assert token_text("  ") is None


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("7", "a text"),
        (np.bool_(True), "a boolean"),
        (False, "a boolean"),
        (7, "a number"),
        (np.float32(0.5), "a number"),
        ([7], "a list"),
        ((7,), "a list"),
        (np.ones(1), "a list"),
        ({"a": 7}, "a map"),
        (None, "a value of another kind"),
    ],
)
def test_values_are_named_by_their_kind(value: object, kind: str) -> None:
    """A boolean is no number. Anything but a scalar is no token."""
    assert kind_of(value) == kind
    if "list" in kind or "map" in kind:
        with pytest.raises(TypeError, match=f"{kind} does not belong here"):
            token_text(value)


def test_an_encoded_vector_has_its_non_zero_places_in_order() -> None:
    """Missing values and zeros have no place."""
    parts = [NOTHING, (np.array([4, 1]), np.array([0.5, 2.0])), NOTHING, (np.array([0, 3]), np.array([0.0, -1.0]))]
    found = Encoded.at([places for places, _ in parts], [values for _, values in parts], 6)
    assert (found.places.tolist(), found.values.tolist(), found.dim) == ([1, 3, 4], [2.0, -1.0, 0.5], 6)
    vector = found.dense()
    assert vector.tolist() == [0.0, 2.0, 0.0, -1.0, 0.5, 0.0]
    again = Encoded.of(vector)
    assert (again.places.tolist(), again.values.tolist(), again.dim) == ([1, 3, 4], [2.0, -1.0, 0.5], 6)

"""Types of values in requests, and their bounds."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from svc.asking import fields
from svc.asking.fields import FeatureValue, HistoryItem, ItemFeatures, ShownItem, digits, filter_at, whole
from svc.errors import ValidationFailed
from svc.model.ranking.query import Interaction, Shown

FEATURE: TypeAdapter[Any] = TypeAdapter(FeatureValue)
HISTORY: TypeAdapter[Any] = TypeAdapter(HistoryItem)
DESCRIBED: TypeAdapter[Any] = TypeAdapter(ItemFeatures)


@pytest.mark.parametrize("value", [None, True, 7, 2.5, "x" * fields.MAX_TEXT_CHARACTERS, ["a", 1, None], []])
def test_a_feature_is_a_scalar_or_a_list_of_scalars(value: object) -> None:
    """Validation accepts each such value and returns it unchanged."""
    assert FEATURE.validate_python(value) == value


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        "x" * (fields.MAX_TEXT_CHARACTERS + 1),
        [[1]],
        {"a": 1},
        ["0"] * (fields.MAX_LABELS + 1),
    ],
)
def test_nested_infinite_and_oversized_features_are_refused(value: object) -> None:
    """The error lists the types that a feature may have."""
    with pytest.raises(ValidationError, match="finite number, a boolean, null, a string"):
        FEATURE.validate_python(value)


def test_an_item_has_at_most_64_features() -> None:
    """One feature more is refused, for one item and for each of several."""
    most = {f"f{number}": 1 for number in range(64)}
    assert DESCRIBED.validate_python(most) == most
    for features in ({**most, "more": 1}, {"i1": {**most, "more": 1}}):
        with pytest.raises(ValidationError, match="at most 64 items"):
            DESCRIBED.validate_python(features)


def test_a_vector_may_be_longer_than_a_list_of_labels() -> None:
    """A vector may have up to 4,096 numbers."""
    assert FEATURE.validate_python([0.5] * fields.MAX_DIMENSIONS)
    with pytest.raises(ValidationError, match="at most 4096 numbers"):
        FEATURE.validate_python([0.5] * (fields.MAX_DIMENSIONS + 1))


def test_an_interaction_is_an_id_or_an_object() -> None:
    """The default weight is 1. A weight is never zero, negative or infinite."""
    for text in ("b3", "é", "b" * 256, "é" * 256):
        assert HISTORY.validate_python(text) == Interaction(text, 1.0)
    assert HISTORY.validate_python({"item_id": "b3", "weight": 2.5}) == Interaction("b3", 2.5)
    odd = ("", "b" * 257, "é" * 257, "\ud800")
    for wrong in (*odd, 3, {"item": "b3"}, {"item_id": "b3", "weight": 0.0}, {"item_id": "b3", "since": 1}, ["b3"]):
        with pytest.raises(ValidationError):
            HISTORY.validate_python(wrong)


def test_a_shown_item_is_an_id_or_an_object() -> None:
    """`times` is a whole number from 1 to 100. Its default is 1."""
    shown: TypeAdapter[Any] = TypeAdapter(ShownItem)
    assert shown.validate_python("b3") == Shown("b3", 1) == shown.validate_python({"item_id": "b3"})
    assert shown.validate_python({"item_id": "b3", "times": 100.0}) == Shown("b3", 100)
    for wrong in (3, "", {"item_id": "b3", "weight": 1}, *({"item_id": "b3", "times": n} for n in (0, 101, 1.5, "1"))):
        with pytest.raises(ValidationError):
            shown.validate_python(wrong)
    with pytest.raises(ValidationError, match='"times"'):
        shown.validate_python(["b3"])


def test_features_describe_one_item_or_several() -> None:
    """An object in which every value is an object describes several items by id. Mixed values are refused."""
    assert DESCRIBED.validate_python({"year": 1999}) == {"year": 1999}
    several = {"new-1": {"year": 1999}, "new-2": {}}
    assert DESCRIBED.validate_python(several) == several
    with pytest.raises(ValidationError):
        DESCRIBED.validate_python({"new-1": {"year": 1999}, "year": 1999})


def test_whole_numbers_are_converted_and_other_values_stay_unchanged() -> None:
    """10.0 in JSON becomes 10, and up to nine digits in a query string become a number.

    Other values are left for the type check to refuse.
    """
    assert (whole(10.0), whole(10.5), whole("10")) == (10, 10.5, "10")
    assert (digits("0010"), digits("-1"), digits("9" * 9)) == (10, -1, 999_999_999)
    assert (digits("10.0"), digits("+1"), digits("1" * 10)) == ("10.0", "+1", "1" * 10)


def test_an_invalid_filter_is_named_by_its_path_in_the_body() -> None:
    """The error has the path of the filter at any depth of the body."""
    with pytest.raises(ValidationFailed) as caught:
        filter_at({"year": "numerical"}, ("boosts", 2, "filter"), "body", {"all": [{"yaer": {"gte": 1}}]})
    (error,) = caught.value.errors
    assert error["loc"][:4] == ["body", "boosts", 2, "filter"]
    assert caught.value.message.startswith("boosts.2.filter.")

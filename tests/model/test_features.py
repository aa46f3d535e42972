"""Encoders of features: equal values give equal vectors, and unusable values are refused by column."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from svc.errors import FeatureValueUnusable
from svc.model.features import NumberColumn, SideEncoder, TokenColumn
from svc.model.ids import IdTable


def encoder() -> SideEncoder:
    return SideEncoder(
        (
            TokenColumn("country", "categorical", IdTable.from_ids(["fr", "日本", "7"])),
            TokenColumn("genres", "multi_label", IdTable.from_ids(["Action", "Drama"]), delimiter="|"),
            NumberColumn("year", mean=2000.0, deviation=10.0, low=1980.0, high=2020.0),
            NumberColumn("constant", mean=5.0, deviation=1e-9, low=5.0, high=5.0),
        )
    )


def test_each_token_and_number_has_a_dimension_and_the_last_one_is_constant() -> None:
    """Columns follow each other. A column that does not vary adds no dimension."""
    vector, ignored = encoder().encode({"country": "日本", "genres": "Drama|Action", "year": 2010, "constant": 5})
    assert vector.tolist() == [0, 1, 0, 1, 1, 1.0, 1]
    assert ignored == ()
    assert encoder().dim == 7
    assert encoder().columns == ("country", "genres", "year", "constant")


def test_missing_null_and_unseen_values_give_no_signal() -> None:
    """Such a value leaves only the constant in the vector, like a number equal to the mean."""
    only_constant = [0, 0, 0, 0, 0, 0, 1]
    for features in (
        {},
        {"country": None, "genres": None, "year": None},
        {"country": "atlantis", "genres": ["Musical"], "year": 2000},
        {"country": " ", "genres": "||", "year": 2000.0},
    ):
        assert encoder().encode(features)[0].tolist() == only_constant


def test_keys_that_name_no_column_are_reported() -> None:
    """Unknown keys are reported in the order of the request and do not change the vector."""
    vector, ignored = encoder().encode({"zeta": 1, "year": 2010, "alpha": {"x": 1}})
    assert ignored == ("zeta", "alpha")
    assert vector[5] == 1.0


def test_numbers_are_clamped_to_the_training_range() -> None:
    """A value a little outside counts as the nearest value of the training."""
    assert encoder().encode({"year": 1900})[0][5] == -2.0
    assert encoder().encode({"year": 2400})[0][5] == 2.0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2421, 1579, 10**400, "2010", [2010], {}])
def test_a_number_that_cannot_be_standardized_is_refused(value: object) -> None:
    """The error names the column and not the value."""
    with pytest.raises(FeatureValueUnusable, match="'year'") as caught:
        encoder().encode({"year": value})
    assert "2421" not in caught.value.message


def test_a_boolean_is_one_or_zero() -> None:
    """True is encoded like 1 and False like 0, as in a table for training."""
    column = NumberColumn("in_print", mean=0.5, deviation=0.5, low=0.0, high=1.0)
    assert [float(column.read(value)[0][1][0]) for value in (True, False)] == [1.0, -1.0]


def test_messages_name_kinds_of_json_and_not_of_python() -> None:
    """Clients need not know the server's language."""
    for value, kind in (("2010", "a text"), ([2010], "a list"), ({}, "a map")):
        with pytest.raises(FeatureValueUnusable, match=f"'year': {kind} is not a number"):
            encoder().encode({"year": value})


def test_a_constant_number_column_still_refuses_invalid_values() -> None:
    """Whether a value is valid does not depend on the variation of the training data."""
    with pytest.raises(FeatureValueUnusable, match="'constant'"):
        encoder().encode({"constant": "five"})
    assert encoder().encode({"constant": 900})[0].sum() == 1


@pytest.mark.parametrize(("column", "value"), [("country", ["fr"]), ("country", {"a": 1}), ("genres", [["Drama"]])])
def test_a_token_of_a_wrong_kind_is_refused(column: str, value: object) -> None:
    """Only multi-label columns accept lists, which hold scalars. The error says what a column accepts."""
    with pytest.raises(FeatureValueUnusable, match=f"feature '{column}'") as caught:
        encoder().encode({column: value})
    allowed = {"country": "a boolean", "genres": "a boolean, or a list of these"}[column]
    assert caught.value.message.endswith(f"; give text, a number or {allowed}")


def test_a_number_of_thousands_of_digits_is_refused() -> None:
    """Python itself refuses to write such a number."""
    with pytest.raises(FeatureValueUnusable, match="country"):
        encoder().encode({"country": 10**5000})


def test_a_repeated_label_counts_once() -> None:
    """A repeated label gives the vector of a single one."""
    assert encoder().encode({"genres": ["Drama", "Drama", " Drama"]})[0].tolist() == [0, 0, 0, 0, 1, 0, 1]


def test_a_fitted_column_standardizes_its_training_values() -> None:
    """Values encoded one by one equal the column encoded at once. Missing values are the mean."""
    values = np.array([1.0, 2.0, np.nan, 4.0, np.inf])
    column = NumberColumn.fit("x", values)
    expected = column.standardize(values)
    one_by_one = [column.read(value)[0][1][0] if math.isfinite(value) else 0.0 for value in values.tolist()]
    assert expected.tolist() == one_by_one
    assert abs(expected[[0, 1, 3]].mean()) < 1e-12


@pytest.mark.parametrize("values", [[3.0, 3.0], [1e9, 1e9 + 1e-3], [math.nan], [], [1e308, -1e308]])
def test_a_column_without_usable_variation_adds_no_dimension(values: list[float]) -> None:
    """Such columns are constant up to rounding, empty, or too large for a deviation."""
    assert NumberColumn.fit("x", np.array(values)).width == 0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(["country", "genres", "year", "constant", "other", ""]), JSON))
def test_any_json_is_encoded_or_refused_by_column(features: dict[str, object]) -> None:
    """Any JSON gives a finite vector or an error that names a declared column."""
    side = encoder()
    try:
        vector, ignored = side.encode(features)
    except FeatureValueUnusable as error:
        assert any(repr(name) in error.message for name in side.columns)
    else:
        assert np.isfinite(vector).all()
        unseen = {one for one in ignored if one.partition("=")[0] in side.columns and "=" in one}
        assert set(ignored) - unseen == set(features) - set(side.columns)
        assert {one.partition("=")[0] for one in unseen} <= {key for key in features if key in side.columns}


def test_values_that_training_did_not_see_are_named() -> None:
    """A mistyped label is reported, and known labels still count."""
    vector, ignored = encoder().encode({"genres": "Drama|Drrama", "country": "XX" * 200, "colour": "red"})
    assert ignored == ("colour", "country=" + "XX" * 128, "genres=Drrama")
    assert (vector == encoder().encode({"genres": ["Drama"]})[0]).all()
    assert encoder().encode({"genres": "Action|Drrama"})[1] == ("genres=Drrama",)

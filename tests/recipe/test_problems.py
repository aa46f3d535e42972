"""How values, places and near misses are put into words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.recipe.problems import field_path, nearest, shown, value_at


@pytest.mark.parametrize(
    ("loc", "text"),
    [
        (("training", "cutoff"), "training.cutoff"),
        (("features", "item", "columns", 0, "kind"), "features.item.columns[0].kind"),
        (("source", "dtype", "[key]"), "source.dtype"),
        ((), ""),
    ],
)
def test_places_are_written_as_in_the_reference(loc: tuple[int | str, ...], text: str) -> None:
    """Dots between keys, brackets around positions."""
    assert field_path(loc) == text


def test_the_nearest_name_ignores_case_and_gives_up_on_strangers() -> None:
    """A hint that fits nothing would mislead."""
    assert nearest("CUTOF", ["cutoff", "metric"]) == "cutoff"
    assert nearest("zzz", ["cutoff", "metric"]) is None


@given(value=st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=20))
def test_any_value_is_shown_in_a_short_line(value: object) -> None:
    """However long or deep the value is."""
    text = shown(value)
    assert 0 < len(text) < 400
    assert "\n" not in text


def test_credentials_in_a_value_are_not_shown() -> None:
    """Messages end up in logs."""
    assert "hunter2" not in shown("https://user:hunter2@host/a.csv")


def test_a_place_that_does_not_exist_gives_the_deepest_value() -> None:
    """The error then shows the value in which the key is missing."""
    assert value_at({"a": [1, {"b": 2}]}, ("a", 1, "b")) == 2
    assert value_at({"a": [1]}, ("a", 5, "b")) == [1]

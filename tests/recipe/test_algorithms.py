"""Names of recommenders in recipes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.recipe.algorithms import ALGORITHMS, DEFAULT_ALGORITHMS, FEATURE_AWARE, canonical_name


@given(name=st.sampled_from(ALGORITHMS), suffix=st.booleans(), data=st.data())
def test_names_ignore_case_and_the_suffix(name: str, suffix: bool, data: st.DataObject) -> None:
    """`IALS`, `topPop` and `RP3betaRecommender` are all accepted."""
    text = name if suffix else name.removesuffix("Recommender")
    spelled = "".join(letter.upper() if data.draw(st.booleans()) else letter.lower() for letter in text)
    assert canonical_name(f" {spelled} ") == name


@pytest.mark.parametrize(("text", "nearest"), [("ilas", "IALSRecommender"), ("TopPopp", "TopPopRecommender")])
def test_the_error_for_a_misspelled_name_suggests_the_nearest(text: str, nearest: str) -> None:
    """The error suggests the nearest name and lists all names."""
    with pytest.raises(ValueError, match=f"did you mean {nearest}") as caught:
        canonical_name(text)
    assert all(name in str(caught.value) for name in ALGORITHMS)


def test_default_algorithms_are_known() -> None:
    """The default list has known names only, and one algorithm that learns from features."""
    assert set(DEFAULT_ALGORITHMS) <= set(ALGORITHMS)
    assert FEATURE_AWARE in DEFAULT_ALGORITHMS

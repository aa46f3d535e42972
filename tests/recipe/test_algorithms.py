"""Names of recommenders in recipes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.recipe.algorithms import ALGORITHMS, DEFAULT_ALGORITHMS, FEATURE_AWARE, TUNED, canonical_name


@given(name=st.sampled_from(ALGORITHMS), suffix=st.booleans(), data=st.data())
def test_names_ignore_case_and_the_suffix(name: str, suffix: bool, data: st.DataObject) -> None:
    """`IALS`, `topPop` and `RP3betaRecommender` are all accepted."""
    text = name if suffix else name.removesuffix("Recommender")
    spelled = "".join(letter.upper() if data.draw(st.booleans()) else letter.lower() for letter in text)
    assert canonical_name(f" {spelled} ") == name


@pytest.mark.parametrize(
    ("text", "nearest"),
    [("ilas", "IALSRecommender"), ("TopPopp", "TopPopRecommender"), ("EDLAE", "DenseSLIMRecommender")],
)
def test_the_error_for_a_misspelled_name_suggests_the_nearest(text: str, nearest: str) -> None:
    """The error suggests the nearest name and lists all names."""
    with pytest.raises(ValueError, match=f"did you mean {nearest}") as caught:
        canonical_name(text)
    assert all(name in str(caught.value) for name in ALGORITHMS)


def test_default_algorithms_are_known() -> None:
    """The default list has known names only, and one algorithm that learns from features."""
    assert set(DEFAULT_ALGORITHMS) <= set(ALGORITHMS)
    assert FEATURE_AWARE in DEFAULT_ALGORITHMS


LIMITS = """
BPRFM: item_alpha [1e-12, 1e+12], n_components [1, 8192] whole, user_alpha [1e-12, 1e+12]
CosineKNN: shrinkage [0, 1e+12], top_k [1, 1e+06] whole
DenseSLIM: reg [1e-12, 1e+12]
IALS: alpha0 [1e-12, 1e+12], lambda_item_feature [1e-12, 1e+12], lambda_user_feature [1e-12, 1e+12],
  n_components [1, 8192] whole, reg [1e-12, 1e+12]
RP3beta: alpha [0, 10], beta [0, 10], top_k [1, 1e+06] whole
RidgeTransitions: decay [0.01, 10], popular_ridge [1e-12, 1e+12], ridge [1e-12, 1e+12], top_k [1, 1e+06] whole
SLIM: alpha [1e-12, 1e+12], l1_ratio [0, 1], top_k [1, 1e+06] whole
Transitions: max_steps [1, 20] whole, source_exponent [0, 1], target_exponent [0, 1], top_k [10, 2000] whole
TruncatedSVD: n_components [1, 8192] whole
"""


def test_search_spaces_have_the_limits_of_every_number() -> None:
    """A recipe may bound parameters within these limits, some of them by whole numbers only."""
    lines = []
    for algorithm, parameters in sorted(TUNED.items()):
        numbers = {name: tuned for name, tuned in sorted(parameters.items()) if not tuned.choices}
        limits = ", ".join(
            f"{name} [{tuned.low:g}, {tuned.high:g}]{' whole' * tuned.whole}" for name, tuned in numbers.items()
        )
        lines += [f"{algorithm.removesuffix('Recommender')}: {limits}"] if limits else []
    assert " ".join(lines).split() == LIMITS.split()

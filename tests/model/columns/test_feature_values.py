"""Values that all feature columns share."""

from __future__ import annotations

import numpy as np

from svc.model.columns.feature_values import token_text


def test_tokens_are_the_text_of_scalars() -> None:
    """A whole number gives its digits in any type. Surrounding blanks do not count."""
    assert token_text(7) == token_text(7.0) == token_text(np.int32(7)) == token_text(" 7 ") == "7"
    assert token_text(True) == "true"
    assert token_text(0.5) == "0.5"
    assert token_text(float("nan")) is None
    assert token_text(None) is None
    assert token_text("  ") is None

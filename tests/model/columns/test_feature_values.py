"""What the columns of features share."""

from __future__ import annotations

import numpy as np

from svc.model.columns.feature_values import token_text


def test_scalars_are_the_tokens_that_they_are_written_as() -> None:
    """A whole number is its digits, however it came; blanks around text do not count."""
    assert token_text(7) == token_text(7.0) == token_text(np.int32(7)) == token_text(" 7 ") == "7"
    assert token_text(True) == "true"
    assert token_text(0.5) == "0.5"
    assert token_text(float("nan")) is None
    assert token_text(None) is None
    assert token_text("  ") is None

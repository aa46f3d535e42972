"""Too little data is refused with the counts, the thresholds and advice."""

from __future__ import annotations

import pandas as pd
import pytest

from svc.errors import MinDataViolation
from svc.recipe.schema import Cleansing
from svc.training.data.interactions import from_frame
from svc.training.data.thresholds import check_thresholds
from tests.training.data.test_interactions import SCHEMA, frame


def test_too_little_data_names_counts_and_thresholds() -> None:
    """All counts and thresholds are fields of the error."""
    found = from_frame(frame(["a", "b"], ["x", "y"]), SCHEMA, Cleansing(), with_times=False)
    with pytest.raises(MinDataViolation, match="2 users where at least 3") as caught:
        check_thresholds(found, Cleansing(min_users=3))
    assert caught.value.fields == {
        "n_rows": 2, "n_users": 2, "n_items": 2, "min_rows": 1, "min_users": 3, "min_items": 2,
    }  # fmt: skip


@pytest.mark.parametrize("rows", [0, 1])
def test_no_row_and_a_single_row_are_too_little(rows: int) -> None:
    """Even without thresholds a model needs a user and two items."""
    found = from_frame(frame(["a"][:rows], ["x"][:rows]), SCHEMA, Cleansing(), with_times=False)
    with pytest.raises(MinDataViolation):
        check_thresholds(found, Cleansing())


def refusal(data: pd.DataFrame, **schema: object) -> str:
    chosen = SCHEMA.model_copy(update=schema)
    found = from_frame(data, chosen, Cleansing(), with_times="t" in data)
    with pytest.raises(MinDataViolation) as caught:
        check_thresholds(found, Cleansing())
    return caught.value.message


def test_a_threshold_below_the_minimum_of_a_model_is_reported_unchanged() -> None:
    """`min_items: 1` stays 1, and the message says that a model needs two."""
    found = from_frame(frame(["a"], ["x"]), SCHEMA, Cleansing(), with_times=False)
    with pytest.raises(MinDataViolation, match="asks for 1, but a model needs at least 2") as caught:
        check_thresholds(found, Cleansing(min_items=1))
    assert caught.value.fields["min_items"] == 1

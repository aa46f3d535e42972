"""Cleansing: what is dropped, what is counted, in which order ids stand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from svc.errors import MinDataViolation
from svc.recipe.schema import Cleansing, InteractionSchema
from svc.training.data.interactions import check_thresholds, from_frame

SCHEMA = InteractionSchema(user_column="u", item_column="i", time_column="t", time_unit="s")


def frame(users: list[str | None], items: list[str | None], times: list[object] | None = None) -> pd.DataFrame:
    found = pd.DataFrame({"u": pd.Categorical(users), "i": pd.Categorical(items)})
    if times is not None:
        found["t"] = times
    return found


def test_ids_stand_in_order_of_first_appearance() -> None:
    """Codes follow the rows, not the alphabet."""
    found = from_frame(frame(["b", "a", "b"], ["y", "x", "x"]), SCHEMA, Cleansing(), with_times=False)
    assert found.user_ids == ["b", "a"]
    assert found.item_ids == ["y", "x"]
    assert found.users.tolist() == [0, 1, 0]
    assert found.items.tolist() == [0, 1, 1]


def test_null_and_blank_ids_are_dropped_with_their_count() -> None:
    """Neither missing ids nor blank text become users or items, and nobody else's order changes."""
    found = from_frame(frame(["a", None, " ", "b"], ["x", "x", "y", ""]), SCHEMA, Cleansing(), with_times=False)
    assert (found.user_ids, found.item_ids) == (["a"], ["x"])
    assert found.dropped == {"null_ids": 3}
    assert found.drop_count == 3


@pytest.mark.parametrize(("dedup", "time"), [("keep_last", 9), ("keep_first", 2)])
def test_duplicates_are_chosen_by_time(dedup: str, time: int) -> None:
    """Of equal pairs the latest or the earliest stays, wherever it stands in the file."""
    data = frame(["a", "a", "a"], ["x", "x", "x"], [5, 9, 2])
    found = from_frame(data, SCHEMA, Cleansing(dedup=dedup), with_times=True)
    assert found.times is not None
    assert found.times.tolist() == [time * 10**9]
    assert found.dropped == {"duplicates": 2}


def test_without_dedup_repetitions_count_in_the_matrix() -> None:
    """An entry of the matrix is how often the pair occurs."""
    found = from_frame(frame(["a", "a", "b"], ["x", "x", "y"]), SCHEMA, Cleansing(dedup="none"), with_times=False)
    assert len(found) == 3
    assert found.matrix().toarray().tolist() == [[2.0, 0.0], [0.0, 1.0]]


def test_bad_times_are_dropped_only_where_time_is_used() -> None:
    """A split that ignores time keeps rows whose time says nothing."""
    data = frame(["a", "b", "c"], ["x", "y", "z"], [1.0, np.nan, 1e300])
    assert from_frame(data, SCHEMA, Cleansing(), with_times=True).dropped == {"bad_times": 2}
    assert len(from_frame(data, SCHEMA, Cleansing(), with_times=False)) == 3


def test_too_little_data_names_counts_and_thresholds() -> None:
    """All observed counts and all thresholds are fields of the error."""
    found = from_frame(frame(["a", "b"], ["x", "y"]), SCHEMA, Cleansing(), with_times=False)
    with pytest.raises(MinDataViolation, match="2 users where at least 3") as caught:
        check_thresholds(found, Cleansing(min_users=3))
    assert caught.value.fields == {
        "n_rows": 2, "n_users": 2, "n_items": 2, "min_rows": 1, "min_users": 3, "min_items": 2,
    }  # fmt: skip


@pytest.mark.parametrize("rows", [0, 1])
def test_nothing_and_a_single_row_are_too_little(rows: int) -> None:
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


def test_a_threshold_below_what_a_model_needs_is_reported_as_it_was_given() -> None:
    """`min_items: 1` stays 1; the message says that a model needs two."""
    found = from_frame(frame(["a"], ["x"]), SCHEMA, Cleansing(), with_times=False)
    with pytest.raises(MinDataViolation, match="asks for 1, but a model needs at least 2") as caught:
        check_thresholds(found, Cleansing(min_items=1))
    assert caught.value.fields["min_items"] == 1

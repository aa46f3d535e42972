"""Cleansing: what is dropped, what is counted, in which order ids stand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from svc.recipe.schema import Cleansing, InteractionSchema
from svc.training.data.interactions import from_frame

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

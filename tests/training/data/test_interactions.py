"""Cleansing of interactions: dropped rows, their counts, and the order of ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svc.errors import TrainingError
from svc.recipe.schema import Cleansing, InteractionSchema, Recipe
from svc.recipe.serving_schema import Serving
from svc.recipe.training_schema import Split, Training
from svc.training.data.interactions import Interactions, core_rows, from_rows
from svc.training.data.split import split
from svc.training.data.times import BAD_TIME, NO_START
from svc.training.data.weights import positions_of
from svc.training.data.where import kept_rows

SCHEMA = InteractionSchema(user_column="u", item_column="i", time_column="t", time_unit="s")


def recipe_of(schema: InteractionSchema, cleansing: Cleansing, training: Training, **serving: Any) -> Recipe:
    """Return a recipe with these blocks, which need not agree."""
    return Recipe.model_construct(schema_=schema, cleansing=cleansing, training=training, serving=Serving(**serving))


def from_frame(
    frame: pd.DataFrame,
    schema: InteractionSchema,
    cleansing: Cleansing,
    *,
    with_times: bool,
    started_ns: int = NO_START,
    repeats: bool = False,
) -> Interactions:
    """Filter and clean `frame`, as `kept_rows` and `from_rows` do."""
    plan = Split(scheme="time_user" if with_times else "random")
    recipe = recipe_of(schema, cleansing, Training(split=plan, repeats=repeats))
    return from_rows(kept_rows(frame, cleansing.where, cleansing.hide), recipe, started_ns=started_ns)


def frame(users: list[str | None], items: list[str | None], times: list[object] | None = None) -> pd.DataFrame:
    found = pd.DataFrame({"u": pd.Categorical(users), "i": pd.Categorical(items)})
    if times is not None:
        found["t"] = times
    return found


def test_ids_are_in_order_of_first_appearance() -> None:
    """The order is that of the rows, not of the alphabet."""
    found = from_frame(frame(["b", "a", "b"], ["y", "x", "x"]), SCHEMA, Cleansing(), with_times=False)
    assert found.user_ids == ["b", "a"]
    assert found.item_ids == ["y", "x"]
    assert found.users.tolist() == [0, 1, 0]
    assert found.items.tolist() == [0, 1, 1]


def test_null_and_blank_ids_are_dropped_with_their_count() -> None:
    """Such ids become neither users nor items, and do not change the order of other ids."""
    found = from_frame(frame(["a", None, " ", "b"], ["x", "x", "y", ""]), SCHEMA, Cleansing(), with_times=False)
    assert (found.user_ids, found.item_ids) == (["a"], ["x"])
    assert found.dropped == {"null_ids": 3}
    assert found.drop_count == 3


def test_rows_without_ids_end_the_training_if_they_may_not_be_dropped() -> None:
    """The message names each id column with a blank cell, and the first row with one."""
    said = (
        "'u' is blank in 1 rows \\(first: data row 2\\), the id column 'i' is blank in 1 rows .*drop_null_ids is false"
    )
    strict = Cleansing(drop_null_ids=False)
    with pytest.raises(TrainingError, match=said):
        from_frame(frame(["a", None, "b"], ["x", "x", ""]), SCHEMA, strict, with_times=False)
    assert from_frame(frame(["a", "b"], ["x", "y"]), SCHEMA, strict, with_times=False).drop_count == 0


def test_a_rejection_needs_no_time_and_no_choice_of_its_user_to_count() -> None:
    """The users and items of hidden rows may occur in no other row."""
    rows = [("a", "x", 5.0, "buy"), ("b", "y", 6.0, "buy"), ("c", "x", np.nan, "buy")]
    rows += [("a", "y", np.nan, "no"), ("a", "p", 7.0, "no"), ("d", "x", np.nan, "no"), ("e", "q", 8.0, "no")]
    rows += [("d", "p", np.nan, "no")]
    data = pd.DataFrame(rows, columns=["u", "i", "t", "e"]).astype({"u": "category", "i": "category", "e": "category"})
    schema = SCHEMA.model_copy(update={"event_column": "e"})
    found = from_frame(data, schema, Cleansing(event_weights={"buy": 1, "no": "exclude"}), with_times=True)
    assert (found.user_ids, found.item_ids) == (["a", "b"], ["x", "y"])
    assert found.dropped == {"bad_times": 1, "excluded_events": 5}
    assert found.hidden is not None and found.hidden.times is not None
    assert (found.hidden.items.tolist(), found.hidden.times.tolist()) == ([1], [BAD_TIME])
    assert found.hidden_unknown is not None and found.hidden_of_others is not None
    assert (found.hidden_unknown.item_ids, found.hidden_unknown.rows.items.tolist()) == (["p", "q"], [0])
    of_others = found.hidden_of_others
    assert of_others.user_ids == ["d", "e"]
    assert list(zip(of_others.rows.users.tolist(), of_others.rows.items.tolist(), strict=True)) == [
        (0, 0), (1, 3), (0, 2)
    ]  # fmt: skip


DEDUPS = ["sum", "max", "count", "keep_last", "keep_first", "none"]
START_S = 30
Row = tuple[int, int, int, float]
ROWS = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, START_S + 5), st.sampled_from([0.5, 1.0, 3.0])),
    min_size=3,
    max_size=12,
)
"""Rows of user, item, second and weight. The last five seconds are after the start of the training."""


def cleaned(rows: list[Row], dedup: Any, *, repeats: bool = False, timed: bool = True) -> Interactions:
    users, items, seconds, weights = zip(*rows, strict=True)
    data = frame([f"u{user}" for user in users], [f"i{item}" for item in items], list(seconds)).assign(w=weights)
    schema = SCHEMA.model_copy(update={"weight_column": "w"})
    started_ns = START_S * 10**9
    return from_frame(data, schema, Cleansing(dedup=dedup), with_times=timed, started_ns=started_ns, repeats=repeats)


@settings(max_examples=50, deadline=None)
@given(rows=ROWS, dedup=st.sampled_from(DEDUPS), repeats=st.booleans())
def test_an_item_has_the_position_of_its_latest_row_in_the_history(
    rows: list[Row], dedup: str, *, repeats: bool
) -> None:
    """Every `dedup` gives the same positions. A row in the future counts as one at the start of the training."""
    found = cleaned(rows, dedup, repeats=repeats)
    latest: dict[tuple[str, str], int] = {}
    for user, item, second, _ in rows:
        pair = f"u{user}", f"i{item}"
        latest[pair] = max(latest.get(pair, 0), min(second, START_S))
    positions = positions_of(found.latest()).tocoo()
    assert len(positions.data) == len(latest)
    for row, column, position in zip(positions.row, positions.col, positions.data, strict=True):
        user, item = found.user_ids[row], found.item_ids[column]
        later = {second for (other, _), second in latest.items() if other == user and second > latest[user, item]}
        assert position == len(later)


@settings(max_examples=50, deadline=None)
@given(rows=ROWS, dedup=st.sampled_from(DEDUPS), timed=st.booleans())
def test_the_latest_item_is_held_out_with_any_dedup(rows: list[Row], dedup: str, *, timed: bool) -> None:
    """Rows are ordered by time, including future ones. Without times, they keep the order of the table."""
    found = cleaned(rows, dedup, timed=timed)
    parts = split(found, Split(scheme="leave_one_out", heldout_ratio=0.1, seed=1))
    heldout = {
        found.user_ids[parts.order[parts.val_offset + row]]: found.item_ids[column]
        for row, column in zip(*parts.heldout.nonzero(), strict=True)
    }
    expected: dict[str, str] = {}
    when = [(row[2] if timed else 0, place) for place, row in enumerate(rows)]
    for _, (user, item, _, _) in sorted(zip(when, rows, strict=True)):
        expected[f"u{user}"] = f"i{item}"
    several = {f"u{row[0]}" for row in rows if any(row[0] == other[0] and row[1] != other[1] for other in rows)}
    assert heldout == {user: item for user, item in expected.items() if user in several}


@pytest.mark.parametrize(("dedup", "weight"), [("keep_last", 3.0), ("keep_first", 0.5)])
def test_keep_first_and_keep_last_choose_the_weight_by_time(dedup: str, weight: float) -> None:
    """The pair gets the latest time in both cases."""
    found = cleaned([(0, 0, 5, 1.0), (0, 0, 9, 3.0), (0, 0, 2, 0.5)], dedup)
    assert found.times is not None and found.weights is not None
    assert (found.times.tolist(), found.weights.tolist()) == ([9 * 10**9], [weight])
    assert found.dropped == {"duplicates": 2}


def test_without_dedup_repetitions_count_in_the_matrix() -> None:
    """The value of an entry is the number of rows of the pair."""
    found = from_frame(frame(["a", "a", "b"], ["x", "x", "y"]), SCHEMA, Cleansing(dedup="none"), with_times=False)
    assert len(found) == 3
    assert found.matrix().toarray().tolist() == [[2.0, 0.0], [0.0, 1.0]]


def test_invalid_times_are_dropped_only_if_the_split_uses_time() -> None:
    """A split without times keeps these rows."""
    data = frame(["a", "b", "c"], ["x", "y", "z"], [1.0, np.nan, 1e300])
    assert from_frame(data, SCHEMA, Cleansing(), with_times=True).dropped == {"bad_times": 2}
    assert len(from_frame(data, SCHEMA, Cleansing(), with_times=False)) == 3


@given(
    pairs=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=40),
    least=st.integers(1, 4),
)
def test_the_core_is_the_largest_set_of_rows_with_enough_of_each(pairs: list[tuple[int, int]], least: int) -> None:
    """The rows that are left are those of a plain program that drops one row after the other."""
    users, items = (np.array([pair[side] for pair in pairs], dtype=np.int32) for side in (0, 1))
    left = set(range(len(pairs)))
    while few := {
        row
        for row in left
        if min(sum(pairs[other][side] == pairs[row][side] for other in left) for side in (0, 1)) < least
    }:
        left.remove(few.pop())
    assert np.flatnonzero(core_rows(users, items, least)).tolist() == sorted(left)


def test_rows_outside_the_core_are_counted() -> None:
    """Duplicates are joined first. Rows keep their times and weights."""
    columns = {"user_column": "user", "item_column": "item", "time_column": "ts", "weight_column": "w"}
    schema = InteractionSchema(**columns, time_unit="s")
    rows = [(u, i, 100 * u + i, 1 + i) for u in range(3) for i in range(3)] + [(9, 0, 5, 1), (9, 0, 6, 1), (0, 8, 7, 2)]
    table = pd.DataFrame(rows, columns=["user", "item", "ts", "w"]).astype({"user": str, "item": str})
    found = from_frame(table, schema, Cleansing(min_interactions=2), with_times=True)
    assert found.dropped == {"duplicates": 1, "min_interactions": 2}
    assert found.filter_counts == {"dropped_by_min_interactions": 2}
    assert (found.user_ids, found.item_ids) == (["0", "1", "2"], ["0", "1", "2"])
    assert found.weights is not None and found.weights.tolist() == [1.0, 2.0, 3.0] * 3
    assert found.times is not None and (found.times // 10**9).tolist() == [row[2] for row in rows[:9]]
    assert from_frame(table, schema, Cleansing(), with_times=True).filter_counts == {}

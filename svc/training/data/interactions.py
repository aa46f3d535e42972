"""Clean a fetched table of interactions: number users and items, read times and weights, and join duplicates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

from svc.errors import MinDataViolation, TimeUnitRequired, TrainingError
from svc.recipe.schema import Cleansing, InteractionSchema, Recipe
from svc.training.data.times import (
    BAD_TIME,
    NO_START,
    bad_times,
    blank_ids,
    calendar_hint,
    from_reference,
    future_times,
    odd_years,
    reference_time,
    time_column,
    to_nanoseconds,
)
from svc.training.data.weights import (
    Codes,
    Dedup,
    RowWeights,
    distinct_pairs,
    in_single_precision,
    of_events,
    of_numbers,
    recent_choices,
)
from svc.training.data.where import KeptRows

LIKE_SEEN: Final = np.float32(0.5)
"""Value in the matrix of hidden pairs for an item that a request with `include_seen` may show, like a seen item."""
_FIRST_ROWS: Final = 1000
Times = NDArray[np.int64]
Flags = NDArray[np.bool_]


class HiddenRows(NamedTuple):
    """Rows that do not count as choices and hide their item from their user.

    - `users` and `items`, (h,), are the user and item of each row.
    - `times`, (h,), is None if no times are read. A row without a readable time has BAD_TIME, which is before all
      others, because a rejection needs no time to count.
    - `always`, (h,), is True for an event with the weight "exclude". Its item is never shown to the user. It is False
      for a row of `cleansing.hide`. Its item may be shown by a request with `include_seen`.
    """

    users: Codes
    items: Codes
    times: Times | None
    always: NDArray[np.bool_]

    def select(self, rows: NDArray[Any]) -> HiddenRows:
        """Return the hidden rows that `rows`, a mask or positions, selects."""
        return HiddenRows(self.users[rows], self.items[rows], _at(self.times, rows), self.always[rows])

    def of_rows(self, rows: NDArray[Any]) -> HiddenRows | None:
        """Return the hidden rows that `rows`, a mask or positions, selects, or None if it selects no row."""
        some = self.select(rows)
        return some if len(some.users) else None

    def matrix(self, n_users: int, n_items: int) -> sparse.csr_matrix:
        """Return the matrix of hidden pairs, (n_users, n_items).

        An entry is 1 if the item is always hidden, and LIKE_SEEN if a request with `include_seen` may show it.
        """
        values = np.where(self.always, 1.0, float(LIKE_SEEN))
        # The largest value, so that a pair that is hidden in both ways is never shown.
        rows, most = distinct_pairs(self.users, self.items, None, values, "max")
        assert most is not None, "values are given"
        pairs = self.users[rows], self.items[rows]
        return sparse.csr_matrix((most.astype(np.float32), pairs), shape=(n_users, n_items))


class HiddenUnknown(NamedTuple):
    """Hidden rows of items without a choice in the cleaned data. The `items` of `rows` are positions in `item_ids`.

    `item_ids` also has such items of users without a choice.
    """

    rows: HiddenRows
    item_ids: list[str]


class HiddenOfOthers(NamedTuple):
    """Hidden rows of users without a choice. The `users` of `rows` are positions in `user_ids`.

    Items are numbered like those with a choice. Items without a choice follow, in the order of HiddenUnknown.
    """

    rows: HiddenRows
    user_ids: list[str]


@dataclass(frozen=True, slots=True)
class FutureRows:
    """Rows with a time in the future: their number, and a message about the first of these rows.

    `start` is the start of the training, in nanoseconds since 1970.
    """

    count: int
    detail: str
    start: int


@dataclass(frozen=True, slots=True, eq=False)
class Interactions:
    """Clean interactions, in the order of the source.

    - `users` and `items`, (n,), are positions in `user_ids` and `item_ids`, which are in order of first appearance.
    - `times`, (n,), are nanoseconds since 1970, or None if the recipe does not use time.
    - `dropped` has the number of rows that cleansing removed, by reason, without reasons that removed no row.
    - `reasons` has messages about rows without a usable id or time, by the same keys.
    - `weights`, (n,) float32, is None if every row counts 1.
    - `hidden` are the rows that hide their item from their user, if the item is in `item_ids`. `hidden_unknown` are
      such rows of items that are not in `item_ids`. `hidden_of_others` are the rows of users who are not in
      `user_ids`. Each is None if there are no such rows.
    - `reference` is the time from which ages count, in nanoseconds since 1970, or None without times.
    - `future` describes the rows later than the start of the training, or is None if there are none.
    - `filter_counts` has the number of rows that `cleansing.where` dropped and the number of rows with usable ids and
      times that satisfy `cleansing.hide`, by the field's name in events and headers. A filter that the recipe does not
      have is left out.
    - `deferred_dedup` is the rule by which several rows of one user and item are joined after the split. It is "none"
      if nothing is left to join.
    - `popularity`, (items,), is the recent popularity of each item, or None if choices of any age count alike.
    - `seen`, (n,), is True for a row that hides its item from its user. None: all rows do.
    - `target`, (n,), is True for a row that may be held out. None: all rows may. With `seen` or `target`, rows of one
      user and item are joined after the split, because it divides them.
    - `events` has the number of rows of each event, after `cleansing.where`.
    """

    users: Codes
    items: Codes
    times: Times | None
    user_ids: list[str]
    item_ids: list[str]
    dropped: dict[str, int]
    reasons: dict[str, str] = field(default_factory=dict)
    weights: NDArray[np.float32] | None = None
    hidden: HiddenRows | None = None
    reference: int | None = None
    future: FutureRows | None = None
    filter_counts: Mapping[str, int] = field(default_factory=dict)
    deferred_dedup: Dedup = "none"
    popularity: NDArray[np.float64] | None = None
    hidden_unknown: HiddenUnknown | None = None
    hidden_of_others: HiddenOfOthers | None = None
    seen: Flags | None = None
    target: Flags | None = None
    events: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.users)

    @property
    def counts(self) -> dict[str, int]:
        """Return the numbers of rows, users and items, by the field's name in events and headers."""
        return {"n_rows": len(self), "n_users": len(self.user_ids), "n_items": len(self.item_ids)}

    @property
    def drop_count(self) -> int:
        return sum(self.dropped.values())

    @property
    def n_unusable(self) -> int:
        """Return the number of dropped rows that lacked a usable id or time."""
        return sum(self.dropped.get(reason, 0) for reason in self.reasons)

    @property
    def divides_rows(self) -> bool:
        """Return whether a split divides the rows of one user and item, because their events differ in meaning."""
        return self.seen is not None or self.target is not None

    @property
    def has_weights(self) -> bool:
        """Return whether pairs have weights, from a weight column, from events, or from joined rows."""
        return self.weights is not None or self.deferred_dedup in {"sum", "count"}

    def of_rows(self, rows: NDArray[np.int64]) -> Interactions:
        """Return these interactions with only the rows at positions `rows`, (r,). Users and items keep their numbers.

        Hidden rows and counts of dropped rows stay the same.
        """
        names = ("users", "items", "times", "weights", "seen", "target")
        of_rows: dict[str, Any] = {name: _at(getattr(self, name), rows) for name in names}
        return replace(self, **of_rows)

    def collapse(self) -> Interactions:
        """Return these interactions with one row for each pair of a user and an item, joined by `deferred_dedup`.

        The joined rows have neither `seen` nor `target`. Raise WeightOutOfRange if a sum of weights is infinite.
        """
        if self.deferred_dedup == "none":
            return self
        # Summed in float64 and rounded once. In float32 each addition would round.
        rated = None if self.weights is None else self.weights.astype(np.float64)
        rows, weights = _in_table_order(*distinct_pairs(self.users, self.items, self.times, rated, self.deferred_dedup))
        pairs = replace(self.of_rows(rows), deferred_dedup="none", seen=None, target=None)
        if weights is not None:
            summed = in_single_precision(
                weights, lambda row: _pair(row, pairs.users, self.user_ids, pairs.items, self.item_ids)
            )
            return replace(pairs, weights=summed)
        return pairs

    def matrix(self) -> sparse.csr_matrix:
        """Return the float32 interaction matrix, (users, items).

        An entry is the number of rows of a user and an item, or the sum of their weights. Rows that are still to be
        joined by `deferred_dedup` are joined first. Raise WeightOutOfRange if a sum is infinite.
        """
        rows = self.collapse()
        weights = np.ones(len(rows), dtype=np.float32) if rows.weights is None else rows.weights
        matrix = self._sparse(weights, rows.users, rows.items)
        in_single_precision(matrix.data, lambda _: "what the weights of one user and item add up to")
        return matrix

    def hidden_matrix(self) -> sparse.csr_matrix | None:
        """Return the matrix of hidden pairs, (users, items), or None if no pair is hidden."""
        return None if self.hidden is None else self.hidden.matrix(len(self.user_ids), len(self.item_ids))

    def seen_matrix(self) -> sparse.csr_matrix | None:
        """Return a matrix, (users, items), with 1 at the pairs that hide the item from the user, or None if all do."""
        if self.seen is None:
            return None
        rows, _ = distinct_pairs(self.users[self.seen], self.items[self.seen], None)
        # From positions among the seen rows to positions among all.
        rows = np.flatnonzero(self.seen)[rows]
        return self._sparse(np.ones(len(rows), np.float32), self.users[rows], self.items[rows])

    def latest(self) -> sparse.csr_matrix:
        """Return the latest time of each entry of `matrix`, (users, items) int64, in nanoseconds from `reference`.

        The times must have been read. Times in the future count as the start of the training.
        """
        assert self.times is not None and self.reference is not None, "whoever asks for times has had them read"
        rows, _ = distinct_pairs(self.users, self.items, self.times)
        return self._sparse(self.ages(self.times[rows], self.reference), self.users[rows], self.items[rows])

    def ages(self, times: Times, reference: int) -> Times:
        """Return nanoseconds from `reference` to each of `times`.

        Times in the future count as the start of the training.
        """
        return from_reference(times if self.future is None else np.minimum(times, self.future.start), reference)

    def _sparse(self, values: NDArray[Any], users: Codes, items: Codes) -> sparse.csr_matrix:
        return sparse.csr_matrix((values, (users, items)), shape=(len(self.user_ids), len(self.item_ids)))


def from_rows(rows: KeptRows, recipe: Recipe, *, started_ns: int = NO_START) -> Interactions:
    """Return the clean interactions of `rows`. `check_thresholds` in fetch.py checks their number afterwards.

    `started_ns` is the start of the training, in nanoseconds since 1970. If the recipe has `repeats`, duplicates are
    kept until the rows have been split.

    Raise TimeUnitRequired for numeric times without a unit, TimeMixture for a text column of times with numbers and
    dates, and WeightOutOfRange for a weight that does not fit into float32. Raise TrainingError for
    rows without an id if `cleansing.drop_null_ids` is False.
    """
    frame, schema, cleansing = rows.frame, recipe.schema_, recipe.cleansing
    users, user_names = id_codes(frame[schema.user_column])
    items, item_names = id_codes(frame[schema.item_column])
    times = read_times(frame, schema) if recipe.uses_time else None
    dropped: dict[str, int] = {"where": rows.n_dropped or 0}
    reasons: dict[str, str] = {}
    keep = (users >= 0) & (items >= 0)
    dropped["null_ids"] = len(keep) - int(np.count_nonzero(keep))
    if not keep.all():
        reasons["null_ids"] = blank_ids({schema.user_column: users < 0, schema.item_column: items < 0}, rows.positions)
        if not cleansing.drop_null_ids:
            raise TrainingError(f"{reasons['null_ids']}; cleansing.drop_null_ids is false, so no row may lack an id")
    rated = _row_weights(frame, schema, cleansing)
    ruled = np.zeros(len(keep), dtype=bool) if rows.hides is None else rows.hides
    excluded = np.zeros(len(keep), dtype=bool) if rated is None else rated.hides
    hiding = keep & (ruled | excluded)
    # Before times and weights are looked at, because a rejection needs neither to count.
    keep &= ~hiding
    if times is not None:
        bad = keep & (times == BAD_TIME)
        dropped["bad_times"] = int(np.count_nonzero(bad))
        keep &= ~bad
        if bad.any() and schema.time_column is not None:
            column = time_column(frame, schema.time_columns)
            reasons["bad_times"] = bad_times(column, bad, schema.time_name, schema.time_form, rows.positions)
    hidden = HiddenRows(users[hiding], items[hiding], _at(times, hiding), excluded[hiding])
    by_rule = int(np.count_nonzero(hiding & ruled))
    dropped["hide"], dropped["excluded_events"] = by_rule, len(hidden.users) - by_rule
    if rated is not None:
        unrated = keep & np.isnan(rated.values)
        dropped[rated.problem] = int(np.count_nonzero(unrated))
        keep &= ~unrated
    users, items = users[keep], items[keep]
    future = None if times is None else _future_rows(rows, schema, keep & (times > started_ns), started_ns)
    times, weights = _at(times, keep), None if rated is None else rated.values[keep]
    seen_rows, target_rows = (
        None if rated is None else rated.is_among(chosen, keep) for chosen in (recipe.seen, recipe.target)
    )
    deferred = recipe.training.repeats or seen_rows is not None or target_rows is not None
    popular = recipe.serving.popular
    recent = (
        None
        if popular is None or times is None
        else recent_choices(users, items, times, len(item_names), popular, started_ns=started_ns)
    )
    joined: Dedup = "none" if deferred else cleansing.dedup_in_effect
    later: Dedup = cleansing.dedup_in_effect if deferred else "none"
    if joined != "none" or cleansing.min_interactions is not None:
        kept, weights = _join_and_prune(
            users, items, times, weights, dedup=joined, least=cleansing.min_interactions, dropped=dropped
        )
        users, items, times = users[kept], items[kept], _at(times, kept)
        seen_rows, target_rows = _at(seen_rows, kept), _at(target_rows, kept)
    users, user_codes, row_of = _by_first_appearance(users, len(user_names))
    items, item_codes, column_of = _by_first_appearance(items, len(item_names))
    user_ids, item_ids = user_names[user_codes].tolist(), item_names[item_codes].tolist()
    of_chosen, unknown, of_others = _by_choice(hidden, row_of, column_of, user_names, item_names)
    counts = {
        "dropped_by_where": rows.n_dropped,
        "hidden_by_rule": None if rows.hides is None else by_rule,
        "dropped_by_min_interactions": dropped.get("min_interactions"),
    }
    return Interactions(
        users,
        items,
        times,
        user_ids,
        item_ids,
        {k: v for k, v in dropped.items() if v},
        reasons,
        None
        if weights is None
        else in_single_precision(weights, lambda row: _pair(row, users, user_ids, items, item_ids)),
        of_chosen,
        None if times is None else reference_time(times, started_ns),
        future,
        {name: count for name, count in counts.items() if count is not None},
        later,
        None if recent is None else recent[item_codes],
        unknown,
        of_others,
        seen_rows,
        target_rows,
        {} if rated is None else rated.counts(),
    )


def _join_and_prune(
    users: Codes,
    items: Codes,
    times: Times | None,
    weights: NDArray[Any] | None,
    *,
    dedup: Dedup,
    least: int | None,
    dropped: dict[str, int],
) -> tuple[NDArray[np.int64], NDArray[Any] | None]:
    """Join duplicates by `dedup`, and drop the rows outside the core of `least` rows (see `core_rows`).

    Return the positions of the rows that are left, and their weights. Add the numbers of other rows to `dropped`.
    """
    kept = np.arange(len(users))
    if dedup != "none":
        kept, weights = _in_table_order(*distinct_pairs(users, items, times, weights, dedup))
        dropped["duplicates"] = len(users) - len(kept)
    if least is not None:
        core = core_rows(users[kept], items[kept], least)
        dropped["min_interactions"] = len(core) - int(np.count_nonzero(core))
        kept, weights = kept[core], _at(weights, core)
    return kept, weights


Values = TypeVar("Values", bound=NDArray[Any])


def _at(values: Values | None, rows: NDArray[Any]) -> Values | None:
    return None if values is None else values[rows]


def core_rows(users: Codes, items: Codes, least: int) -> NDArray[np.bool_]:
    """Return a mask of the rows, (n,), in which each user and each item has at least `least` rows.

    A user whose rows are dropped takes rows from items, which may then have too few, so this repeats until no row is
    dropped.
    """
    kept, n_kept = np.ones(len(users), dtype=np.bool_), -1
    # Python reads the left side before it assigns, so this compares with the count of the last turn.
    while n_kept != (n_kept := int(np.count_nonzero(kept))):
        for codes in (users, items):
            kept &= np.bincount(codes[kept], minlength=1 + int(codes.max(initial=0)))[codes] >= least
    return kept


def _by_choice(
    hidden: HiddenRows,
    row_of: Codes,
    column_of: Codes,
    user_names: NDArray[np.object_],
    item_names: NDArray[np.object_],
) -> tuple[HiddenRows | None, HiddenUnknown | None, HiddenOfOthers | None]:
    """Return the fields `hidden`, `hidden_unknown` and `hidden_of_others` of Interactions.

    The users and items of `hidden` are positions in `user_names` and `item_names`. `row_of` and `column_of` have the
    final number of each name, −1 without a choice.
    """
    is_user, is_chosen = row_of[hidden.users] >= 0, column_of[hidden.items] >= 0
    n_items = 1 + int(column_of.max(initial=-1))
    # Users who made choices come first, so the numbers of their items do not depend on other users.
    codes = pd.unique(np.concatenate([hidden.items[which & ~is_chosen] for which in (is_user, ~is_user)]))
    # A copy, because `column_of` still says which items are chosen.
    number_of = column_of.copy()
    number_of[codes] = n_items + np.arange(len(codes), dtype=np.int32)
    numbered = hidden._replace(users=row_of[hidden.users], items=number_of[hidden.items])
    unknown, of_others = None, None
    if len(codes):
        rows = numbered.select(is_user & ~is_chosen)
        unknown = HiddenUnknown(rows._replace(items=rows.items - n_items), item_names[codes].tolist())
    if not is_user.all():
        users, user_codes, _ = _by_first_appearance(hidden.users[~is_user], len(user_names))
        rows = numbered.select(~is_user)
        of_others = HiddenOfOthers(rows._replace(users=users), user_names[user_codes].tolist())
    return numbered.of_rows(is_user & is_chosen), unknown, of_others


def _pair(row: int, users: Codes, user_ids: list[str], items: Codes, item_ids: list[str]) -> str:
    return f"the weight of user {user_ids[users[row]]!r:.40} and item {item_ids[items[row]]!r:.40}"


def _future_rows(rows: KeptRows, schema: InteractionSchema, which: NDArray[np.bool_], start: int) -> FutureRows | None:
    if not which.any():
        return None
    detail = future_times(time_column(rows.frame, schema.time_columns), which, schema.time_name, rows.positions)
    return FutureRows(int(np.count_nonzero(which)), detail, start)


def _row_weights(frame: pd.DataFrame, schema: InteractionSchema, cleansing: Cleansing) -> RowWeights | None:
    if schema.weight_column is not None:
        return of_numbers(frame[schema.weight_column])
    if schema.event_column is not None:
        return of_events(frame[schema.event_column], cleansing.event_weights or {})
    return None


def id_codes(column: pd.Series) -> tuple[Codes, NDArray[np.object_]]:
    """Return the code of each row's id, (n,), and the distinct ids as text. The code of a null or blank id is −1."""
    categorical = column.array if isinstance(column.dtype, pd.CategoricalDtype) else column.astype("category").array
    names = np.asarray([str(name) for name in categorical.categories], dtype=object)
    # pandas stores the codes of few categories in 8 bits, and positions are computed from these.
    codes = np.asarray(categorical.codes, dtype=np.int32)
    # Each distinct id is looked at once. Most tables have far more rows than ids.
    blank = np.asarray([not name.strip() for name in names], dtype=bool)
    if blank.any():
        codes = np.where((codes >= 0) & blank[codes], np.int32(-1), codes)
    return codes, names


def check_unused_times(frame: pd.DataFrame, schema: InteractionSchema) -> None:
    """Check the time column of a training that does not use it, so that mistakes are found before it is used.

    To save time, all rows are read only if none of the first rows has a time. Raise TimeUnitRequired for numbers
    without a unit, TimeMixture for a text column with numbers and dates, and MinDataViolation if no value is a time.
    """
    if schema.time_column is None or not len(frame):
        return
    for rows in (frame.head(_FIRST_ROWS), frame):
        bad = read_times(rows, schema) == BAD_TIME
        if not bad.all():
            return
    raise MinDataViolation(
        "no row has a time that can be read: "
        f"{bad_times(time_column(frame, schema.time_columns), bad, schema.time_name, schema.time_form)}; "
        "mend schema.time_column or schema.time_unit, or leave schema.time_column out"
    )


def read_times(frame: pd.DataFrame, schema: InteractionSchema) -> Times:
    assert schema.time_column is not None, "the recipe asks for time_column wherever times are used"
    column = time_column(frame, schema.time_columns)
    if pd.api.types.is_numeric_dtype(column.dtype) and schema.time_form is None:
        near = calendar_hint(column) or odd_years(column, None)
        raise TimeUnitRequired(
            f"schema.time_column {schema.time_name!r} holds numbers: say what they count in schema.time_unit "
            f"(s, ms, us or ns{f'; {near}' if near else ''}), or in Python as svc.train(..., time_unit=...)."
        )
    return to_nanoseconds(column, schema.time_form)


def _in_table_order(
    rows: NDArray[np.int64], weights: NDArray[Any] | None
) -> tuple[NDArray[np.int64], NDArray[Any] | None]:
    """Return `rows`, which are positions in the table, ascending, and the weight of each."""
    if weights is None:
        return np.sort(rows), None  # many times faster than argsort, which only weights need
    order = np.argsort(rows)
    return rows[order], weights[order]


def _by_first_appearance(codes: Codes, n_codes: int) -> tuple[Codes, Codes, Codes]:
    """Renumber `codes`, (n,), which are numbers below `n_codes`, by first appearance.

    Return three results: the new number of each row, (n,), the old code of each new number, and the new number of each
    old code, (n_codes,), −1 if no row has this code.
    """
    present = pd.unique(codes)  # in order of first appearance
    renumbered = np.full(n_codes, -1, dtype=np.int32)
    renumbered[present] = np.arange(len(present), dtype=np.int32)
    return renumbered[codes], present, renumbered

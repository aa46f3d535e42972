"""From a fetched table to clean interactions: codes, times, duplicates."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

from svc.errors import MinDataViolation, TimeUnitRequired
from svc.recipe.schema import Cleansing, InteractionSchema
from svc.recipe.serving_schema import Popular
from svc.training.data.stable_sort import stable_order
from svc.training.data.times import (
    BAD_TIME,
    NO_START,
    bad_times,
    blank_ids,
    from_reference,
    future_times,
    reference_time,
    to_nanoseconds,
    unit_of,
)
from svc.training.data.weights import (
    RowWeights,
    Weights,
    in_single_precision,
    of_events,
    of_numbers,
    recent_choices,
)
from svc.training.data.where import KeptRows

Dedup = Literal["sum", "max", "count", "keep_last", "keep_first", "none"]
Codes = NDArray[np.int32]
LIKE_SEEN: Final = np.float32(0.5)
"""Value of a hidden pair whose item a request with `include_seen` may show."""
_FIRST_ROWS: Final = 1000
_COMBINED = {"sum": np.add, "count": np.add, "max": np.maximum}
Times = NDArray[np.int64]


class HiddenRows(NamedTuple):
    """Rows that are no choices, (h,) each, and whose items are not shown to their users.

    `times` is None if no times are read. `always` is True for an excluded event. Its item is never shown. `always` is
    False for a row of `cleansing.hide`, whose item a request with `include_seen` may show.
    """

    users: Codes
    items: Codes
    times: Times | None
    always: NDArray[np.bool_]

    def of_rows(self, rows: NDArray[Any]) -> HiddenRows | None:
        """Return the rows at `rows`, a mask or positions. Return None if there are none."""
        times = None if self.times is None else self.times[rows]
        some = HiddenRows(self.users[rows], self.items[rows], times, self.always[rows])
        return some if len(some.users) else None

    def matrix(self, n_users: int, n_items: int) -> sparse.csr_matrix:
        """Return the matrix of hidden pairs, (n_users, n_items).

        An entry is 1 if the item is always hidden, and LIKE_SEEN if a request with `include_seen` may show it.
        """
        values = np.where(self.always, 1.0, float(LIKE_SEEN))
        rows, most = _distinct_pairs((self.users, self.items), None, values, "max", n_items)
        assert most is not None, "values are given"
        pairs = self.users[rows], self.items[rows]
        return sparse.csr_matrix((most.astype(np.float32), pairs), shape=(n_users, n_items))


class HiddenUnknown(NamedTuple):
    """Hidden rows of items that no user chose. Their `items` are positions in `item_ids`."""

    rows: HiddenRows
    item_ids: list[str]


@dataclass(frozen=True, slots=True)
class FutureRows:
    """Number of rows later than `start`, and a message about the first of them.

    `start` is in nanoseconds since 1970.
    """

    count: int
    detail: str
    start: int


@dataclass(frozen=True, slots=True, eq=False)
class Interactions:
    """Clean interactions, in the order of the source.

    `users` and `items` are (n,) rows of `user_ids` and `item_ids`, which are in order of first appearance. `times` is
    (n,) nanoseconds since 1970, or None if the recipe does not use time. `weights` is (n,) float32, or None if every
    row counts 1. `hidden` has the rows that hide their item from their user. `hidden_unknown` has the other ones, whose
    item is not in `item_ids`.

    `dropped` counts the rows that cleansing removed, by reason. `reasons` has messages for unusable rows. `reference`
    is the time from which ages count, None without times. `future` has the rows later than the start of the training,
    None if there are none.

    `dropped_by_where` counts the rows that cleansing.where dropped. It is None if the recipe has no such filter.
    `dropped["where"]` is the same count if it is not zero. `hidden_by_rule` counts the rows of cleansing.hide, None
    without that filter.

    `deferred_dedup` is the rule that joins several rows of one user and item after the split, else "none".
    `popularity`, (i,), is the recent popularity of each item, or None if all choices count alike.
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
    dropped_by_where: int | None = None
    deferred_dedup: Dedup = "none"
    popularity: NDArray[np.float64] | None = None
    hidden_by_rule: int | None = None
    hidden_unknown: HiddenUnknown | None = None

    def __len__(self) -> int:
        return len(self.users)

    @property
    def drop_count(self) -> int:
        return sum(self.dropped.values())

    @property
    def filter_counts(self) -> dict[str, int]:
        """Return the number of rows that each filter took, by its name in events and headers."""
        counts = {"dropped_by_where": self.dropped_by_where, "hidden_by_rule": self.hidden_by_rule}
        return {name: count for name, count in counts.items() if count is not None}

    @property
    def n_unusable(self) -> int:
        """Return the number of rows without an id or a time. Duplicates do not count."""
        return sum(self.dropped.get(reason, 0) for reason in self.reasons)

    @property
    def has_weights(self) -> bool:
        """Return whether pairs have weights, from a column or from the sum or count of their rows."""
        return self.weights is not None or self.deferred_dedup in {"sum", "count"}

    def of_rows(self, rows: NDArray[np.int64]) -> Interactions:
        """Return the rows at `rows`, (r,), with the same users and items."""
        return replace(
            self,
            users=self.users[rows],
            items=self.items[rows],
            times=None if self.times is None else self.times[rows],
            weights=None if self.weights is None else self.weights[rows],
        )

    def collapse(self) -> Interactions:
        """Return one row for each user and item, joined by `deferred_dedup`.

        Raise WeightOutOfRange for an infinite sum.
        """
        if self.deferred_dedup == "none":
            return self
        rated = None if self.weights is None else self.weights.astype(np.float64)
        rows, weights = _distinct_pairs(
            (self.users, self.items), self.times, rated, self.deferred_dedup, len(self.item_ids)
        )
        pairs = replace(self.of_rows(rows), deferred_dedup="none")
        if weights is not None:
            summed = in_single_precision(
                weights, lambda row: _pair(row, pairs.users, self.user_ids, pairs.items, self.item_ids)
            )
            return replace(pairs, weights=summed)
        return pairs

    def matrix(self) -> sparse.csr_matrix:
        """Return the float32 matrix of the pairs, (users, items).

        An entry is the number of rows of the pair, or the sum of their weights.
        Raise WeightOutOfRange for an infinite sum.
        """
        if self.deferred_dedup != "none":
            return self.collapse().matrix()
        if self.weights is None:
            return self._sparse(np.ones(len(self), dtype=np.float32), self.users, self.items)
        matrix = self._sparse(self.weights, self.users, self.items)
        in_single_precision(matrix.data, lambda _: "what the weights of one user and item add up to")
        return matrix

    def hidden_matrix(self) -> sparse.csr_matrix | None:
        """Return the matrix of hidden pairs, (users, items), or None if no pair is hidden."""
        return None if self.hidden is None else self.hidden.matrix(len(self.user_ids), len(self.item_ids))

    def latest(self) -> sparse.csr_matrix:
        """Return the nanoseconds from `reference` to each pair's latest time.

        The matrix is int64, (users, items), with the entries of `matrix`.
        """
        assert self.times is not None and self.reference is not None, "whoever asks for times has had them read"
        order = np.lexsort((self.times, self.items, self.users))
        users, items = self.users[order], self.items[order]
        last = np.ones(len(order), dtype=bool)
        last[:-1] = (users[1:] != users[:-1]) | (items[1:] != items[:-1])
        return self._sparse(self.ages(self.times[order][last], self.reference), users[last], items[last])

    def ages(self, times: Times, reference: int) -> Times:
        """Return nanoseconds from `reference` to each of `times`.

        Times in the future count as the start of the training.
        """
        return from_reference(times if self.future is None else np.minimum(times, self.future.start), reference)

    def _sparse(self, values: NDArray[Any], users: Codes, items: Codes) -> sparse.csr_matrix:
        shape = (len(self.user_ids), len(self.item_ids))
        matrix = sparse.coo_matrix((values, (users, items)), shape=shape).tocsr()
        matrix.sum_duplicates()
        return matrix


def from_rows(
    rows: KeptRows,
    schema: InteractionSchema,
    cleansing: Cleansing,
    *,
    with_times: bool,
    started_ns: int = NO_START,
    repeats: bool = False,
    popular: Popular | None = None,
) -> Interactions:
    """Clean `rows`, with categorical text in their id columns.

    Thresholds are not checked here.

    `started_ns` is the start of the training, in nanoseconds since 1970. With `repeats`, duplicates stay until the rows
    have been split. `popular` needs times. Raise MinDataViolation if no row is left, TimeUnitRequired for numeric
    times without a unit, and WeightOutOfRange.
    """
    frame, positions = rows.frame, rows.positions
    users, user_names = _codes(frame[schema.user_column])
    items, item_names = _codes(frame[schema.item_column])
    times = _times(frame, schema) if with_times else None
    dropped: dict[str, int] = {"where": rows.n_dropped or 0}
    reasons: dict[str, str] = {}
    keep = _known_ids(users, items, dropped)
    if not keep.all():
        reasons["null_ids"] = blank_ids({schema.user_column: users < 0, schema.item_column: items < 0}, positions)
    if times is not None:
        bad = keep & (times == BAD_TIME)
        dropped["bad_times"] = int(np.count_nonzero(bad))
        keep &= ~bad
        if bad.any() and schema.time_column is not None:
            name = schema.time_column
            reasons["bad_times"] = bad_times(frame[name], bad, name, schema.time_unit, positions)
    rated = _row_weights(frame, schema, cleansing)
    ruled = np.zeros(len(keep), dtype=bool) if rows.hides is None else rows.hides
    excluded = np.zeros(len(keep), dtype=bool) if rated is None else rated.hides
    hiding = keep & (ruled | excluded)
    hidden = HiddenRows(users[hiding], items[hiding], None if times is None else times[hiding], excluded[hiding])
    by_rule = int(np.count_nonzero(hiding & ruled))
    dropped["hide"], dropped["excluded_events"] = by_rule, len(hidden.users) - by_rule
    keep &= ~hiding
    if rated is not None:
        unknown = keep & np.isnan(rated.values)
        dropped[rated.problem] = int(np.count_nonzero(unknown))
        keep &= ~unknown
    users, items = users[keep], items[keep]
    future = None if times is None else _future_rows(rows, schema, keep & (times > started_ns), started_ns)
    times = None if times is None else times[keep]
    weights = None if rated is None else rated.values[keep]
    recent = None
    if popular is not None:
        assert times is not None, "times are read where popularity depends on them"
        recent = recent_choices(users, items, times, len(item_names), popular, started_ns=started_ns)
    if cleansing.dedup != "none" and not repeats:
        kept, weights = _distinct_pairs((users, items), times, weights, cleansing.dedup, len(item_names))
        dropped["duplicates"] = len(users) - len(kept)
        users, items = users[kept], items[kept]
        times = None if times is None else times[kept]
    users, user_ids, row_of = _by_first_appearance(users, user_names)
    items, item_ids, column_of = _by_first_appearance(items, item_names)
    hidden = hidden._replace(users=row_of[hidden.users])
    is_chosen = column_of[hidden.items] >= 0
    of_known, of_unknown = (hidden.of_rows((hidden.users >= 0) & which) for which in (is_chosen, ~is_chosen))
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
        None if of_known is None else of_known._replace(items=column_of[of_known.items]),
        None if times is None else reference_time(times, started_ns),
        future,
        rows.n_dropped,
        cleansing.dedup if repeats else "none",
        None if recent is None else _of_present(recent, column_of, len(item_ids)),
        None if rows.hides is None else by_rule,
        None if of_unknown is None else _hidden_unknown(of_unknown, item_names),
    )


def _of_present(values: NDArray[np.float64], column_of: Codes, n_items: int) -> NDArray[np.float64]:
    """Return the `values` of codes by item number, (n_items,).

    Codes without a number are left out.
    """
    by_number = np.empty(n_items)
    by_number[column_of[column_of >= 0]] = values[column_of >= 0]
    return by_number


def _pair(row: int, users: Codes, user_ids: list[str], items: Codes, item_ids: list[str]) -> str:
    return f"the weight of user {user_ids[users[row]]!r:.40} and item {item_ids[items[row]]!r:.40}"


def _future_rows(rows: KeptRows, schema: InteractionSchema, which: NDArray[np.bool_], start: int) -> FutureRows | None:
    if not which.any():
        return None
    name = schema.time_column
    assert name is not None, "rows are late by the time column"
    detail = future_times(rows.frame[name], which, name, rows.positions)
    return FutureRows(int(np.count_nonzero(which)), detail, start)


def _row_weights(frame: pd.DataFrame, schema: InteractionSchema, cleansing: Cleansing) -> RowWeights | None:
    if schema.weight_column is not None:
        return of_numbers(frame[schema.weight_column])
    if schema.event_column is not None:
        return of_events(frame[schema.event_column], cleansing.event_weights or {})
    return None


def _hidden_unknown(hidden: HiddenRows, names: NDArray[np.object_]) -> HiddenUnknown:
    """Return hidden rows with their items renumbered, and the names of these items. Items are codes of `names`."""
    items, item_ids, _ = _by_first_appearance(hidden.items, names)
    return HiddenUnknown(hidden._replace(items=items), item_ids)


def _codes(column: pd.Series) -> tuple[Codes, NDArray[np.object_]]:
    """Return (n,) codes into names, and the names.

    The code is −1 for a null or blank id.
    """
    categorical = column.array if isinstance(column.dtype, pd.CategoricalDtype) else column.astype("category").array
    names = np.asarray([str(name) for name in categorical.categories], dtype=object)
    codes = np.asarray(categorical.codes, dtype=np.int32)
    blank = np.asarray([not name.strip() for name in names], dtype=bool)
    if blank.any():
        codes = np.where((codes >= 0) & blank[codes], np.int32(-1), codes)
    return codes, names


def _known_ids(users: Codes, items: Codes, dropped: dict[str, int]) -> NDArray[np.bool_]:
    keep = (users >= 0) & (items >= 0)
    dropped["null_ids"] = len(keep) - int(np.count_nonzero(keep))
    return keep


def check_unused_times(frame: pd.DataFrame, schema: InteractionSchema) -> None:
    """Check the times that a training with this frame does not use.

    Raise TimeUnitRequired for numbers without a unit, and MinDataViolation if no value is a time. All values are read
    only if none of the first is a time.
    """
    name = schema.time_column
    if name is None or not len(frame):
        return
    for rows in (frame.head(_FIRST_ROWS), frame):
        bad = _times(rows, schema) == BAD_TIME
        if not bad.all():
            return
    raise MinDataViolation(
        f"no row has a time that can be read: {bad_times(frame[name], bad, name, schema.time_unit)}; "
        "mend schema.time_column or schema.time_unit, or leave schema.time_column out"
    )


def _times(frame: pd.DataFrame, schema: InteractionSchema) -> Times:
    assert schema.time_column is not None, "the recipe asks for time_column wherever times are used"
    column = frame[schema.time_column]
    if pd.api.types.is_numeric_dtype(column.dtype) and schema.time_unit is None:
        raise TimeUnitRequired(
            f"schema.time_column {schema.time_column!r} holds numbers: say what they count in schema.time_unit "
            f"(s, ms, us or ns{unit_of(column)}), or in Python as svc.train(..., time_unit=...)."
        )
    return to_nanoseconds(column, schema.time_unit)


def _distinct_pairs(
    pairs: tuple[Codes, Codes], times: Times | None, weights: Weights | None, dedup: Dedup, n_items: int
) -> tuple[NDArray[np.int64], Weights | None]:
    """Return the latest row of each (user, item), ascending, and its weight.

    Rows are ordered by time if there is one, else by place. `keep_first` takes only the weight of the first row. The
    place and the time of a pair come from its latest row under every `dedup`.
    """
    keys = pairs[0].astype(np.int64) * max(n_items, 1) + pairs[1]
    order = stable_order([keys] if times is None else [keys, times])
    ordered = keys[order]
    is_first = np.ones(len(ordered), dtype=bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    latest = order[np.append(is_first[1:], True)[: len(order)]]
    if weights is None and dedup not in {"sum", "count"}:
        return np.sort(latest), None  # many times faster than argsort, which is needed for weights only
    by_row = np.argsort(latest)
    worth = np.ones(len(keys)) if weights is None or dedup == "count" else weights
    if dedup in _COMBINED and len(keys):
        joined = _COMBINED[dedup].reduceat(worth[order], np.flatnonzero(is_first))
    else:
        joined = worth[order[is_first]] if dedup == "keep_first" else worth[latest]
    return latest[by_row], joined[by_row]


def _by_first_appearance(codes: Codes, names: NDArray[np.object_]) -> tuple[Codes, list[str], Codes]:
    """Return codes renumbered by first appearance, the names that occur, and the new number of each code or −1.

    The names are in order of first appearance.
    """
    n = len(codes)
    first = np.full(len(names), n, dtype=np.int64)
    first[codes[::-1]] = np.arange(n - 1, -1, -1)  # when several values are assigned to one index, numpy keeps the last
    present = np.flatnonzero(first < n)
    present = present[np.argsort(first[present])]
    renumbered = np.full(len(names), -1, dtype=np.int32)
    renumbered[present] = np.arange(len(present), dtype=np.int32)
    return renumbered[codes], names[present].tolist(), renumbered

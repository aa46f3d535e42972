"""Compute the weights of interactions from a weight column or events, from their age, and from their order.

The half-life, the age at which an interaction counts half, is a parameter of a trial under the name HALF_LIFE.
Recommenders do not have this parameter. They are trained on a matrix to which the decay has been applied.

`svc.model.history` defines how the order of a history affects its weights, and weighs the history of one request. This
module weighs the histories of many users at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

from svc.errors import WeightOutOfRange
from svc.model.history import decay_factors
from svc.model.weight_scale import Scale, scale_of, scale_weights
from svc.recipe.serving_schema import Popular
from svc.recipe.training_schema import seconds
from svc.stable_sort import stable_order
from svc.training.data.times import as_numbers, from_reference, reference_time

Weights = NDArray[np.float64]
Event = float | Literal["exclude"]
Codes = NDArray[np.int32]
Dedup = Literal["sum", "max", "count", "keep_last", "keep_first", "none"]
_COMBINED = {"sum": np.add, "count": np.add, "max": np.maximum}


@dataclass(frozen=True, slots=True, eq=False)
class RowWeights:
    """The weights of the rows of a table.

    - `values`, (n,), are the weights, NaN if a row has no usable weight.
    - `hides`, (n,), is True if the row's event has the weight "exclude". Its item is then hidden from its user.
    - `problem` is the reason for NaN, as a key for counts of dropped rows.
    - `codes`, (n,), is the position of each row's event in `events`, −1 if it is missing. Without events, it is None.
    """

    values: Weights
    hides: NDArray[np.bool_]
    problem: str
    codes: NDArray[np.integer[Any]] | None = None
    events: tuple[str, ...] = ()

    def is_among(self, chosen: Collection[str] | None, rows: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
        """Return whether the event of each of `rows`, a mask, is among `chosen`. None: all events are."""
        if chosen is None or self.codes is None:
            return None
        # A missing event has code −1, which selects the last element.
        flags: NDArray[np.bool_] = np.asarray([*(event in chosen for event in self.events), False])[self.codes[rows]]
        return flags

    def counts(self) -> dict[str, int]:
        """Return the number of rows with each event, the most frequent event first."""
        if self.codes is None:
            return {}
        counts = np.bincount(self.codes + 1, minlength=1 + len(self.events))[1:]
        # Names that differ by blanks at an end are one event.
        joined = pd.Series(counts, index=self.events).groupby(level=0).sum().sort_values(ascending=False, kind="stable")
        return {str(event): int(count) for event, count in joined.items() if count}


def of_numbers(column: pd.Series) -> RowWeights:
    """Return the numbers of a weight column, with NaN for anything but a finite number above zero."""
    values = as_numbers(column)
    usable = np.isfinite(values) & (values > 0.0)
    return RowWeights(np.where(usable, values, np.nan), np.zeros(len(values), dtype=bool), "bad_weights")


def in_single_precision(values: NDArray[np.floating], name: Callable[[int], str]) -> NDArray[np.float32]:
    """Return `values`, weights or sums of weights, as float32.

    Raise WeightOutOfRange if a value becomes infinite or 0 in float32. Its message calls the value `name(position)`.
    """
    with np.errstate(over="ignore", under="ignore"):
        rounded = values.astype(np.float32, copy=False)
    # A weight that rounds to 0 would be no interaction at all.
    usable = np.isfinite(rounded) & (rounded > 0)
    if not usable.all():
        first_unusable = int(np.argmin(usable))
        raise WeightOutOfRange(
            f"{name(first_unusable)} is {values[first_unusable]:g}, and a model holds weights from 1e-45 to 3.4e+38: "
            "rescale schema.weight_column, or cleansing.event_weights"
        )
    return rounded


def of_events(column: pd.Series, weights: Mapping[str, Event]) -> RowWeights:
    """Return the weight of each row's event, NaN if the event is missing, excluded or not in `weights`.

    Events are compared with the names in `weights` as text without surrounding blanks.
    """
    events = column.astype("category").array
    names = [str(name).strip() for name in events.categories]
    worth = [weights.get(name) for name in names]
    values = np.asarray(
        [np.nan if weight is None or weight == "exclude" else float(weight) for weight in worth] + [np.nan]
    )
    hides = np.asarray([weight == "exclude" for weight in worth] + [False])
    codes = np.asarray(events.codes)  # a missing event has code −1, which selects the last element: NaN and False
    return RowWeights(values[codes], hides[codes], "unlisted_events", codes, tuple(names))


def by_pair(users: Codes, items: Codes, times: NDArray[np.int64] | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return a key for each row's (user, item) pair, (n,), and the positions that sort the rows by this key.

    Rows of the same pair are sorted by time if times are read, and then by position.
    """
    # One number for each pair, so that one comparison tells whether neighbours are of one pair.
    keys = users.astype(np.int64) * (1 + int(items.max(initial=0))) + items
    return keys, stable_order(*(key for key in (keys, times) if key is not None))


def distinct_pairs(
    users: Codes,
    items: Codes,
    times: NDArray[np.int64] | None,
    weights: NDArray[Any] | None = None,
    dedup: Dedup = "keep_last",
) -> tuple[NDArray[np.int64], NDArray[Any] | None]:
    """Return the position of the latest row of each (user, item) pair, and the joined weight of the pair, by pair.

    Rows are ordered as by `by_pair`. A pair has the position of its latest row under every `dedup`. Under `keep_first`,
    only its weight comes from the first row. The weights are None if every pair weighs 1: without `weights`, unless
    rows are summed or counted.
    """
    keys, order = by_pair(users, items, times)
    ordered = keys[order]
    is_first = np.ones(len(ordered), dtype=bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    # The slice is for an empty table, to which `append` adds an element.
    latest = order[np.append(is_first[1:], True)[: len(order)]]
    if weights is None and dedup not in {"sum", "count"}:
        return latest, None
    worth = np.ones(len(keys)) if weights is None or dedup == "count" else weights
    # The rows of a pair are neighbours now, so one pass adds them.
    if dedup in _COMBINED:
        return latest, _COMBINED[dedup].reduceat(worth[order], np.flatnonzero(is_first))
    return latest, worth[order[is_first]] if dedup == "keep_first" else worth[latest]


HALF_LIFE = "half_life"
POPULARITY_HALF_LIFE = "popularity_half_life"
"""Parameter with the half-life of popularity in a blend. It is applied in addition to HALF_LIFE."""
NO_DECAY = "none"
"""The value of a half-life with which no interaction loses weight."""
WEIGHT_SCALE = "weight_scale"
"""The scale of the weights (see `svc.model.weight_scale`), a parameter of a trial like HALF_LIFE. Without it, weights
are used as they are.
"""
_LEAST = 2.0**-20
"""Lower bound of the decay factor. It is above 0, because even an old interaction marks the item as seen."""


def weight_scale(matrix: sparse.csr_matrix, params: Mapping[str, Any]) -> Scale | None:
    """Return the scale in `params`, with its unit in `matrix`, (users, items). None: weights stay as they are."""
    return scale_of(str(params[WEIGHT_SCALE]), matrix.data) if WEIGHT_SCALE in params else None


def decay_matrix(
    matrix: sparse.csr_matrix, times: sparse.csr_matrix | None, params: Mapping[str, Any]
) -> sparse.csr_matrix:
    """Return `matrix`, (users, items), with weights on the scale and decayed by the half-life in `params`.

    Without a scale and a half-life, `matrix` is returned unchanged. `times` has the time of each entry of `matrix`, in
    nanoseconds from the reference time. Interactions at or after the reference time keep their full weight. If `times`
    is None, nothing is decayed.

    Raise WeightOutOfRange if a weight becomes infinite or 0 in float32.
    """
    scale = weight_scale(matrix, params)
    if scale is not None:
        scaled = scale_weights(matrix.data, scale, matrix.indptr).astype(np.float32)
        matrix = sparse.csr_matrix((scaled, matrix.indices, matrix.indptr), shape=matrix.shape)
    half_life_s = seconds(params.get(HALF_LIFE, NO_DECAY))
    if half_life_s is None or times is None or not matrix.nnz:
        return matrix
    factors = np.maximum(np.exp2(np.minimum(times.data, 0) / 1e9 / half_life_s), _LEAST)
    data = in_single_precision(matrix.data * factors, lambda _: "a weight after training.time_decay")
    return sparse.csr_matrix((data, matrix.indices, matrix.indptr), shape=matrix.shape)


def positions_of(times: sparse.csr_matrix) -> sparse.csr_matrix:
    """Return the position of each entry of `times` in the history of its user, (users, items) int32.

    The latest item has position 0. Items with the same time have the same position.
    """
    lengths = np.diff(times.indptr)
    filled = lengths > 0
    order, ties = in_order(times)
    steps = np.cumsum(~ties, dtype=np.int32)
    positions = np.empty(len(order), dtype=np.int32)
    positions[order] = steps - np.repeat(steps[times.indptr[:-1][filled]], lengths[filled])
    return sparse.csr_matrix((positions, times.indices, times.indptr), shape=times.shape)


def weigh_rows(
    matrix: sparse.csr_matrix, positions: sparse.csr_matrix, recency: float, rows: NDArray[np.int64] | None = None
) -> sparse.csr_matrix:
    """Return `matrix`, (users, items), or only its `rows`, with entries decayed by `recency` and position, in float64.

    `positions` has the position of each entry of `matrix` (see `positions_of`).
    """
    chosen, places = (matrix, positions) if rows is None else (matrix[rows], positions[rows])
    data = chosen.data * decay_factors(places.data, recency)
    return sparse.csr_matrix((data, chosen.indices, chosen.indptr), shape=chosen.shape)


def in_order(matrix: sparse.csr_matrix) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return how to reorder the entries of a CSR matrix so that each row is in descending order, and a mask of ties.

    If the entries are positions in histories (see `positions_of`), each row is then oldest first. If they are times, it
    is latest first. Both results, (nnz,), are in the new order. The first has the place of each entry in the data of
    `matrix`. The mask is True for an entry that equals the entry before it in its row.
    """
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    order = stable_order(rows, -matrix.data)
    descending = matrix.data[order]
    ties = np.zeros(len(order), dtype=np.bool_)
    ties[1:] = (descending[1:] == descending[:-1]) & (rows[1:] == rows[:-1])
    return order, ties


_NANOSECONDS = 1_000_000_000
MOST_HALF_LIVES: Final = 500
"""How many half-lives a choice may be later than the usual latest one. 2**-1074 is the least number above 0."""


def recent_choices(
    users: NDArray[np.int32],
    items: NDArray[np.int32],
    times: NDArray[np.int64],
    n_items: int,
    rule: Popular,
    *,
    started_ns: int,
) -> NDArray[np.float64]:
    """Return the recent popularity of each item, (n_items,), up to a common factor.

    It is the number of users who chose the item, each weighted by the age of the latest choice as `rule` says. A choice
    in the future counts like one at `started_ns`, the start of the training.

    `users`, `items` and `times` (nanoseconds since 1970) have one element for each row. A user may have several rows of
    an item.
    """
    rows, _ = distinct_pairs(users, items, times)
    chosen, latest = items[rows], np.minimum(times[rows], started_ns)
    if rule.window_s is not None:
        is_recent = from_reference(latest, started_ns) >= -rule.window_s * _NANOSECONDS
        chosen, latest = chosen[is_recent], latest[is_recent]
    counts = np.ones(len(chosen))
    if rule.half_life_s is not None and len(chosen):
        # Ages count from the latest choice, not from the start of the training. This scales all counts by one factor,
        # so reruns agree and the counts of old data do not all round to 0. They do not round to 0 either if one choice
        # is years later than the others, because it counts as 500 half-lives after the usual latest.
        spared = min(int(MOST_HALF_LIVES * rule.half_life_s * _NANOSECONDS), np.iinfo(np.int64).max)
        since_reference = from_reference(latest, reference_time(latest, started_ns))
        newest = min(int(since_reference.max()), spared)
        since_latest = from_reference(np.minimum(since_reference, newest), newest)
        # Choices are added in order of age. Floating-point sums depend on the order, and two items whose choices have
        # the same ages must have exactly equal sums, so that ties between them are broken by column.
        by_age = stable_order(since_latest)
        chosen, counts = chosen[by_age], np.exp2(since_latest[by_age] / _NANOSECONDS / rule.half_life_s)
    return np.bincount(chosen, weights=counts, minlength=n_items).astype(np.float64)

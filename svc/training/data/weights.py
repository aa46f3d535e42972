"""The weight of an interaction: from a weight column or its event, from its age, and from its place in a history.

The half-life of weights is a parameter of a trial like any other, under the name HALF_LIFE. Recommenders never see it.
They only see the decayed matrix. `svc.model.history` defines positions in histories and their weights, and weighs the
history of one request. This module weighs the histories of many users at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

from svc.errors import WeightOutOfRange
from svc.model.history import decay_factors
from svc.recipe.serving_schema import Popular
from svc.recipe.training_schema import seconds
from svc.training.data.stable_sort import stable_order
from svc.training.data.times import from_reference

Weights = NDArray[np.float64]
Event = float | Literal["exclude"]


@dataclass(frozen=True, slots=True, eq=False)
class RowWeights:
    """Weights of rows.

    `values` is (n,), NaN if a row has no usable weight. `hides` is (n,), True if the row's event is excluded. `problem`
    names the reason for NaN in counts of dropped rows.
    """

    values: Weights
    hides: NDArray[np.bool_]
    problem: str


def of_numbers(column: pd.Series) -> RowWeights:
    """Return the numbers of a weight column, with NaN for anything but a finite number above zero."""
    plain = column.astype(object) if isinstance(column.dtype, pd.CategoricalDtype) else column
    values = pd.to_numeric(plain, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    usable = np.isfinite(values) & (values > 0.0)
    return RowWeights(np.where(usable, values, np.nan), np.zeros(len(values), dtype=bool), "bad_weights")


def in_single_precision(values: NDArray[np.floating], name: Callable[[int], str]) -> NDArray[np.float32]:
    """Return `values`, weights or sums of weights, as float32.

    `name` describes the value at a position, for the message. Raise WeightOutOfRange for the first value that becomes
    infinite or 0.
    """
    with np.errstate(over="ignore", under="ignore"):
        rounded = values.astype(np.float32, copy=False)
    usable = np.isfinite(rounded) & (rounded > 0)
    if not usable.all():
        first_unusable = int(np.argmin(usable))
        raise WeightOutOfRange(
            f"{name(first_unusable)} is {values[first_unusable]:g}, and a model holds weights from 1e-45 to 3.4e+38: "
            "rescale schema.weight_column, or cleansing.event_weights"
        )
    return rounded


def of_events(column: pd.Series, weights: Mapping[str, Event]) -> RowWeights:
    """Return the weight of each row's event, compared as text without surrounding blanks."""
    events = column.astype("category").array
    names = [str(name).strip() for name in events.categories]
    worth = [weights.get(name) for name in names]
    values = np.asarray(
        [np.nan if weight is None or weight == "exclude" else float(weight) for weight in worth] + [np.nan]
    )
    hides = np.asarray([weight == "exclude" for weight in worth] + [False])
    codes = np.asarray(events.codes)  # a missing event has code −1, the last place
    return RowWeights(values[codes], hides[codes], "unlisted_events")


HALF_LIFE = "half_life"
POPULARITY_HALF_LIFE = "popularity_half_life"
"""Half-life of popularity inside a blend, which is applied in addition to the half-life of the matrix."""
NO_DECAY = "none"
_LEAST = 2.0**-20
"""Lower bound of the decay factor: an old interaction still says that the user has seen the item."""


def decay_matrix(
    matrix: sparse.csr_matrix, times: sparse.csr_matrix | None, params: Mapping[str, Any]
) -> sparse.csr_matrix:
    """Return `matrix` with the decay of the half-life in `params`, or `matrix` itself without a half-life.

    `times` has the entries of `matrix`, in nanoseconds from the reference time. Interactions at or after the reference
    time keep their full weight.
    """
    half_life_s = seconds(params.get(HALF_LIFE, NO_DECAY))
    if half_life_s is None or times is None or not matrix.nnz:
        return matrix
    factors = np.maximum(np.exp2(np.minimum(times.data, 0) / 1e9 / half_life_s), _LEAST)
    data = in_single_precision(matrix.data * factors, lambda _: "a weight after training.time_decay")
    return sparse.csr_matrix((data, matrix.indices, matrix.indptr), shape=matrix.shape)


def positions_of(times: sparse.csr_matrix) -> sparse.csr_matrix:
    """Return (users, items) int32 with the entries of `times`: each pair's position in its row, by time."""
    lengths = np.diff(times.indptr)
    rows = np.repeat(np.arange(times.shape[0]), lengths)
    order = stable_order([rows, -times.data])
    latest_first = times.data[order]
    is_earlier = np.zeros(len(order), dtype=np.bool_)
    is_earlier[1:] = (latest_first[1:] != latest_first[:-1]) & (rows[1:] == rows[:-1])
    steps = is_earlier.cumsum(dtype=np.int32)
    filled = lengths > 0
    positions = np.empty(len(order), dtype=np.int32)
    positions[order] = steps - np.repeat(steps[times.indptr[:-1][filled]], lengths[filled])
    return sparse.csr_matrix((positions, times.indices, times.indptr), shape=times.shape)


def weigh_rows(
    matrix: sparse.csr_matrix, positions: sparse.csr_matrix, recency: float, rows: NDArray[np.int64] | None = None
) -> sparse.csr_matrix:
    """Return `rows` of `matrix`, (users, items), or all, with older entries weighed less, in float64.

    `positions` has the entries of `matrix`.
    """
    chosen, places = (matrix, positions) if rows is None else (matrix[rows], positions[rows])
    data = chosen.data * decay_factors(places.data, recency)
    return sparse.csr_matrix((data, chosen.indices, chosen.indptr), shape=chosen.shape)


def in_order(positions: sparse.csr_matrix) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return (nnz,) positions of the entries of each row, oldest first, and a mask of ties.

    The mask is True for an entry that has the time of the one before.
    """
    rows = np.repeat(np.arange(positions.shape[0]), np.diff(positions.indptr))
    order = stable_order([rows, -positions.data])
    oldest_first = positions.data[order]
    ties = np.zeros(len(order), dtype=np.bool_)
    ties[1:] = (oldest_first[1:] == oldest_first[:-1]) & (rows[1:] == rows[:-1])
    return order, ties


_NANOSECONDS = 1_000_000_000


def recent_choices(
    users: NDArray[np.int32],
    items: NDArray[np.int32],
    times: NDArray[np.int64],
    n_items: int,
    rule: Popular,
    *,
    started_ns: int,
) -> NDArray[np.float64]:
    """Return the sum of the weights of each item's choices, (n_items,). One common factor may scale all sums.

    `users`, `items` and `times`, nanoseconds since 1970, have one entry for each row. A pair may have several rows.
    """
    order = stable_order([users, items, times])
    ordered_users, ordered_items = users[order], items[order]
    is_latest = np.ones(len(order), dtype=np.bool_)
    is_latest[:-1] = (ordered_users[1:] != ordered_users[:-1]) | (ordered_items[1:] != ordered_items[:-1])
    chosen, latest = ordered_items[is_latest], np.minimum(times[order][is_latest], started_ns)
    if rule.window_s is not None:
        is_recent = from_reference(latest, started_ns) >= -rule.window_s * _NANOSECONDS
        chosen, latest = chosen[is_recent], latest[is_recent]
    counts = np.ones(len(chosen))
    if rule.half_life_s is not None and len(chosen):
        # Ages count from the latest choice, not from the start of the training. This scales all counts by one factor,
        # so reruns agree and the counts of old data do not all round to 0.
        since_latest = from_reference(latest, int(latest.max()))
        # Rows are added by age: items with the same ages then have bitwise equal sums and stay in column order.
        by_age = stable_order([since_latest])
        chosen, counts = chosen[by_age], np.exp2(since_latest[by_age] / _NANOSECONDS / rule.half_life_s)
    return np.bincount(chosen, weights=counts, minlength=n_items).astype(np.float64)

"""Recent popularity of items for `serving.popular`.

Each user counts once for an item, by the latest row. A choice counts 2^(-age / half-life), or 1 without a half-life.
It counts nothing if it is older than the window. Ages count to the start of the training. Later rows have age 0.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from svc.training.data.stable_sort import stable_order
from svc.training.data.times import from_reference

_NANOSECONDS = 1_000_000_000


class AgeRule(Protocol):
    """A half-life and a window in seconds. None: every age counts alike."""

    @property
    def half_life_s(self) -> float | None: ...
    @property
    def window_s(self) -> float | None: ...


def recent_choices(
    users: NDArray[np.int32],
    items: NDArray[np.int32],
    times: NDArray[np.int64],
    n_items: int,
    rule: AgeRule,
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

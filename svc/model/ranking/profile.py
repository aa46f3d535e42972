"""The profile that a history makes: distinct item columns and their weights.

Without recency, order plays no part, so `settle_history` sorts the columns of a request's history and adds up weights.
With recency, it stays as given until it is known whether it stands alone or follows that of a training user. If each
part of a blend has its own recency, the profile is not weighed here but keeps the positions of its items. It also keeps
them for a cold-start part of another recency.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from svc.model.history import History
from svc.model.ranking.item_sets import added_up
from svc.model.ranking.query import Given, Seeds
from svc.model.recency import decay_weights, order_history


def settle_history(given: Given, history: History) -> Given:
    """Return `given` with its columns distinct and ascending, unless histories are ordered."""
    if history.is_ordered:
        return given
    columns, weights = added_up(given.columns, given.weights)
    return given._replace(columns=columns, weights=weights)


def profile_of(given: Given, history: History) -> Seeds:
    """Return the seeds for a request's history, as `settle_history` returns it, without that of a training user."""
    if not history.is_ordered or not len(given.columns):
        return Seeds(given.columns, given.weights)
    return _in_order(given.columns, given.weights, np.arange(len(given.columns)), history)


def joined_profile(history: History, user: int, given: Given) -> Seeds:
    """Return the seeds for the history of a training user, followed by the history of a request."""
    own_columns, values = history.items(user), history.values(user)
    weights = None
    if values is not None or given.weights is not None:
        own_values = np.ones(len(own_columns)) if values is None else values.astype(np.float64)
        more = np.ones(len(given.columns)) if given.weights is None else given.weights
        weights = np.concatenate([own_values, more])
    columns = np.concatenate([own_columns, given.columns])
    if not history.is_ordered:
        return Seeds(*added_up(columns, weights))
    times = np.concatenate([history.times(user), len(own_columns) + 1 + np.arange(len(given.columns))])
    return _in_order(columns, weights, times, history)


def _in_order(
    columns: NDArray[np.int32], weights: NDArray[np.float64] | None, times: NDArray[np.intp], history: History
) -> Seeds:
    by_time = order_history(columns, weights, times)
    if history.recency_by_part:
        return Seeds(*by_time)
    beside = (by_time.weights, by_time.positions) if history.recency_beside else None
    return Seeds(by_time.columns, decay_weights(by_time.weights, by_time.positions, history.recency), beside=beside)

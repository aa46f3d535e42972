"""Hold out part of the validation users' interactions.

Symbols: n_u is the number of distinct items of user u, r the held-out ratio.

random       floor(n_u·r) items of each validation user, drawn with the split's seed; time plays no part
time_user    the floor(n_u·r) latest items of each validation user
time_global  one cut-off for the whole table, the 1−r quantile of time: what is later trains nobody, and is held
             out for validation users who have a history before it
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from svc.training.interactions import Interactions
from svc.training.order import stable_order

Scheme = Literal["random", "time_user", "time_global"]
_SLACK = 1e-9  # 0.29 × 100 is 28.999999999999996 in floating point and must still hold out 29


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """How to split: `heldout_ratio` and `test_user_ratio` in (0, 1)."""

    scheme: Scheme
    heldout_ratio: float
    test_user_ratio: float
    seed: int


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """What the search trains on and what it is judged by.

    `train` is (users, items) float32 whose rows are `order`: users without held-out items first. Those with some
    begin at row `val_offset`; `heldout` has one row for each of these, in the same order, 1.0 at held-out items.
    """

    train: sparse.csr_matrix
    heldout: sparse.csr_matrix
    order: NDArray[np.int64]
    val_offset: int
    n_heldout: int


@dataclass(frozen=True, slots=True, eq=False)
class _Pairs:
    """Distinct (user, item) pairs, (m,) each, sorted by user; `place` is the row of the source that counts."""

    users: NDArray[np.int32]
    items: NDArray[np.int32]
    counts: NDArray[np.float32]
    times: NDArray[np.int64] | None
    place: NDArray[np.int64]


def split(interactions: Interactions, plan: SplitPlan) -> Split:
    """Split by `plan`. Seeded draws make it the same in every process."""
    pairs = _distinct(interactions)
    n_users = len(interactions.user_ids)
    chosen = _validation_users(n_users, plan)
    held, unused = _hold_out(pairs, chosen, plan)
    return _assemble(interactions, pairs, held, unused)


def smallest_working_ratio(interactions: Interactions, plan: SplitPlan) -> float | None:
    """The least `heldout_ratio` that holds out anything under the rest of `plan`; None when no ratio does."""
    pairs = _distinct(interactions)
    chosen = _validation_users(len(interactions.user_ids), plan)
    if plan.scheme == "time_global":
        return _smallest_global_ratio(pairs, chosen)
    largest = int(np.bincount(pairs.users, minlength=len(chosen))[chosen].max(initial=0))
    return math.ceil(1e6 / largest) / 1e6 if largest > 1 else None


def _distinct(interactions: Interactions) -> _Pairs:
    """The latest occurrence of each pair stands for all; `counts` says how many there were."""
    n_items = len(interactions.item_ids)
    keys = interactions.users.astype(np.int64) * n_items + interactions.items
    times = interactions.times
    order = stable_order([keys] if times is None else [keys, times])
    ordered = keys[order]
    last = np.ones(len(ordered), dtype=bool)
    last[:-1] = ordered[1:] != ordered[:-1]
    ends = np.flatnonzero(last)
    counts = np.diff(ends, prepend=-1).astype(np.float32)
    place = order[ends]
    return _Pairs(
        users=interactions.users[place],
        items=interactions.items[place],
        counts=counts,
        times=None if times is None else times[place],
        place=place,
    )


def _validation_users(n_users: int, plan: SplitPlan) -> NDArray[np.bool_]:
    n_chosen = min(n_users, max(1, math.floor(n_users * plan.test_user_ratio + _SLACK)))
    chosen = np.zeros(n_users, dtype=bool)
    if n_chosen == n_users:
        chosen[:] = True
    else:
        rng = np.random.default_rng([plan.seed, 1])
        chosen[rng.permutation(n_users)[:n_chosen]] = True
    return chosen


def _hold_out(pairs: _Pairs, chosen: NDArray[np.bool_], plan: SplitPlan) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """(m,) masks: pairs that are held out, and pairs that neither train nor validate."""
    if plan.scheme == "time_global":
        return _after_cutoff(pairs, chosen, plan.heldout_ratio)
    if plan.scheme == "random":
        within = np.random.default_rng([plan.seed, 2]).permutation(len(pairs.users))
        order = stable_order([pairs.users, within])
    else:
        assert pairs.times is not None, "time schemes come with times"
        order = stable_order([pairs.users, pairs.times, pairs.place])
    held = np.zeros(len(pairs.users), dtype=bool)
    held[order] = _last_of_each(pairs.users, len(chosen), plan.heldout_ratio)
    held &= chosen[pairs.users]
    return held, np.zeros_like(held)


def _last_of_each(users: NDArray[np.int32], n_users: int, ratio: float) -> NDArray[np.bool_]:
    """For pairs sorted by user, True at the last floor(n_u·r) of each."""
    sizes = np.bincount(users, minlength=n_users)
    n_held = np.floor(sizes * ratio + _SLACK).astype(np.int64)
    ends = np.cumsum(sizes)
    return np.asarray(np.arange(len(users)) >= (ends - n_held)[users])


def _cutoff(times: NDArray[np.int64], ratio: float) -> int:
    at = math.floor((1.0 - ratio) * (len(times) - 1) + _SLACK)
    return int(np.partition(times, at)[at])


def _after_cutoff(
    pairs: _Pairs, chosen: NDArray[np.bool_], ratio: float
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    assert pairs.times is not None, "time schemes come with times"
    late = pairs.times > _cutoff(pairs.times, ratio)
    has_history = np.zeros(len(chosen), dtype=bool)
    has_history[pairs.users[~late]] = True
    held = late & (chosen & has_history)[pairs.users]
    return held, late & ~held


def _assemble(
    interactions: Interactions,
    pairs: _Pairs,
    held: NDArray[np.bool_],
    unused: NDArray[np.bool_],
) -> Split:
    n_users, n_items = len(interactions.user_ids), len(interactions.item_ids)
    validated = np.zeros(n_users, dtype=bool)
    validated[pairs.users[held]] = True
    order = np.concatenate([np.flatnonzero(~validated), np.flatnonzero(validated)])
    row_of = np.empty(n_users, dtype=np.int32)
    row_of[order] = np.arange(n_users, dtype=np.int32)
    rows = row_of[pairs.users]
    offset = n_users - int(np.count_nonzero(validated))
    train = ~(held | unused)
    return Split(
        train=_csr(pairs.counts[train], rows[train], pairs.items[train], (n_users, n_items)),
        heldout=_csr(
            np.ones(int(held.sum()), np.float32), rows[held] - offset, pairs.items[held], (n_users - offset, n_items)
        ),
        order=order,
        val_offset=offset,
        n_heldout=int(np.count_nonzero(held)),
    )


def _csr(
    data: NDArray[np.float32], rows: NDArray[np.int32], columns: NDArray[np.int32], shape: tuple[int, int]
) -> sparse.csr_matrix:
    matrix = sparse.coo_matrix((data, (rows, columns)), shape=shape).tocsr()
    matrix.sort_indices()
    return matrix


def _smallest_global_ratio(pairs: _Pairs, chosen: NDArray[np.bool_]) -> float | None:
    """The cut-off just before the latest time of any validation user who also has an earlier one."""
    assert pairs.times is not None, "time schemes come with times"
    first = np.full(len(chosen), np.iinfo(np.int64).max)
    last = np.full(len(chosen), np.iinfo(np.int64).min)
    np.minimum.at(first, pairs.users, pairs.times)
    np.maximum.at(last, pairs.users, pairs.times)
    usable = chosen & (first < last)
    if not usable.any():
        return None
    n_before = int(np.count_nonzero(pairs.times < last[usable].max()))
    return math.ceil((1.0 - (n_before - 0.5) / (len(pairs.times) - 1)) * 1e9) / 1e9

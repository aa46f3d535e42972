"""Hold out part of the validation users' interactions.

Symbols: n_u is the number of distinct items of user u, r the held-out ratio. If an item may be chosen again, rows
take the place of distinct items. A held-out item may then also be in its user's training rows.

random       floor(n_u·r) items of each validation user, drawn with the split's seed. Time plays no part
time_user    the floor(n_u·r) latest items of each validation user
time_global  one cut-off for the whole table, the 1−r quantile of time. Later pairs are not trained on. They are
             held out for validation users who have a history before the cut-off
leave_one_out  the latest item of each validation user who has two or more. r plays no part. Without a time
             column, the latest item is the one furthest down in the table

With a test share t, floor(v·t) of the v users with held-out items, at least one, are set aside. No trial is scored
on them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from svc.training.data.interactions import HiddenRows, Interactions
from svc.training.data.stable_sort import stable_order
from svc.training.data.weights import in_single_precision

Scheme = Literal["random", "time_user", "time_global", "leave_one_out"]
_SLACK = 1e-9  # 0.29 × 100 is 28.999999999999996 in floating point and must still hold out 29


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """How to split: `heldout_ratio` and `test_user_ratio` in (0, 1), `test` in [0, 1)."""

    scheme: Scheme
    heldout_ratio: float
    test_user_ratio: float
    seed: int
    test: float = 0.0
    keep_times: bool = False
    repeats: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Training and validation matrices of the search.

    `train` is (users, items) float32. Its rows are in `order`: users without held-out items come first, users with
    held-out items begin at row `val_offset`. `heldout` has one row for each of the latter, in the same order, with 1.0
    at held-out items. The columns of both are `item_order`: column c is item `item_order[c]` of the interactions.
    With weights, the values of `train` and `heldout` are the weights.

    `test` has the rows and columns of `heldout` and the held-out items of the users who are set aside. The rows of
    these users in `heldout` are empty. `test` is None without a test share.

    `times` has the entries of `train` if the plan keeps times. They are nanoseconds from the same time as in the final
    training. Under `time_global` they count from the cut-off, because the search knows nothing later.

    `hidden`, in rows and columns of `train`, has the items hidden from each user, as far as they were known before the
    held-out rows. No hidden pair is held out.
    """

    train: sparse.csr_matrix
    heldout: sparse.csr_matrix
    order: NDArray[np.int64]
    item_order: NDArray[np.int64]
    val_offset: int
    n_heldout: int
    test: sparse.csr_matrix | None = None
    times: sparse.csr_matrix | None = None
    hidden: sparse.csr_matrix | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Pairs:
    """Distinct (user, item) pairs, or rows, (m,) each, sorted by user.

    `source_rows` has the row of the interactions behind each pair.
    """

    users: NDArray[np.int32]
    items: NDArray[np.int32]
    counts: NDArray[np.float32]
    times: NDArray[np.int64] | None
    source_rows: NDArray[np.int64]

    def where(self, chosen: NDArray[np.bool_]) -> _Pairs:
        """Return the pairs at which `chosen`, (m,), is true."""
        times = None if self.times is None else self.times[chosen]
        return _Pairs(self.users[chosen], self.items[chosen], self.counts[chosen], times, self.source_rows[chosen])


def split(interactions: Interactions, plan: SplitPlan) -> Split:
    """Split `interactions` by `plan`.

    Draws are seeded, so the split is the same in every process.
    """
    pairs = _pairs_to_split(interactions, plan)
    n_users = len(interactions.user_ids)
    chosen = _validation_users(n_users, plan)
    held, unused = _hold_out(pairs, chosen, plan)
    hidden = _known_hidden(interactions.hidden, pairs, held, plan)
    interactions = replace(interactions, hidden=hidden)
    if hidden is not None:
        hidden_keys = _keys(hidden.users, hidden.items, interactions)
        shown = ~np.isin(_keys(pairs.users, pairs.items, interactions), hidden_keys)
        held, unused = held & shown, unused | (held & ~shown)
    trained, heldout = (
        _join_duplicates(interactions, part) if plan.repeats else part
        for part in (pairs.where(~(held | unused)), pairs.where(held))
    )
    result = _assemble(interactions, trained, heldout)
    if plan.keep_times:
        assert trained.times is not None, "whoever asks for times has had them read"
        ages = interactions.ages(trained.times, _reference(interactions, pairs, plan))
        result = replace(result, times=_times(trained, ages, result))
    return result if not plan.test else _set_aside(result, plan)


def _known_hidden(
    hidden: HiddenRows | None, pairs: _Pairs, held: NDArray[np.bool_], plan: SplitPlan
) -> HiddenRows | None:
    """Return the hidden rows from before the rows that are held out.

    A later hidden row reveals an item that the user met afterwards. With later rows, scores are 1 to 2% too good.
    All rows hide under `random`, which ignores times, and without times.
    """
    if hidden is None or hidden.times is None or pairs.times is None or plan.scheme == "random":
        return hidden
    if plan.scheme == "time_global":
        return hidden.of_rows(hidden.times <= _cutoff(pairs.times, plan.heldout_ratio))
    n_users = 1 + max(hidden.users.max(initial=0), pairs.users.max(initial=0))
    first_held = np.full(n_users, np.iinfo(np.int64).max)
    np.minimum.at(first_held, pairs.users[held], pairs.times[held])
    return hidden.of_rows(hidden.times < first_held[hidden.users])


def _pairs_to_split(interactions: Interactions, plan: SplitPlan) -> _Pairs:
    """Return the pairs to split.

    They are distinct pairs, or rows if items may be chosen again.
    """
    if not plan.repeats:
        return _distinct(interactions)
    order = _by_pair(interactions)[1]
    times, weights = interactions.times, interactions.weights
    return _Pairs(
        users=interactions.users[order],
        items=interactions.items[order],
        counts=np.ones(len(order), dtype=np.float32) if weights is None else weights[order],
        times=None if times is None else times[order],
        source_rows=order,
    )


def _join_duplicates(interactions: Interactions, rows: _Pairs) -> _Pairs:
    """Return the distinct pairs of `rows`, each with its latest time.

    Duplicates are joined as the recipe says.
    """
    return _distinct(interactions.of_rows(np.sort(rows.source_rows)).collapse())


def _keys(users: NDArray[np.int32], items: NDArray[np.int32], interactions: Interactions) -> NDArray[np.int64]:
    return users.astype(np.int64) * len(interactions.item_ids) + items


def _reference(interactions: Interactions, pairs: _Pairs, plan: SplitPlan) -> int:
    assert pairs.times is not None and interactions.reference is not None, "times are read with their reference"
    if plan.scheme != "time_global":
        return interactions.reference
    return min(interactions.reference, _cutoff(pairs.times, plan.heldout_ratio))


def _times(trained: _Pairs, ages: NDArray[np.int64], result: Split) -> sparse.csr_matrix:
    """Return `ages` as an int64 matrix with the entries of `result.train`, (users, items).

    `ages` is (n,), one for each row of `trained`.
    """
    return _csr(ages, _inverse(result.order)[trained.users], trained.items, result.train.shape)


def global_cutoff(interactions: Interactions, plan: SplitPlan) -> int:
    """Return the cut-off of `time_global`, in nanoseconds since 1970.

    All held-out rows are later.
    """
    times = _pairs_to_split(interactions, plan).times
    assert times is not None, "time schemes come with times"
    return _cutoff(times, plan.heldout_ratio)


def _inverse(order: NDArray[np.int64]) -> NDArray[np.int32]:
    positions = np.empty(len(order), dtype=np.int32)
    positions[order] = np.arange(len(order), dtype=np.int32)
    return positions


def _set_aside(result: Split, plan: SplitPlan) -> Split:
    """Move the held-out items of some users to `test`.

    At least one user is left to validate, so no user is moved if there is only one.
    """
    n_users = result.heldout.shape[0]
    n_test = min(max(1, math.floor(n_users * plan.test + _SLACK)), n_users - 1)
    if n_test < 1:
        return result
    rows = np.random.default_rng([plan.seed, 19]).permutation(n_users)[:n_test]
    aside = np.zeros(n_users, dtype=np.float32)
    aside[rows] = 1.0
    test, heldout = sparse.diags(aside) @ result.heldout, sparse.diags(1.0 - aside) @ result.heldout
    for matrix in (test, heldout):
        matrix.eliminate_zeros()
    return replace(result, heldout=heldout, n_heldout=int(heldout.nnz), test=test)


def order_items(result: Split, seed: int) -> Split:
    """Return the same split with items sorted by descending number of training users, and ties in random order.

    If items have equal scores, the first one wins, here and in a served model. Items are numbered by first appearance,
    held-out rows included. That order would favour held-out items.
    """
    order = np.random.default_rng([seed, 17]).permutation(result.train.shape[1])
    n_users = np.bincount(result.train.indices, minlength=len(order))
    order = order[np.argsort(-n_users[order], kind="stable")]
    matrices = {name: getattr(result, name) for name in ("train", "heldout", "test", "times", "hidden")}
    moved = {name: matrix[:, order] for name, matrix in matrices.items() if matrix is not None}
    for matrix in moved.values():
        matrix.sort_indices()
    return replace(result, item_order=result.item_order[order], **moved)


def smallest_working_ratio(interactions: Interactions, plan: SplitPlan) -> float | None:
    """Return the least `heldout_ratio` that holds out any pair, or None.

    The rest of `plan` stays as it is. None means that no ratio holds out a pair.
    """
    if plan.scheme == "leave_one_out":
        return None
    pairs = _pairs_to_split(interactions, plan)
    chosen = _validation_users(len(interactions.user_ids), plan)
    if plan.scheme == "time_global":
        return _smallest_global_ratio(pairs, chosen)
    largest = int(np.bincount(pairs.users, minlength=len(chosen))[chosen].max(initial=0))
    return math.ceil(1e6 / largest) / 1e6 if largest > 1 else None


def _distinct(interactions: Interactions) -> _Pairs:
    """Return each pair once, at its latest occurrence.

    `counts` is the number of its occurrences, or the sum of their weights.
    """
    keys, order = _by_pair(interactions)
    times = interactions.times
    ordered = keys[order]
    last = np.ones(len(ordered), dtype=bool)
    last[:-1] = ordered[1:] != ordered[:-1]
    ends = np.flatnonzero(last)
    counts = np.diff(ends, prepend=-1).astype(np.float32)
    if interactions.weights is not None and len(ends):
        with np.errstate(over="ignore"):  # the next line raises for an infinite sum
            counts = np.add.reduceat(interactions.weights[order], np.concatenate([[0], ends[:-1] + 1]))
        in_single_precision(counts, lambda _: "what the weights of one user and item add up to")
    rows = order[ends]
    return _Pairs(
        users=interactions.users[rows],
        items=interactions.items[rows],
        counts=counts,
        times=None if times is None else times[rows],
        source_rows=rows,
    )


def _by_pair(interactions: Interactions) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return a key of each row's user and item, (n,), and the rows sorted by it.

    Rows of one pair are sorted by time, if there is one, and then by position.
    """
    keys, times = _keys(interactions.users, interactions.items, interactions), interactions.times
    return keys, stable_order([keys] if times is None else [keys, times])


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
    """Return two (m,) masks: held-out pairs, and unused pairs.

    Unused pairs neither train nor validate.
    """
    if plan.scheme == "time_global":
        return _after_cutoff(pairs, chosen, plan.heldout_ratio)
    if plan.scheme == "leave_one_out":
        keys = [pairs.source_rows] if pairs.times is None else [pairs.times, pairs.source_rows]
        order = stable_order([pairs.users, *keys])
        held = np.zeros(len(pairs.users), dtype=bool)
        held[order] = _latest_of_two(pairs.users, len(chosen))
        return held & chosen[pairs.users], np.zeros_like(held)
    if plan.scheme == "random":
        within = np.random.default_rng([plan.seed, 2]).permutation(len(pairs.users))
        order = stable_order([pairs.users, within])
    else:
        assert pairs.times is not None, "time schemes come with times"
        order = stable_order([pairs.users, pairs.times, pairs.source_rows])
    held = np.zeros(len(pairs.users), dtype=bool)
    held[order] = _last_of_each(pairs.users, len(chosen), plan.heldout_ratio)
    held &= chosen[pairs.users]
    return held, np.zeros_like(held)


def _last_of_each(users: NDArray[np.int32], n_users: int, ratio: float) -> NDArray[np.bool_]:
    """Return a mask, (m,), of the last floor(n_u·r) pairs of each user.

    Pairs are sorted by user.
    """
    sizes = np.bincount(users, minlength=n_users)
    n_held = np.floor(sizes * ratio + _SLACK).astype(np.int64)
    ends = np.cumsum(sizes)
    return np.asarray(np.arange(len(users)) >= (ends - n_held)[users])


def _latest_of_two(users: NDArray[np.int32], n_users: int) -> NDArray[np.bool_]:
    """Return a mask, (m,), of the last pair of each user who has two pairs or more.

    Pairs are sorted by user.
    """
    sizes = np.bincount(users, minlength=n_users)
    last = np.arange(len(users)) == (np.cumsum(sizes) - 1)[users]
    return np.asarray(last & (sizes > 1)[users])


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


def _assemble(interactions: Interactions, trained: _Pairs, heldout: _Pairs) -> Split:
    n_users, n_items = len(interactions.user_ids), len(interactions.item_ids)
    validated = np.zeros(n_users, dtype=bool)
    validated[heldout.users] = True
    order = np.concatenate([np.flatnonzero(~validated), np.flatnonzero(validated)])
    row_of = _inverse(order)
    offset = n_users - int(np.count_nonzero(validated))
    return Split(
        train=_csr(trained.counts, row_of[trained.users], trained.items, (n_users, n_items)),
        heldout=_csr(
            heldout.counts if interactions.has_weights else np.ones(len(heldout.users), np.float32),
            row_of[heldout.users] - offset,
            heldout.items,
            (n_users - offset, n_items),
        ),
        order=order,
        item_order=np.arange(n_items),
        val_offset=offset,
        n_heldout=len(heldout.users),
        hidden=None if (hidden := interactions.hidden_matrix()) is None else hidden[order],
    )


def _csr(
    data: NDArray[Any], rows: NDArray[np.int32], columns: NDArray[np.int32], shape: tuple[int, int]
) -> sparse.csr_matrix:
    matrix = sparse.coo_matrix((data, (rows, columns)), shape=shape).tocsr()
    matrix.sort_indices()
    return matrix


def _smallest_global_ratio(pairs: _Pairs, chosen: NDArray[np.bool_]) -> float | None:
    """Return the ratio of the latest cut-off that holds out a pair.

    This cut-off is just before the latest time of any validation user who also has an earlier time. Return None if no
    user has both.
    """
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

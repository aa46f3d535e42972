"""Split the interactions: hold out some of the validation users' interactions, and train on the rest.

Symbols: n_u is the number of distinct items of user u, and r is the held-out ratio. With `training.repeats`, rows are
split instead of distinct items, so n_u counts rows and a held-out item may also be in its user's training rows.

The schemes hold out:

random       floor(n_u·r) items of each validation user, drawn with the split's seed. Times are ignored
time_user    the floor(n_u·r) latest items of each validation user
time_global  the items after one cut-off for the whole table, the 1−r quantile of time. No model is trained on later
             interactions. Only validation users with a history before the cut-off have held-out items
leave_one_out  the latest item of each validation user who has two or more. r is ignored. Without a time column, the
             latest item is the one in the last row of the table

If only some events are targets, or only some hide their items, n_u counts the items of the user's target rows, and
"latest" means the latest target row of an item. Then whole rows are known or not, so that a user may be judged by an
item that the history has in another event:

random       no row of a held-out pair is known
time_user    the rows of every event before the first held-out row of their user are known
time_global  the rows of every event up to the cut-off are known. It is the 1−r quantile of the times of target items
leave_one_out  as time_user. The latest item of each validation user who has a row before it is held out

With a test share t, floor(v·t) of the v users with held-out items become test users, but at least 1 and at most v − 1.
No trial is scored on them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from svc.recipe.training_schema import Split
from svc.stable_sort import stable_order
from svc.training.data.interactions import HiddenRows, Interactions
from svc.training.data.times import reference_time
from svc.training.data.weights import by_pair, distinct_pairs, in_single_precision

Flags = NDArray[np.bool_]
_SLACK = 1e-9  # 0.29 × 100 is 28.999999999999996 in floating point and must still hold out 29


@dataclass(frozen=True, slots=True, eq=False)
class SplitMatrices:
    """The training and validation matrices of a search.

    - `train`, (users, items) float32, has the number or the sum of weights of the training interactions.
    - `heldout`, (users with held-out items, items), is 1.0 at held-out items, or their weight.
    - `order` has the user of each row of `train`, as a row of the interactions. Users without held-out items come
      first. Users with held-out items begin at row `val_offset` of `train`, in the order of the rows of `heldout`.
    - `item_order` has the item of each column of all matrices, as an item of the interactions.
    - `n_heldout` is the number of pairs of a user and an item in `heldout`.
    - `test` has the held-out items of test users, in the same shape as `heldout`, where their rows are empty. It is
      None if there are no test users.
    - `times` has the time of each entry of `train` if times are kept, in nanoseconds from the same reference time
      as in the final training. Under `time_global` they count from the cut-off if it is earlier, because the search
      must not know of anything later.
    - `hidden`, in the shape of `train`, has the items hidden from each user, if they were known before the held-out
      rows. No hidden pair is held out. It is None if there are no such items.
    - `seen`, in the shape of `train`, has the pairs of `train` that hide their item from their user. None: all do.
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
    seen: sparse.csr_matrix | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Pairs:
    """The units that a split divides, sorted by user: distinct (user, item) pairs, or with `repeats` single rows.

    All arrays are (m,). `counts` has the number or the sum of weights of a pair's rows. `source_rows` has the position
    of its latest row in the interactions.
    """

    users: NDArray[np.int32]
    items: NDArray[np.int32]
    counts: NDArray[np.float32]
    times: NDArray[np.int64] | None
    source_rows: NDArray[np.int64]

    def where(self, chosen: Flags) -> _Pairs:
        """Return the pairs for which `chosen`, (m,), is True."""
        times = None if self.times is None else self.times[chosen]
        return _Pairs(self.users[chosen], self.items[chosen], self.counts[chosen], times, self.source_rows[chosen])


def split(interactions: Interactions, plan: Split, *, keep_times: bool = False, repeats: bool = False) -> SplitMatrices:
    """Split `interactions` by `plan`. All random draws are seeded, so every process makes the same split.

    `keep_times` keeps the times of the training interactions, for models that learn from them. `repeats` is True if
    users are recommended seen items again. Rows are then split instead of distinct items. Raise WeightOutOfRange if the
    weights of one user and item add up to infinity in float32.
    """
    pairs = _units(interactions, repeats=repeats)
    n_users = len(interactions.user_ids)
    chosen = _validation_users(n_users, plan)
    held, unused, hidden = _divide(interactions, pairs, chosen, plan)
    interactions = replace(interactions, hidden=hidden)
    if interactions.divides_rows:
        before = _rows_before(interactions, pairs, held | unused, plan)
        is_held = _of_pairs(interactions, pairs.where(held)) & ~before
        if interactions.target is not None:
            is_held &= interactions.target
        trained, heldout = (_joined(interactions.of_rows(np.flatnonzero(rows))) for rows in (before, is_held))
        interactions = _at_reference(interactions, before | is_held).of_rows(np.flatnonzero(before))
    else:
        trained, heldout = pairs.where(~(held | unused)), pairs.where(held)
        if repeats:
            trained, heldout = (_joined(interactions.of_rows(np.sort(part.source_rows))) for part in (trained, heldout))
    result = _assemble(interactions, trained, heldout)
    if keep_times:
        assert trained.times is not None, "whoever asks for times has had them read"
        ages = interactions.ages(trained.times, _reference(interactions, pairs, plan))
        rows = _inverse(result.order)[trained.users]
        result = replace(result, times=sparse.csr_matrix((ages, (rows, trained.items)), result.train.shape))
    return result if not plan.test else _set_aside(result, plan)


def _divide(
    interactions: Interactions, pairs: _Pairs, chosen: Flags, plan: Split
) -> tuple[Flags, Flags, HiddenRows | None]:
    """Return the two masks of `_hold_out` without the hidden pairs among those held out, and the known hidden rows."""
    held, unused = _hold_out(interactions, pairs, chosen, plan)
    hidden = _known_hidden(interactions.hidden, pairs, held, plan)
    if hidden is not None:
        hidden_keys = _keys(hidden.users, hidden.items, interactions)
        shown = ~np.isin(_keys(pairs.users, pairs.items, interactions), hidden_keys)
        # Not trained on either, because they belong to the part that is held out.
        held, unused = held & shown, unused | (held & ~shown)
    return held, unused, hidden


def _known_hidden(hidden: HiddenRows | None, pairs: _Pairs, held: Flags, plan: Split) -> HiddenRows | None:
    """Return the hidden rows that are earlier than the held-out rows of their user, or None if there are none.

    Under `time_global`, return the hidden rows up to the cut-off. Return all rows if there are no times, or under
    `random`, which ignores times.

    Rankings leave out a user's hidden items. A hidden row that is later than the held-out rows would leave out an item
    that the user had not met at that time, and scores would be 1 to 2% too high.
    """
    if hidden is None or hidden.times is None or pairs.times is None or plan.scheme == "random":
        return hidden
    if plan.scheme == "time_global":
        return hidden.of_rows(hidden.times <= _cutoff(pairs.times, plan.heldout_ratio))
    n_users = 1 + max(hidden.users.max(initial=0), pairs.users.max(initial=0))
    first_held = np.full(n_users, np.iinfo(np.int64).max)
    # `at`, because plain indexing would use only the last pair of each user.
    np.minimum.at(first_held, pairs.users[held], pairs.times[held])
    return hidden.of_rows(hidden.times < first_held[hidden.users])


def _joined(rows: Interactions) -> _Pairs:
    """Return the distinct pairs of `rows`, each at its latest time, with duplicates joined by `cleansing.dedup`."""
    return _pairs(rows.collapse(), repeats=False)


def _rows_before(interactions: Interactions, pairs: _Pairs, out: Flags, plan: Split) -> Flags:
    """Return whether the models and histories of a search may know each row of `interactions`, (n,).

    `out` is True for the `pairs` that are not trained on.
    """
    if plan.scheme == "random":
        return ~_of_pairs(interactions, pairs.where(out))
    if plan.scheme == "time_global":
        return _times(interactions) <= _cutoff(_times(pairs), plan.heldout_ratio)
    places = _places(interactions)
    first = np.full(len(interactions.user_ids), len(places))
    np.minimum.at(first, pairs.users[out], places[pairs.source_rows[out]])
    before: Flags = places < first[interactions.users]
    return before


def _at_reference(interactions: Interactions, rows: Flags) -> Interactions:
    """Return `interactions` with the reference time of `rows`, so that no other row changes the age of a choice."""
    if interactions.times is None:
        return interactions
    start = np.iinfo(np.int64).max if interactions.future is None else interactions.future.start
    return replace(interactions, reference=reference_time(interactions.times[rows], start))


def _of_pairs(interactions: Interactions, pairs: _Pairs) -> Flags:
    """Return whether each row of `interactions` is of one of `pairs`, (n,)."""
    # One number for each pair, because `isin` compares single values.
    keys = _keys(pairs.users, pairs.items, interactions)
    return np.isin(_keys(interactions.users, interactions.items, interactions), keys)


def _places(interactions: Interactions) -> NDArray[np.int64]:
    """Return the place of each row by time, (n,). Rows of equal or unread times are in the order of the table."""
    places = np.arange(len(interactions))
    if interactions.times is not None:
        # The inverse of the order: row `order[k]` has place k.
        places[stable_order(interactions.times)] = np.arange(len(places))
    return places


def _keys(users: NDArray[np.int32], items: NDArray[np.int32], interactions: Interactions) -> NDArray[np.int64]:
    # In 64 bits, because 50,000 users of 50,000 items already have more pairs than int32 has numbers.
    return users.astype(np.int64) * len(interactions.item_ids) + items


def _reference(interactions: Interactions, pairs: _Pairs, plan: Split) -> int:
    assert pairs.times is not None and interactions.reference is not None, "times are read with their reference"
    if plan.scheme != "time_global":
        return interactions.reference
    return min(interactions.reference, _cutoff(pairs.times, plan.heldout_ratio))


def global_cutoff(interactions: Interactions, plan: Split, *, repeats: bool = False) -> int:
    """Return the cut-off of `time_global`, in nanoseconds since 1970.

    All held-out rows are later.
    """
    times = _units(interactions, repeats=repeats).times
    assert times is not None, "time schemes come with times"
    return _cutoff(times, plan.heldout_ratio)


def _inverse(order: NDArray[np.int64]) -> NDArray[np.int32]:
    positions = np.empty(len(order), dtype=np.int32)
    positions[order] = np.arange(len(order), dtype=np.int32)
    return positions


def _set_aside(result: SplitMatrices, plan: Split) -> SplitMatrices:
    """Make test users of some users with held-out items, and move their held-out items to `test`.

    At least one user with held-out items must remain, so nothing is moved if there is only one.
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
        # The products store a zero for each pair of the other users, which `nnz` would count.
        matrix.eliminate_zeros()
    return replace(result, heldout=heldout, n_heldout=int(heldout.nnz), test=test)


def order_items(result: SplitMatrices, seed: int) -> SplitMatrices:
    """Return the same split with items sorted by descending number of training users, and ties in random order.

    Of items with equal scores, a ranking puts the lowest column first, as in a served model. `result` has the columns
    in order of the items' first appearance in the data, which includes held-out rows and so would favour their items.
    """
    order = np.random.default_rng([seed, 17]).permutation(result.train.shape[1])
    n_users = np.bincount(result.train.indices, minlength=len(order))
    # Stable, so that ties keep the random order.
    order = order[np.argsort(-n_users[order], kind="stable")]
    matrices = {name: getattr(result, name) for name in ("train", "heldout", "test", "times", "hidden", "seen")}
    moved = {name: matrix[:, order] for name, matrix in matrices.items() if matrix is not None}
    for matrix in moved.values():
        # Choosing columns leaves the entries of a row in their old order.
        matrix.sort_indices()
    return replace(result, item_order=result.item_order[order], **moved)


def count_judged(interactions: Interactions, plan: Split, *, repeats: bool = False) -> int:
    """Return the number of users with held-out items under `plan`. They decide which model wins."""
    pairs = _units(interactions, repeats=repeats)
    chosen = _validation_users(len(interactions.user_ids), plan)
    return len(np.unique(pairs.users[_divide(interactions, pairs, chosen, plan)[0]]))


def judging_most(interactions: Interactions, plan: Split, *, repeats: bool = False) -> Split:
    """Return the plan that judges most users, all of whom are validation users.

    By time, this is `leave_one_out`. Without times it has the ratio of `sparing_ratio`.
    """
    change = {"scheme": "leave_one_out"} if plan.scheme != "random" else {}
    ratio = {} if change else {"heldout_ratio": sparing_ratio(interactions, repeats=repeats)}
    return plan.model_copy(update={**change, **ratio, "test_user_ratio": 1.0})


def sparing_ratio(interactions: Interactions, *, repeats: bool = False) -> float:
    """Return the smallest ratio, in thousandths, that holds out an item of each user who has two or more."""
    sizes = np.bincount(_units(interactions, repeats=repeats).users)
    # A user of one item is never judged, so any ratio suits them.
    least = int(sizes.min(where=sizes > 1, initial=int(sizes.max(initial=2))))
    return min(math.ceil(1000 / max(least, 2)) / 1000, 0.999)


def _units(interactions: Interactions, *, repeats: bool) -> _Pairs:
    """Return what `interactions` are divided into: rows with `repeats`, else pairs. If events differ, target pairs."""
    if not interactions.divides_rows:
        return _pairs(interactions, repeats=repeats)
    if interactions.target is None:
        return _pairs(interactions, repeats=False)
    rows = np.flatnonzero(interactions.target)
    pairs = _pairs(interactions.of_rows(rows), repeats=False)
    return replace(pairs, source_rows=rows[pairs.source_rows])


def _pairs(interactions: Interactions, *, repeats: bool) -> _Pairs:
    """Return each (user, item) pair once, at its latest row, or with `repeats` every single row.

    `counts` has the number or the sum of weights of a pair's rows. Raise WeightOutOfRange if a sum is infinite in
    float32.
    """
    users, items, times, weights = interactions.users, interactions.items, interactions.times, interactions.weights
    if repeats:
        _, rows = by_pair(users, items, times)
        counts = np.ones(len(rows), dtype=np.float32) if weights is None else weights[rows]
    else:
        with np.errstate(over="ignore"):  # the check below raises for an infinite sum
            rows, sums = distinct_pairs(users, items, times, weights, "sum")
        assert sums is not None, "rows are summed"
        counts = in_single_precision(sums, lambda _: "what the weights of one user and item add up to")
    return _Pairs(users[rows], items[rows], counts, None if times is None else times[rows], rows)


def _validation_users(n_users: int, plan: Split) -> Flags:
    n_chosen = min(n_users, max(1, math.floor(n_users * plan.test_user_ratio + _SLACK)))
    chosen = np.zeros(n_users, dtype=bool)
    # The 1, like the numbers of other draws from this seed, keeps these draws independent of those.
    chosen[np.random.default_rng([plan.seed, 1]).permutation(n_users)[:n_chosen]] = True
    return chosen


def _hold_out(interactions: Interactions, pairs: _Pairs, chosen: Flags, plan: Split) -> tuple[Flags, Flags]:
    """Return two masks of `pairs`, (m,): held-out pairs, and pairs that are neither held out nor trained on.

    `chosen`, (users,), is True for validation users.
    """
    if plan.scheme == "time_global":
        return _after_cutoff(interactions, pairs, chosen, plan.heldout_ratio)
    order = [pairs.source_rows] if pairs.times is None else [pairs.times, pairs.source_rows]
    if plan.scheme == "random":
        order = [np.random.default_rng([plan.seed, 2]).permutation(len(pairs.users))]
    sizes = np.bincount(pairs.users, minlength=len(chosen))
    n_held = np.floor(sizes * plan.heldout_ratio + _SLACK).astype(np.int64)
    # Users of one item keep it, because a user without history cannot be judged.
    if plan.scheme == "leave_one_out":
        n_held = _has_earlier(interactions, pairs, sizes).astype(np.int64)
    held = np.zeros(len(pairs.users), dtype=bool)
    # The pairs are sorted by user, so the last ones of each user have the same positions before and after the sort.
    is_last = np.arange(len(held)) >= (np.cumsum(sizes) - n_held)[pairs.users]
    held[stable_order(pairs.users, *order)] = is_last
    return held & chosen[pairs.users], np.zeros_like(held)


def _has_earlier(interactions: Interactions, pairs: _Pairs, sizes: NDArray[np.int64]) -> Flags:
    """Return whether each user has a history before the latest of `pairs`. `sizes` has the number of pairs of each."""
    if not interactions.divides_rows:
        several: Flags = sizes > 1
        return several
    places = _places(interactions)
    first, latest = np.full(len(sizes), len(places)), np.full(len(sizes), -1)
    np.minimum.at(first, interactions.users, places)
    np.maximum.at(latest, pairs.users, places[pairs.source_rows])
    before: Flags = first < latest
    return before


def _cutoff(times: NDArray[np.int64], ratio: float) -> int:
    if not len(times):
        return np.iinfo(np.int64).max  # no row is of a target event
    at = math.floor((1.0 - ratio) * (len(times) - 1) + _SLACK)
    # Not `np.quantile`, whose float64 cannot hold nanoseconds since 1970. A partition is no full sort either.
    return int(np.partition(times, at)[at])


def _after_cutoff(interactions: Interactions, pairs: _Pairs, chosen: Flags, ratio: float) -> tuple[Flags, Flags]:
    cutoff = _cutoff(_times(pairs), ratio)
    late, of_history = _times(pairs) > cutoff, interactions if interactions.divides_rows else pairs
    has_history = np.zeros(len(chosen), dtype=bool)
    # A history of any event counts if events differ, because a model may read all of them.
    has_history[of_history.users[_times(of_history) <= cutoff]] = True
    held = late & (chosen & has_history)[pairs.users]
    return held, late & ~held


def _times(rows: Interactions | _Pairs) -> NDArray[np.int64]:
    assert rows.times is not None, "time schemes come with times"
    return rows.times


def _assemble(interactions: Interactions, trained: _Pairs, heldout: _Pairs) -> SplitMatrices:
    n_users, n_items = len(interactions.user_ids), len(interactions.item_ids)
    validated = np.zeros(n_users, dtype=bool)
    validated[heldout.users] = True
    # Users without held-out items come first, so that a slice of the rows has those to be judged.
    order = np.concatenate([np.flatnonzero(~validated), np.flatnonzero(validated)])
    row_of = _inverse(order)
    offset = n_users - int(np.count_nonzero(validated))
    places = row_of[heldout.users] - offset, heldout.items
    # Without weights a repeated choice counts once for the metrics.
    chosen = heldout.counts if interactions.has_weights else np.ones(len(heldout.users), np.float32)
    return SplitMatrices(
        train=sparse.csr_matrix((trained.counts, (row_of[trained.users], trained.items)), (n_users, n_items)),
        heldout=sparse.csr_matrix((chosen, places), (n_users - offset, n_items)),
        order=order,
        item_order=np.arange(n_items),
        val_offset=offset,
        n_heldout=len(heldout.users),
        hidden=None if (hidden := interactions.hidden_matrix()) is None else hidden[order],
        seen=None if (seen := interactions.seen_matrix()) is None else seen[order],
    )

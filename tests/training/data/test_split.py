"""The splits into training and held-out rows, and the smallest ratio that holds out a row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from svc.recipe.training_schema import Scheme, Split
from svc.training.data.interactions import Dedup, HiddenRows, Interactions
from svc.training.data.split import count_judged, judging_most, order_items, sparing_ratio, split
from svc.training.data.times import BAD_TIME


def interactions(histories: list[list[int]], times: list[list[int]] | None = None) -> Interactions:
    users = np.repeat(np.arange(len(histories)), [len(h) for h in histories]).astype(np.int32)
    items = np.concatenate([np.asarray(h, dtype=np.int32) for h in histories])
    flat = None if times is None else np.concatenate([np.asarray(t, dtype=np.int64) for t in times])
    n_items = int(items.max()) + 1
    return Interactions(
        users, items, flat, [f"u{u}" for u in range(len(histories))], [f"i{i}" for i in range(n_items)], {}
    )


def test_the_holdout_is_floored_for_each_user() -> None:
    """Of a user's n items, floor(n·ratio) are held out. A user with fewer than 1/ratio items loses none."""
    found = split(
        interactions([[0, 1], [0, 1, 2], list(range(7))]), Split(scheme="random", heldout_ratio=1 / 3, seed=1)
    )
    assert found.val_offset == 1
    assert np.diff(found.heldout.indptr).tolist() == [1, 2]
    assert found.n_heldout == 3


def test_the_holdout_allows_for_rounding_of_the_ratio() -> None:
    """0.29 of 100 items are 29, although the product is 28.999999999999996."""
    assert split(interactions([list(range(100))]), Split(scheme="random", heldout_ratio=0.29, seed=1)).n_heldout == 29


def test_time_user_holds_out_the_latest_items() -> None:
    """Among equal times, the later row of the table is the later event."""
    data = interactions([[0, 1, 2, 3], [4, 5, 6, 7]], [[9, 1, 2, 8], [5, 5, 5, 5]])
    found = split(data, Split(scheme="time_user", heldout_ratio=0.5, seed=1))
    assert [row.indices.tolist() for row in found.heldout] == [[0, 3], [6, 7]]


def test_time_global_has_one_cut_off_for_all_users() -> None:
    """Rows after the cut-off do not train. Users without earlier rows are not validated."""
    data = interactions([[0, 1, 2], [3, 4], [5]], [[1, 2, 9], [3, 4], [10]])
    found = split(data, Split(scheme="time_global", heldout_ratio=0.3, seed=1))
    assert found.n_heldout == 1
    assert found.train.nnz == 4
    assert found.heldout.indices.tolist() == [2]


def test_random_is_seeded_and_ignores_time() -> None:
    """A seed draws the same items for any times. Another seed draws others."""
    histories = [list(range(30)) for _ in range(20)]
    one = split(interactions(histories), Split(scheme="random", heldout_ratio=0.2, test_user_ratio=0.5, seed=7))
    two = split(
        interactions(histories, [[5] * 30] * 20), Split(scheme="random", heldout_ratio=0.2, test_user_ratio=0.5, seed=7)
    )
    other = split(interactions(histories), Split(scheme="random", heldout_ratio=0.2, test_user_ratio=0.5, seed=8))
    assert (one.heldout != two.heldout).nnz == 0
    assert one.order.tolist() == two.order.tolist()
    assert one.order.tolist() != other.order.tolist()


def test_test_user_ratio_draws_that_share_of_users() -> None:
    """Only drawn users lose items. Their rows are the last of the training matrix."""
    found = split(
        interactions([list(range(10)) for _ in range(40)]),
        Split(scheme="random", heldout_ratio=0.3, test_user_ratio=0.25, seed=3),
    )
    sizes = np.diff(found.train.indptr)
    assert found.val_offset == 30
    assert sizes[:30].tolist() == [10] * 30
    assert sizes[30:].tolist() == [7] * 10


def test_training_and_held_out_items_make_up_the_history() -> None:
    """Row r of the held-out matrix belongs to row val_offset + r of the training matrix."""
    data = interactions([[0, 2, 4], [1, 3, 5, 0, 2, 4], [5]])
    found = split(data, Split(scheme="random", heldout_ratio=0.5, seed=3))
    everything = data.matrix()[found.order]
    again = found.train.copy().tolil()
    again[found.val_offset :] = again[found.val_offset :] + found.heldout
    assert (again.tocsr() != everything).nnz == 0


def test_the_sparing_ratio_holds_out_an_item_of_each_user_with_two() -> None:
    """A ratio below it holds out no item of the user with the fewest. Single items do not count."""
    for sizes in ([3, 5, 1], [8, 8], [12, 900, 7, 1], [2, 3]):
        data = interactions([list(range(size)) for size in sizes])
        ratio = sparing_ratio(data)
        judged = sum(size > 1 for size in sizes)
        assert count_judged(data, Split(heldout_ratio=ratio)) == judged
        assert count_judged(data, Split(heldout_ratio=ratio - 0.001)) < judged
    assert count_judged(interactions([[0], [1]]), Split(heldout_ratio=sparing_ratio(interactions([[0], [1]])))) == 0


def test_the_plan_that_judges_most_keeps_the_seed_and_the_test_share() -> None:
    """By time it is `leave_one_out`. Every user may be judged."""
    data = interactions([[0, 1, 2], [3], [4, 5], [1, 0, 2]])
    most = judging_most(data, Split(scheme="random", test_user_ratio=0.5, test=0.3, seed=7))
    assert most == Split(scheme="random", heldout_ratio=0.5, test=0.3, seed=7)
    assert judging_most(data, Split(scheme="time_user", seed=7)) == Split(scheme="leave_one_out", seed=7)
    assert count_judged(data, Split(scheme="leave_one_out")) == 3


def test_leave_one_out_holds_out_the_latest_of_each_user_with_two() -> None:
    """The order is by time, then by row. A user's only item stays in training."""
    histories = [[0, 1, 2], [3], [4, 5], [1, 0, 2]]
    plan = Split(scheme="leave_one_out", heldout_ratio=0.1, seed=1)
    timed = split(interactions(histories, [[5, 9, 1], [1], [7, 7], [3, 2, 1]]), plan)
    assert [row.indices.tolist() for row in timed.heldout] == [[1], [5], [1]]
    assert timed.val_offset == 1
    untimed = split(interactions(histories), plan)
    assert [row.indices.tolist() for row in untimed.heldout] == [[2], [5], [2]]
    assert timed.train.nnz == untimed.train.nnz == 9 - 3


def test_leave_one_out_works_if_a_small_ratio_holds_out_nothing() -> None:
    """Most users of a small shop have one to three purchases."""
    data = interactions([[0, 1], [0, 2, 3], [1], [2, 0]])
    assert split(data, Split(scheme="random", heldout_ratio=0.1, seed=1)).n_heldout == 0
    assert split(data, Split(scheme="leave_one_out", heldout_ratio=0.1, seed=1)).n_heldout == 3


@pytest.mark.parametrize("scheme", ["random", "time_user", "leave_one_out"])
@pytest.mark.parametrize("test", [0.01, 0.3, 0.99])
def test_test_users_are_no_validation_users(scheme: str, test: float) -> None:
    """The two groups together are the evaluated users of a split without test users.

    The training part stays the same.
    """
    data = interactions([list(range(12)) for _ in range(20)], [list(range(12))] * 20)
    whole = split(data, Split(scheme=scheme, heldout_ratio=0.3, seed=2))  # type: ignore[arg-type]
    parted = split(data, Split(scheme=scheme, heldout_ratio=0.3, seed=2, test=test))  # type: ignore[arg-type]
    assert whole.test is None
    assert parted.test is not None
    assert (parted.train != whole.train).nnz == 0
    assert ((parted.heldout + parted.test) != whole.heldout).nnz == 0
    sizes = np.diff(parted.test.indptr) > 0
    assert int(sizes.sum()) == max(1, int(20 * test + 1e-9))
    assert not (sizes & (np.diff(parted.heldout.indptr) > 0)).any()
    assert parted.n_heldout == parted.heldout.nnz > 0


def test_the_only_user_with_held_out_items_is_a_validation_user() -> None:
    only = split(interactions([list(range(12)), [3]]), Split(scheme="random", heldout_ratio=0.3, seed=2, test=0.99))
    assert only.test is None
    assert only.n_heldout == only.heldout.nnz == 3


def test_ordered_items_are_the_same_split() -> None:
    """In every matrix, column c is item `item_order[c]`. The item of most users comes first."""
    data = interactions([list(range(12)) for _ in range(6)])
    plain = split(data, Split(scheme="random", heldout_ratio=0.3, seed=2, test=0.5))
    moved = order_items(plain, 3)
    n_users = np.bincount(moved.train.indices, minlength=12)
    assert n_users.tolist() == sorted(n_users.tolist(), reverse=True)
    assert moved.item_order.tolist() != order_items(plain, 4).item_order.tolist()
    for before, after in ((plain.train, moved.train), (plain.heldout, moved.heldout), (plain.test, moved.test)):
        assert before is not None and after is not None
        assert (before[:, moved.item_order] != after).nnz == 0


def brute_force_of_repeats(
    rows: list[tuple[int, int, int, float]], plan: Split, dedup: str
) -> tuple[dict[tuple[int, int], float], dict[tuple[int, int], float]]:
    """Return the counts of each pair in the training part and in the held-out part.

    A row has user, item, time and weight.
    """
    by_user: dict[int, list[int]] = {}
    for place in sorted(range(len(rows)), key=lambda place: (rows[place][2], place)):
        by_user.setdefault(rows[place][0], []).append(place)
    held: set[int] = set()
    for places in by_user.values():
        n_held = int(len(places) > 1) if plan.scheme == "leave_one_out" else int(len(places) * plan.heldout_ratio)
        held |= set(places[len(places) - n_held :])
    parts: tuple[dict[tuple[int, int], float], dict[tuple[int, int], float]] = ({}, {})
    for place in sorted(range(len(rows)), key=lambda place: (rows[place][2], place)):
        user, item, _, weight = rows[place]
        part, pair = parts[place in held], (user, item)
        before = part.get(pair)
        if before is None:
            part[pair] = 1.0 if dedup == "count" else weight
        elif dedup in {"sum", "none"}:
            part[pair] = before + weight
        elif dedup == "count":
            part[pair] = before + 1.0
        elif dedup == "max":
            part[pair] = max(before, weight)
        elif dedup == "keep_last":
            part[pair] = weight
    return parts


@pytest.mark.parametrize("scheme", ["leave_one_out", "time_user"])
@pytest.mark.parametrize("dedup", ["keep_last", "keep_first", "sum", "count", "max", "none"])
def test_repeats_are_split_before_duplicates_are_joined(scheme: Scheme, dedup: Dedup) -> None:
    """Each part joins its own duplicates, so a held-out item may also be in the training part."""
    rng = np.random.default_rng(5)
    for is_weighted in (True, False):
        users = np.repeat(np.arange(12), rng.integers(1, 15, 12)).astype(np.int32)
        users = rng.permutation(users)
        items = rng.integers(0, 6, len(users)).astype(np.int32)
        times = rng.integers(0, 20, len(users))
        weights = rng.choice([0.5, 1.0, 3.0], len(users)) if is_weighted else np.ones(len(users))
        data = Interactions(
            users, items, times, [f"u{u}" for u in range(12)], [f"i{i}" for i in range(6)], {},
            weights=weights.astype(np.float32) if is_weighted else None, reference=0, deferred_dedup=dedup,
        )  # fmt: skip
        plan = Split(scheme=scheme, heldout_ratio=0.3, seed=1)
        rows = list(zip(users.tolist(), items.tolist(), times.tolist(), weights.tolist(), strict=True))
        trained, heldout = brute_force_of_repeats(rows, plan, dedup)
        found = split(data, plan, keep_times=True, repeats=True)
        assert entries(found.train, found.order) == trained
        if is_weighted or dedup in {"sum", "count"}:
            assert entries(found.heldout, found.order[found.val_offset :]) == heldout
        else:
            assert entries(found.heldout, found.order[found.val_offset :]) == dict.fromkeys(heldout, 1.0)
        assert found.n_heldout == len(heldout)
        assert heldout.keys() & trained.keys()
        assert found.times is not None
        assert found.times.indices.tolist() == found.train.indices.tolist()


def test_the_time_of_a_pair_that_trains_is_its_latest_before_the_holdout() -> None:
    """The latest time counts even if the dedup keeps the first row."""
    data = replace(
        interactions([[0, 1, 0, 1]], [[1, 2, 3, 9]]),
        reference=10,
        deferred_dedup="keep_first",
        weights=np.ones(4, np.float32),
    )
    found = split(data, Split(scheme="leave_one_out", heldout_ratio=0.1, seed=1), keep_times=True, repeats=True)
    assert found.heldout.indices.tolist() == [1]
    assert found.times is not None
    assert found.times.toarray().tolist() == [[-7, -8]]


def entries(matrix: sparse.csr_matrix, order: np.ndarray) -> dict[tuple[int, int], float]:
    found = matrix.tocoo()
    return {
        (int(order[row]), int(column)): float(value)
        for row, column, value in zip(found.row, found.col, found.data, strict=True)
    }


@pytest.mark.parametrize(
    ("scheme", "ratio", "kept", "heldout"),
    [("time_user", 0.5, [4], [2, 3]), ("leave_one_out", 0.5, [4, 5], [3]), ("time_global", 0.3, [4], [2, 3])],
)
def test_hidden_rows_hide_items_only_if_they_are_before_the_held_out_rows(
    scheme: Scheme, ratio: float, kept: list[int], heldout: list[int]
) -> None:
    """Later hidden rows hide no item in the split, not even a held-out one. The data keeps all of them."""
    data = interactions([[0, 1, 2, 3], [4, 5, 6]], [[10, 20, 30, 40], [1, 2, 3]])
    items = np.array([4, 5, 6, 3], np.int32)
    hidden = HiddenRows(np.zeros(4, np.int32), items, np.array([15, 35, 41, 50]), np.zeros(4, bool))
    found = split(replace(data, hidden=hidden), Split(scheme=scheme, heldout_ratio=ratio, seed=1))
    row = found.order.tolist().index(0)
    assert found.hidden is not None
    assert found.hidden[row].indices.tolist() == kept
    assert found.heldout[row - found.val_offset].indices.tolist() == heldout


@pytest.mark.parametrize("scheme", ["time_user", "leave_one_out", "time_global", "random"])
def test_a_hidden_row_without_a_time_hides_its_item_always(scheme: Scheme) -> None:
    data = interactions([[0, 1, 2, 3], [4, 5, 6]], [[10, 20, 30, 40], [1, 2, 3]])
    hidden = HiddenRows(np.zeros(2, np.int32), np.array([3, 5], np.int32), np.full(2, BAD_TIME), np.zeros(2, bool))
    found = split(replace(data, hidden=hidden), Split(scheme=scheme, heldout_ratio=0.5, seed=1))
    row = found.order.tolist().index(0)
    assert found.hidden is not None
    assert found.hidden[row].indices.tolist() == [3, 5]
    assert not found.heldout[row - found.val_offset, 3]


def test_all_hidden_rows_hide_their_items_without_times() -> None:
    """`random` ignores times, so all hidden rows hide their items there, too."""
    data = interactions([[0, 1, 2, 3]], [[10, 20, 30, 40]])
    late = HiddenRows(np.zeros(1, np.int32), np.array([3], np.int32), np.array([99]), np.ones(1, bool))
    for hidden, scheme in ((late._replace(times=None), "time_user"), (late, "random")):
        found = split(replace(data, hidden=hidden), Split(scheme=scheme, heldout_ratio=0.5, seed=1))
        assert found.hidden is not None
        assert 3 not in found.heldout.indices

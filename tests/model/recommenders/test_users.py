"""Rankings of users: selection by approximate scores, exact scores, sums over histories, and deviations."""

from __future__ import annotations

import numpy as np
import pytest

from svc.model.history import History
from svc.model.ranking.query import Query
from svc.model.recommenders import users
from svc.model.recommenders.factor_index import FactorIndex
from svc.model.recommenders.factors import SVDScorer
from svc.model.recommenders.users import ByColumn, HistoryBlocks, best_users, measured_moments, moments_of
from svc.names import Order
from tests.families import family


@pytest.mark.parametrize("at_once", [1, users.SORTED_AT_ONCE])
def test_by_column_finds_the_entries_and_rows_of_each_column(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "SORTED_AT_ONCE", at_once)
    rng = np.random.default_rng(2)
    lengths = rng.integers(0, 5, 40)
    offsets = np.append(0, lengths.cumsum())
    columns = rng.integers(0, 12, offsets[-1]).astype(np.int32)
    columns[columns == 7] = 8
    index = ByColumn.of(columns, 13)
    for column in range(13):
        rows, entries = index.rows(column, offsets)
        assert entries.tolist() == np.flatnonzero(columns == column).tolist()
        assert rows.tolist() == np.repeat(np.arange(40), lengths)[entries].tolist()
    assert ByColumn.of(columns[:0], 2).rows(1, np.zeros(1))[0].tolist() == []
    far_apart = np.array([70_000, 3, 65_539, 3, 70_000], dtype=np.int32)
    index = ByColumn.of(far_apart, 70_001)
    assert [index.rows(column, np.arange(6))[1].tolist() for column in (3, 65_539, 70_000)] == [[1, 3], [2], [0, 4]]


N_USERS, N_ITEMS, K = 6_000, 300, 24


@pytest.mark.parametrize("order", ["score", "lift", "balanced"])
def test_selection_in_float32_loses_no_user_and_keeps_the_bits_of_scores(order: Order) -> None:
    """All users of nearly equal scores, or of equal vectors, come back.

    Float32 cannot distinguish their scores.
    """
    rng = np.random.default_rng(8)
    vectors = (1 + rng.normal(size=(N_USERS, K)) * 1e-7).astype(np.float32)
    vectors[::5] = vectors[0]
    vectors[7] = 0
    scorer = SVDScorer(vectors, FactorIndex.build(rng.normal(size=(N_ITEMS, K)).astype(np.float32)))
    scorer.ready()
    history = family("SVD").history
    means, deviations = moments = scorer.moments_of_users(history)
    scores = scorer.scores_of_users(history)(3)
    assert scores.exact is not None
    exact = scores.exact(np.arange(N_USERS))
    assert (np.abs(exact - scores.values) <= scores.errors).all()
    (ranked,) = scorer.rank([Query(N_ITEMS, 11, include_seen=True)], history)
    assert exact[11] == ranked.scores[ranked.items == 3]
    keys = exact
    if order != "score":
        inverse = np.divide(1, deviations, out=np.zeros(N_USERS), where=deviations > 0)
        slope, offset = inverse, -means * inverse
        if order == "balanced":
            all_users = 1 / scores.values.std()
            slope, offset = (slope + all_users) / 2, (offset - scores.values.mean() * all_users) / 2
        keys = exact * slope + offset
    for limit in (1, 40, 3_000, N_USERS):
        ranking = best_users(scores, order, moments, np.arange(N_USERS) % 2 == 1, limit)
        odd = [row for row in np.lexsort((np.arange(N_USERS), -keys)).tolist() if row % 2][:limit]
        assert ranking.items.tolist() == odd
        assert ranking.scores.tolist() == keys[odd].tolist()


@pytest.mark.parametrize("n_weights", [0, 4, N_ITEMS])
@pytest.mark.parametrize("weighed", [False, True])
def test_sums_over_histories_have_the_bits_of_sums_one_by_one(
    weighed: bool, n_weights: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bits agree whether most items or few items have a weight.

    If few have one, only these items are looked up.
    """
    monkeypatch.setattr(users, "CELLS_AT_ONCE", 64)
    rng = np.random.default_rng(4)
    lengths = np.append(rng.integers(0, 40, 200), 100)
    offsets = np.append(0, lengths.cumsum())
    columns = rng.integers(0, N_ITEMS, offsets[-1]).astype(np.int32)
    values = rng.integers(1, 9, len(columns)).astype(np.float32) if weighed else None
    weights = rng.normal(size=N_ITEMS).astype(np.float32)
    weights[rng.choice(N_ITEMS, N_ITEMS - n_weights, replace=False)] = 0
    for recency in (0.0, 0.25):
        history = History(offsets, columns, values, recency=recency)
        sums = HistoryBlocks.of(history, N_ITEMS).sums(weights)
        for user in range(len(lengths)):
            addends = weights[history.items(user)].astype(np.float64)
            own = history.weigh(user)
            one_by_one = np.append(0.0, addends if own is None else addends * own).cumsum()
            assert sums[user] == one_by_one[-1]


def test_users_with_equal_scores_have_deviation_0_despite_rounding() -> None:
    _, deviations = moments_of(np.array([0.1, 2.0, 0.0]), np.array([1e-19, 4.0, -1e-20]))
    assert deviations.tolist() == [0.0, 2.0, 0.0]
    _, deviations = measured_moments(lambda user: np.full(7, 0.1 * user), 3)
    assert deviations.tolist() == [0.0, 0.0, 0.0]

"""Rankings from scores or from a served model, and the measured time of one ranking."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import sparse

from svc.model.ranking.query import Query, Ranking
from svc.training.judging import rankers
from svc.training.judging.rankers import ScoreRanker, ServedRanker
from tests.families import EVERY_FAMILY, N_ITEMS, N_USERS, family


@pytest.mark.parametrize("cutoff", [1, 7, 60])
@pytest.mark.parametrize("levels", [1, 2, 5, 40])
@pytest.mark.parametrize("n_items", [2, 60, 513, 3000])
def test_rankings_are_those_of_a_whole_sort_by_score_and_then_by_column(cutoff: int, levels: int, n_items: int) -> None:
    """Rankings agree for ties within the page and at its end, and for any seen items."""
    rng = np.random.default_rng([cutoff, levels, n_items])
    scores = rng.integers(0, levels, (12, n_items)) / 4.0
    seen = sparse.csr_matrix((rng.random((12, n_items)) < 0.3).astype(np.float32))
    users = np.array([0, 3, 4, 11])
    for user, ranking in zip(users.tolist(), ScoreRanker(lambda rows: scores[rows], seen)(users, cutoff), strict=True):
        best_first = np.argsort(-scores[user], kind="stable")
        assert ranking == best_first[~np.isin(best_first, seen[user].indices)][:cutoff].tolist()


@pytest.mark.parametrize("name", EVERY_FAMILY)
@pytest.mark.parametrize("size", [1, 5, 30])
def test_rankings_of_a_served_model_are_its_answers(name: str, size: int) -> None:
    """Excluded and missing items are left out. Ties are broken as in the model."""
    model, rng = family(name), np.random.default_rng(size)
    rows = np.concatenate([rng.permutation(N_USERS)[:9], [-1, -1, -1]])
    columns = np.concatenate([rng.permutation(N_ITEMS)[:33], [-1] * 4])
    seen, more = (sparse.random(len(rows), len(columns), 0.15, "csr", np.float32, seed) for seed in (1, 2))
    plain = ServedRanker(model, rows, columns, seen)
    users = np.arange(1, len(rows))
    for ranker, excluded in ((plain, seen), (plain.excluding(more), seen + more)):
        for row, found in zip(users.tolist(), ranker(users, size), strict=True):
            gone = {*columns[excluded[row].indices].tolist(), *(set(range(N_ITEMS)) - set(columns.tolist()))}
            answer = model.rank([Query(N_ITEMS, user=int(rows[row]))])[0].items.tolist() if rows[row] >= 0 else []
            assert columns[found].tolist() == [column for column in answer if column not in gone][:size]
    assert plain(users, size)[-1] == [], "nobody who is unknown gets anything"


def test_pairs_have_the_users_and_items_known_to_model_and_split() -> None:
    """Pairs are given as rows and columns of the split."""
    model = family("neighbours")
    columns = (7, -1, 2, 1)
    ranker = ServedRanker(model, np.array([3, -1, 0]), np.array(columns), sparse.csr_matrix((3, 4)))
    dense = ranker.pairs(model.history).toarray()
    for row, user in ((0, 3), (2, 0)):
        own = set(model.history.items(user).tolist())
        assert dense[row].tolist() == [float(column in own) for column in columns]
    assert not dense[1].any()


NOTHING = Ranking(np.zeros(0, dtype=np.int32), np.zeros(0))


class SlowForOneUser:
    """A model that takes 9 ms for every third user and 2 ms for the others."""

    n_users = 1_000

    def __init__(self) -> None:
        self.now_s = 0.0
        self.users: list[int] = []

    def rank(self, queries: list[Query]) -> list[Ranking]:
        (query,) = queries
        self.users.append(query.user)
        self.now_s += 0.009 if len(self.users) % 3 == 0 else 0.002
        return [NOTHING]


def test_the_ranking_time_is_the_median_over_users_spread_over_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users are ranked one by one. A few slow users and the first call do not affect the median."""
    model = SlowForOneUser()
    monkeypatch.setattr(rankers.time, "thread_time", lambda: model.now_s)
    monkeypatch.setattr(rankers, "known_user", lambda _offer, user, *, limit: Query(limit=limit, user=user))
    assert rankers.rank_ms(model) == 2.0  # type: ignore[arg-type]
    first, *others = model.users
    assert first == others[0] == 0
    assert len(others) == rankers.N_USERS
    assert others[-1] > 0.9 * model.n_users
    assert all(low < high for low, high in itertools.pairwise(others))


def test_the_ranking_time_can_be_measured_for_some_users(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = SlowForOneUser(), np.arange(300, 400)
    monkeypatch.setattr(rankers.time, "thread_time", lambda: model.now_s)
    monkeypatch.setattr(rankers, "known_user", lambda _offer, user, *, limit: Query(limit=limit, user=user))
    assert rankers.rank_ms(model, rows) == 2.0  # type: ignore[arg-type]
    assert set(model.users) <= set(rows.tolist())
    assert len(set(model.users)) == rankers.N_USERS

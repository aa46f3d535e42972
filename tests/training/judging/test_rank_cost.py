"""The time of a ranking, measured with a clock that the test moves."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import sparse as sps

from svc.model.history import History
from svc.model.ranking.query import Query, Ranking
from svc.model.recommenders.popularity import PopularityScorer
from svc.training.judging import rank_cost

NOTHING = Ranking(np.zeros(0, dtype=np.int32), np.zeros(0))


class SlowForOneUser:
    """A model that takes 9 ms for every third user and 2 ms for the others."""

    n_users = 1_000

    def __init__(self) -> None:
        self.now_s = 0.0
        self.users: list[int] = []

    def known_user(self, user: int, *, limit: int) -> Query:
        return Query(limit=limit, user=user)

    def rank(self, queries: list[Query]) -> list[Ranking]:
        (query,) = queries
        self.users.append(query.user)
        self.now_s += 0.009 if len(self.users) % 3 == 0 else 0.002
        return [NOTHING]


def test_the_cost_is_the_median_over_users_spread_over_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users are ranked one by one. Neither a few slow ones nor the first call affect the median."""
    model = SlowForOneUser()
    monkeypatch.setattr(rank_cost.time, "thread_time", lambda: model.now_s)
    assert rank_cost.rank_ms(model) == 2.0  # type: ignore[arg-type]
    first, *others = model.users
    assert first == others[0] == 0
    assert len(others) == rank_cost.N_USERS
    assert others[-1] > 0.9 * model.n_users
    assert all(low < high for low, high in itertools.pairwise(others))


def test_the_cost_can_be_measured_for_some_users(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = SlowForOneUser(), np.arange(300, 400)
    monkeypatch.setattr(rank_cost.time, "thread_time", lambda: model.now_s)
    assert rank_cost.rank_ms(model, rows) == 2.0  # type: ignore[arg-type]
    assert set(model.users) <= set(rows.tolist())
    assert len(set(model.users)) == rank_cost.N_USERS


def test_the_cost_of_a_scorer_is_that_of_its_model() -> None:
    """It has the users and histories of its model."""
    matrix = sps.random(400, 50, density=0.2, random_state=1, format="csr")
    queried: list[tuple[int, list[int], list[float]]] = []

    class Recorder(PopularityScorer):
        reads_values = True

        def rank(self, queries: Sequence[Query], history: History) -> list[Ranking]:
            (query,) = queries
            values = history.values(query.user)
            queried.append((query.user, history.items(query.user).tolist(), [] if values is None else values.tolist()))
            return super().rank(queries, history)

    assert rank_cost.rank_ms_of(Recorder(np.arange(50.0)), matrix) > 0.0
    assert len(queried) == rank_cost.N_USERS + 1
    for user, items, values in queried:
        assert items == matrix[user].indices.tolist()
        assert values == matrix[user].data.astype(np.float32).tolist()

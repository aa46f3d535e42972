"""A served ranker returns the model's answers for the users of a split, in its rows and columns."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from svc.model.ranking.query import Query
from svc.training.judging.served_ranker import ServedRanker
from tests.families import EVERY_FAMILY, N_ITEMS, N_USERS, family


@pytest.mark.parametrize("name", EVERY_FAMILY)
@pytest.mark.parametrize("size", [1, 5, 30])
def test_its_rankings_are_the_answers_of_the_model(name: str, size: int) -> None:
    """Excluded and missing items are left out, and ties are broken as in the model."""
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
    """They are in rows and columns of the split."""
    model = family("neighbours")
    columns = (7, -1, 2, 1)
    ranker = ServedRanker(model, np.array([3, -1, 0]), np.array(columns), sparse.csr_matrix((3, 4)))
    dense = ranker.pairs(model.history).toarray()
    for row, user in ((0, 3), (2, 0)):
        own = set(model.history.items(user).tolist())
        assert dense[row].tolist() == [float(column in own) for column in columns]
    assert not dense[1].any()

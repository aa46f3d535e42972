"""The live model's best items among what counts, as an evaluation of all of its scores would find them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from svc.model.ranking.query import Query
from svc.training.evaluation.evaluator import Evaluator
from svc.training.promotion.live_scores import IndexMapping, LiveScores
from tests.families import EVERY_FAMILY, N_ITEMS, N_USERS, family


@pytest.mark.parametrize("name", EVERY_FAMILY)
@pytest.mark.parametrize("cutoff", [1, 5, 30])
def test_its_rankings_are_those_of_all_its_scores(name: str, cutoff: int) -> None:
    """In the rows and columns of the split, without what is seen or gone, with ties in the order of the evaluation."""
    model, rng = family(name), np.random.default_rng(cutoff)
    rows = np.concatenate([rng.permutation(N_USERS)[:9], [-1, -1, -1]])
    columns = np.concatenate([rng.permutation(N_ITEMS)[:33], [-1] * 4])
    places = IndexMapping(rows, columns)
    seen = sparse.csr_matrix((rng.random((len(rows), len(columns))) < 0.2).astype(np.float32))
    truth = sparse.csr_matrix((rng.random((len(rows), len(columns))) < 0.3).astype(np.float32))
    known = places.history(model)
    evaluator = Evaluator(truth, offset=0, cutoff=cutoff, seed=1)

    def everything(wanted: np.ndarray) -> np.ndarray:
        scores = np.full((len(wanted), len(columns)), -np.inf)
        for place, row in enumerate(wanted.tolist()):
            if rows[row] >= 0:
                ranking = model.rank([Query(N_ITEMS, user=int(rows[row]), include_seen=True)])[0]
                own = np.full(N_ITEMS, -np.inf)
                own[ranking.items] = ranking.scores
                scores[place] = np.where(columns >= 0, own[columns], -np.inf)
        return scores

    found = evaluator.rankings(LiveScores(model, places, seen + known, cutoff), seen + known)
    assert found == evaluator.rankings(everything, seen + known)
    assert found[-1] == [], "nobody who is unknown gets anything"


def test_the_history_has_the_pairs_that_both_know() -> None:
    """By the rows and columns of the split."""
    model = family("neighbours")
    places = IndexMapping(np.array([3, -1, 0]), np.array([7, -1, 2, 1]))
    dense = places.history(model).toarray()
    for row, user in ((0, 3), (2, 0)):
        own = set(model.history.items(user).tolist())
        assert dense[row].tolist() == [float(column in own) for column in (7, -1, 2, 1)]
    assert not dense[1].any()

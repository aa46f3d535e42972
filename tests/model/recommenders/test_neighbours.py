"""Sparse item-to-item weights give the sums and reasons of the dense matrix."""

from __future__ import annotations

import numpy as np
import pytest

from svc.model.history import History
from svc.model.ranking.query import Query
from svc.model.recommenders.neighbours import NeighbourScorer

N = 30


@pytest.fixture
def dense() -> np.ndarray:
    """Return weights with empty rows and a diagonal."""
    rng = np.random.default_rng(4)
    weights = np.where(rng.random((N, N)) < 0.3, rng.integers(1, 9, (N, N)) / 8, 0.0)
    weights[5] = 0
    return weights


def scorer_of(dense: np.ndarray) -> NeighbourScorer:
    rows, columns = np.nonzero(dense)
    offsets = np.searchsorted(rows, np.arange(N + 1)).astype(np.int64)
    return NeighbourScorer(offsets, columns.astype(np.int32), dense[rows, columns].astype(np.float32))


@pytest.mark.parametrize("rows", [[], [5], [0], [7, 3, 3, 29]])
def test_totals_are_sums_of_rows(dense: np.ndarray, rows: list[int]) -> None:
    """Rows are weighted by the values of the profile. An empty profile gives zeros.

    A blend may request the totals in another order of items.
    """
    scorer, picked = scorer_of(dense), np.array(rows, dtype=np.int32)
    values, places = np.arange(1.0, len(rows) + 1), np.arange(N)[::-1].astype(np.int32)
    assert scorer.totals(picked, None).tolist() == dense[picked].sum(axis=0).tolist()
    weighted = scorer.totals(picked, values)
    assert weighted.tolist() == (values @ dense[picked]).tolist()
    assert scorer.totals(picked, values, places).tolist() == weighted[::-1].tolist()


def test_contributions_add_up_to_the_scores(dense: np.ndarray) -> None:
    """Each item of the history has one addend in every score, which may be 0."""
    scorer = scorer_of(dense)
    history = History(np.array([0, 3], dtype=np.int64), np.array([2, 5, 11], dtype=np.int32))
    query = Query(limit=N, user=0)
    (ranking,) = scorer.rank([query], history)
    found = scorer.contributions(query, history, ranking.items)
    assert found.columns.tolist() == [2, 5, 11]
    np.testing.assert_array_equal(found.of_columns.sum(axis=1), ranking.scores)

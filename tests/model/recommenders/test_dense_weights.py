"""Long histories and many candidates are processed in pieces, with the same result."""

from __future__ import annotations

import numpy as np
import pytest

from svc.model.history import History
from svc.model.ranking.query import Query
from svc.model.recommenders import dense_weights
from svc.model.recommenders.dense_weights import DenseWeightsScorer


def test_pieces_do_not_change_the_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranking is the same for pieces of any size, and equals that of a full sort."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(400, 400)).astype(np.float32)
    scorer = DenseWeightsScorer(weights)
    scorer.ready()
    seen = np.sort(rng.choice(400, 150, replace=False)).astype(np.int32)
    values = rng.integers(1, 5, 150).astype(np.float32)
    history = History(np.array([0, 150], dtype=np.int32), seen, values)
    query = Query(limit=40, user=0)
    (whole,) = scorer.rank([query], history)
    monkeypatch.setattr(dense_weights, "ROWS_AT_ONCE", 7)
    monkeypatch.setattr(dense_weights, "CELLS_AT_ONCE", 1000)
    (pieces,) = scorer.rank([query], history)
    assert whole.items.tobytes() == pieces.items.tobytes()
    assert whole.scores.tobytes() == pieces.scores.tobytes()
    expected = values.astype(np.float64) @ weights[seen]
    expected[seen] = -np.inf
    assert whole.items.tolist() == np.argsort(-expected)[:40].tolist()


def test_an_empty_history_ranks_by_column() -> None:
    """All items score 0, so the ranking is in the order of columns."""
    scorer = DenseWeightsScorer(np.ones((5, 5), dtype=np.float32))
    scorer.ready()
    history = History(np.array([0, 0], dtype=np.int32), np.empty(0, dtype=np.int32))
    (ranking,) = scorer.rank([Query(limit=3, user=0)], history)
    assert ranking.items.tolist() == [0, 1, 2]

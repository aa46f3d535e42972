"""Rankings and metrics, held against irspack's own evaluator."""

from __future__ import annotations

import numpy as np
import pytest
from irspack import Evaluator
from irspack.recommenders import (
    CosineKNNRecommender,
    DenseSLIMRecommender,
    IALSRecommender,
    RP3betaRecommender,
    TruncatedSVDRecommender,
)
from scipy import sparse

from svc.training.evaluate import METRICS, Evaluation, scorer_of
from svc.training.fit import refit

RNG = np.random.default_rng(5)
FULL = sparse.csr_matrix((RNG.random((60, 700)) < 0.06).astype(np.float32))
HELD_MASK = sparse.csr_matrix((RNG.random((60, 700)) < 0.3).astype(np.float32))
HELD = FULL.multiply(HELD_MASK).tocsr()
TRAIN = (FULL - HELD).tocsr()
TRAIN.eliminate_zeros()


@pytest.mark.filterwarnings("ignore:Found col-major")
@pytest.mark.parametrize(
    ("cls", "epochs", "parameters"),
    [
        (IALSRecommender, 3, {"n_components": 8, "alpha0": 0.1, "n_threads": 1}),
        (CosineKNNRecommender, None, {"top_k": 50}),
        (RP3betaRecommender, None, {"top_k": 50}),
        (DenseSLIMRecommender, None, {}),
        (TruncatedSVDRecommender, None, {"n_components": 8}),
    ],
)
@pytest.mark.parametrize("cutoff", [1, 20, 700])
def test_metrics_are_those_of_irspack(cls: type, epochs: int | None, parameters: dict, cutoff: int) -> None:
    """Every metric agrees, for every family and for cutoffs up to all items."""
    trained = refit(cls(TRAIN, **parameters), epochs)
    expected = Evaluator(HELD[20:], offset=20, cutoff=cutoff, n_threads=1).get_score(trained)
    found = Evaluation(HELD[20:], offset=20, cutoff=cutoff).metrics(scorer_of(trained), TRAIN)
    for name in ("ndcg", "map", "recall", "hit", "precision"):
        assert found[name] == pytest.approx(expected[name], abs=3e-3 if cutoff == 700 else 1e-9), name
    assert set(found) == set(METRICS)


def test_many_ties_are_broken_by_the_lower_item() -> None:
    """A model that knows only a few scores is filled up from the left, without the seen items."""
    truth = sparse.csr_matrix(([1.0], ([0], [1])), shape=(1, 3000))
    seen = sparse.csr_matrix(([1.0], ([0], [0])), shape=(1, 3000))
    scores = np.zeros((1, 3000))
    scores[0, 2999] = 1.0
    found = Evaluation(truth, offset=0, cutoff=2).metrics(lambda begin, end: scores[begin:end].copy(), seen)
    assert found["recall"] == 1.0
    assert found["precision"] == 0.5


def test_seen_items_never_count() -> None:
    """A held-out item that is also in training can not be recommended."""
    truth = sparse.csr_matrix(([1.0], ([0], [0])), shape=(1, 4))
    found = Evaluation(truth, offset=0, cutoff=4).metrics(lambda begin, end: np.ones((end - begin, 4)), truth)
    assert found["hit"] == 0.0


def test_a_sample_is_seeded_and_no_larger_than_asked() -> None:
    """Between epochs few users stand for all; the same ones in every run."""
    evaluation = Evaluation(HELD, offset=0, cutoff=5)
    one, two = evaluation.sample(7, 1), evaluation.sample(7, 1)
    assert np.count_nonzero(np.diff(one.heldout.indptr)) == 7
    assert (one.heldout != two.heldout).nnz == 0
    assert evaluation.sample(1000, 1) is evaluation

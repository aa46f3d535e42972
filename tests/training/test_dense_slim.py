"""The variant of DenseSLIM trains what irspack's own does."""

from __future__ import annotations

import numpy as np
from irspack.recommenders import DenseSLIMRecommender
from scipy import sparse

from svc.training.dense_slim import UnlockedDenseSLIMRecommender


def test_the_weights_are_those_of_irspack() -> None:
    matrix = sparse.csr_matrix((np.random.default_rng(1).random((200, 60)) < 0.2).astype(np.float32))
    expected = DenseSLIMRecommender(matrix, reg=30.0).learn()
    found = UnlockedDenseSLIMRecommender(matrix, reg=30.0).learn()
    np.testing.assert_allclose(found.W, expected.W, atol=1e-5)
    np.testing.assert_allclose(
        found.get_score(np.arange(200)), expected.get_score(np.arange(200)), rtol=1e-4, atol=1e-5
    )

"""The variants of DenseSLIM and EDLAE train what irspack's own do."""

from __future__ import annotations

import numpy as np
import pytest
from irspack.recommenders import DenseSLIMRecommender, EDLAERecommender
from scipy import sparse

from svc.training.dense_slim import SparseEDLAERecommender, UnlockedDenseSLIMRecommender


def test_the_weights_are_those_of_irspack() -> None:
    matrix = sparse.csr_matrix((np.random.default_rng(1).random((200, 60)) < 0.2).astype(np.float32))
    expected = DenseSLIMRecommender(matrix, reg=30.0).learn()
    found = UnlockedDenseSLIMRecommender(matrix, reg=30.0).learn()
    np.testing.assert_allclose(found.W, expected.W, atol=1e-5)
    np.testing.assert_allclose(
        found.get_score(np.arange(200)), expected.get_score(np.arange(200)), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("dropout_p", [0.0, 0.4])
def test_the_weights_of_edlae_are_those_of_irspack(dropout_p: float) -> None:
    matrix = sparse.csr_matrix((np.random.default_rng(1).random((200, 60)) < 0.2).astype(np.float32))
    expected = EDLAERecommender(matrix, reg=30.0, dropout_p=dropout_p).learn()
    found = SparseEDLAERecommender(matrix, reg=30.0, dropout_p=dropout_p).learn()
    np.testing.assert_allclose(found.W.toarray(), np.asarray(expected.W), atol=1e-5)


def test_of_edlae_the_largest_weights_of_each_source_item_are_kept() -> None:
    """By amount, for negative weights say as much; what is scored in the search is what is kept."""
    matrix = sparse.csr_matrix((np.random.default_rng(1).random((200, 60)) < 0.2).astype(np.float32))
    whole = SparseEDLAERecommender(matrix, reg=30.0, dropout_p=0.2).learn().W.toarray()
    kept = SparseEDLAERecommender(matrix, reg=30.0, dropout_p=0.2, top_k=7).learn().W
    assert (np.diff(kept.indptr) == 7).all()
    found = kept.toarray()
    assert (np.sort(np.abs(found), axis=1)[:, -7] == np.sort(np.abs(whole), axis=1)[:, -7]).all()
    assert (found[found != 0] == whole[found != 0]).all()

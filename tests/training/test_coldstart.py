"""Cold ids are placed exactly as irspack's exact solver places them."""

from __future__ import annotations

import numpy as np
import pytest
from irspack.recommenders import IALSRecommender
from scipy import sparse

from svc.training.coldstart import place
from svc.training.fit import refit


@pytest.mark.parametrize("nu", [0.0, 1.0])
@pytest.mark.parametrize("loss", ["IALSPP", "ORIGINAL"])
def test_places_are_those_of_irspack_with_cholesky(nu: float, loss: str) -> None:
    """For both sides, both losses and both scalings of the regularization."""
    rng = np.random.default_rng(3)
    matrix = sparse.csr_matrix((rng.random((50, 40)) < 0.2).astype(np.float32))
    users, items = rng.random((50, 3)).astype(np.float32), rng.random((40, 4)).astype(np.float32)
    trained = refit(
        IALSRecommender(
            matrix, n_components=6, alpha0=0.2, reg=0.05, nu=nu, loss_type=loss, solver_type="CHOLESKY", n_threads=1,
            user_features=users, item_features=items, lambda_user_feature=1.0, lambda_item_feature=1.0,
        ),
        4,
    )  # fmt: skip
    expected = trained.compute_user_embedding_from_features(users)
    np.testing.assert_allclose(place(trained, "user", sparse.csr_matrix(users)), expected, atol=2e-5)
    expected = trained.compute_item_embedding_from_features(items)
    np.testing.assert_allclose(place(trained, "item", sparse.csr_matrix(items)), expected, atol=2e-5)

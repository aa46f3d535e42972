"""iALS with many features, compared with irspack's own training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse

from svc.training.fitting.algorithms import wide_features
from svc.training.fitting.algorithms.ials import MeanPriorIALSRecommender
from svc.training.fitting.algorithms.wide_features import WideFeatureTrainer

N_USERS, N_ITEMS = 300, 200


def trained(**parameters: Any) -> MeanPriorIALSRecommender:
    recommender = MeanPriorIALSRecommender(
        sparse.random(N_USERS, N_ITEMS, 0.05, format="csr", rng=np.random.default_rng(1)),
        n_components=8,
        alpha0=0.05,
        reg=0.01,
        n_threads=1,
        solver_type="CHOLESKY",
        **parameters,
    )
    recommender.start_learning()
    for _ in range(3):
        recommender.run_epoch()
        recommender.save_state()
    recommender.run_epoch()
    recommender.load_state()
    return recommender


def features(rows: int, places: int) -> sparse.csr_matrix:
    drawn = sparse.random(rows, places, 0.05, format="csr", rng=np.random.default_rng(places))
    return sparse.hstack([drawn, np.ones((rows, 1))], format="csr", dtype=np.float32)


@pytest.mark.parametrize(
    "parameters",
    [
        {"item_features": features(N_ITEMS, 90), "lambda_item_feature": 20.0},
        {"item_features": features(N_ITEMS, 90), "lambda_item_feature": 20.0, "mean_prior": True},
        {
            "item_features": features(N_ITEMS, 90),
            "lambda_item_feature": 5.0,
            "user_features": features(N_USERS, 70),
            "lambda_user_feature": 1e3,
        },
        {"user_features": features(N_USERS, 70), "lambda_user_feature": 20.0, "confidence_scaling": "log"},
        {
            "user_features": features(N_USERS, 70),
            "item_features": features(N_ITEMS, 20),
            "lambda_user_feature": 20.0,
            "lambda_item_feature": 9.0,
            "loss_type": "ORIGINAL",
        },
    ],
)
def test_wide_features_train_the_model_of_irspack(parameters: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors and weights of either side, wide or not, agree after several epochs and a restored state."""
    expected = trained(**parameters)
    monkeypatch.setattr(wide_features, "MOST_DENSE_PLACES", 50)
    found = trained(**parameters)
    assert isinstance(found.trainer, WideFeatureTrainer)
    mine, theirs = found.trainer_as_ials.core_trainer, expected.trainer_as_ials.core_trainer
    for part in ("user", "item", "user_feature_weight", "item_feature_weight"):
        np.testing.assert_allclose(getattr(mine, part), getattr(theirs, part), rtol=0, atol=3e-5)


def test_few_features_are_left_to_irspack() -> None:
    """Models with few features do not change."""
    assert not isinstance(
        trained(item_features=features(N_ITEMS, 90), lambda_item_feature=20.0).trainer, WideFeatureTrainer
    )

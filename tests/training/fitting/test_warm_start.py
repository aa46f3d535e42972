"""Warm starts: a training that starts from the vectors of the live model."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from scipy import sparse

from svc.model.ids import IdTable
from svc.model.model import Model
from svc.model.recommenders.blend import BlendScorer
from svc.model.recommenders.factors import FactorScorer
from svc.training.fitting.algorithms.ials import MeanPriorIALSRecommender
from svc.training.fitting.export import AS_TRAINED, to_history, to_scorer
from svc.training.fitting.train import train_epochs, train_trial
from svc.training.fitting.trial import TrialRecord
from svc.training.fitting.warm_start import WarmStart
from tests.families import family

USERS, ITEMS = [f"u{number}" for number in range(30)], [f"i{number}" for number in range(12)]
NAME = "IALSRecommender"


def learner(matrix: sparse.csr_matrix, **parameters: Any) -> MeanPriorIALSRecommender:
    return MeanPriorIALSRecommender(matrix, n_components=4, alpha0=0.5, reg=0.1, n_threads=1, **parameters)


def interactions(n_users: int, n_items: int) -> sparse.csr_matrix:
    return sparse.random_array((n_users, n_items), density=0.4, rng=5, dtype=np.float32, format="csr")


def model_of(trained: MeanPriorIALSRecommender) -> Model:
    """Return a live model whose items are in another order than in the training."""
    columns = np.arange(len(ITEMS))[::-1].astype(np.int32)
    model = Model(
        user_ids=IdTable.from_ids(USERS),
        item_ids=IdTable.from_ids([ITEMS[column] for column in columns]),
        history=to_history(trained.X_train_all.tocsr()[:, columns]),
        scorer=to_scorer(trained, NAME, columns),
        features=None,
    )
    model.ready()
    return model


@pytest.mark.parametrize("mean_prior", [False, True])
def test_known_ids_get_the_live_vectors_and_new_ids_keep_random_ones(mean_prior: bool) -> None:
    """The order of ids in the live model does not matter. The prior of users is restored, too."""
    before = train_epochs(learner(interactions(30, 12), mean_prior=mean_prior), 4)
    user_ids, item_ids = ["new", *USERS[:20][::-1]], [*ITEMS[3:], "new"]
    start = WarmStart.of(model_of(before), "12345678", user_ids, item_ids)
    assert start is not None
    fresh, placed = (learner(interactions(21, 10), mean_prior=mean_prior, random_seed=9) for _ in range(2))
    fresh.start_learning()
    placed.start_learning()
    start.place(placed)
    learned, drawn, found = (one.trainer_as_ials.core_trainer for one in (before, fresh, placed))
    np.testing.assert_array_equal(found.user[1:], learned.user[:20][::-1])
    np.testing.assert_array_equal(found.user[0], drawn.user[0])
    np.testing.assert_array_equal(found.item[:9], learned.item[3:])
    np.testing.assert_array_equal(found.item[9], drawn.item[9])
    expected = learned if mean_prior else drawn
    np.testing.assert_array_equal(found.user_feature_weight, expected.user_feature_weight)


@pytest.mark.parametrize(("cold", "warm"), [(1, 1), (4, 2), (7, 4)])
def test_a_warm_start_trains_half_of_the_epochs(cold: int, warm: int) -> None:
    """The number is rounded up."""
    matrix = interactions(30, 12)
    start = WarmStart.of(model_of(train_epochs(learner(matrix), 4)), "12345678", USERS, ITEMS)
    assert start is not None
    by_hand = learner(matrix)
    by_hand.start_learning()
    start.place(by_hand)
    for _ in range(warm):
        by_hand.run_epoch()
    refitted = train_epochs(learner(matrix), cold, start)
    np.testing.assert_array_equal(refitted.get_item_embedding(), by_hand.get_item_embedding())
    trial, builder = TrialRecord(0, NAME, {}, "complete", 0.1, {}, cold, 1.0), Mock(build=lambda *_: learner(matrix))
    scorer = train_trial(builder, trial, matrix, {}, start=start)
    assert isinstance(scorer, FactorScorer)
    expected = to_scorer(by_hand, NAME, AS_TRAINED)
    assert isinstance(expected, FactorScorer)
    np.testing.assert_array_equal(scorer.index.factors, expected.index.factors)


def test_a_blend_starts_from_the_vectors_of_its_ials() -> None:
    live = model_of(train_epochs(learner(interactions(30, 12)), 4))
    alone = WarmStart.of(live, "12345678", USERS, ITEMS)
    live.scorer = BlendScorer(live.scorer, (), (1.0,), np.ones((1, 30)))  # type: ignore[arg-type]
    within = WarmStart.of(live, "12345678", USERS, ITEMS)
    assert alone is not None
    assert within is not None
    np.testing.assert_array_equal(within.items, alone.items)


@pytest.mark.parametrize("name", ["IALS", "SVD", "BPR", "neighbours", "popularity", "blend"])
def test_models_without_ials_or_with_features_give_no_start(name: str) -> None:
    """The iALS of one model has features. The blend's factor model is a truncated SVD."""
    assert WarmStart.of(family(name), "12345678", USERS, ITEMS) is None

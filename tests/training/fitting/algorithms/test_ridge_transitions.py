"""The algorithm RidgeTransitions, compared with the regression that defines it."""

from __future__ import annotations

from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from svc.errors import RecipeError
from svc.training.fitting.algorithms.ridge_transitions import RidgeTransitionsRecommender
from tests import planned
from tests.training.fitting.algorithms.test_transitions import chain_training, write_chain
from tests.training.runs import Make, opened, run

N_USERS, N_ITEMS = 40, 9


def histories(seed: int) -> sparse.csr_matrix:
    """Return distinct times of random choices, (users, items). Item 5 has no user, and item 6 a single one."""
    rng = np.random.default_rng(seed)
    chosen = rng.random((N_USERS, N_ITEMS)) < 0.6
    chosen[:, 5], chosen[1:, 6], chosen[0, 6] = False, False, True
    order = rng.permutation(N_USERS * N_ITEMS).reshape(chosen.shape) + 1
    return sparse.csr_matrix((chosen * order).astype(np.int64))


def regression(times: NDArray[np.int64], *, decay: float, ridge: float, popular_ridge: float) -> NDArray[np.float64]:
    """Return the weights by their definition, choice by choice. Items of one user take no part."""
    inputs, targets = [], []
    for history in times:
        items = [item for item in np.argsort(history, kind="stable") if history[item] > 0]
        for place, target in enumerate(items):
            inputs.append(np.zeros(N_ITEMS))
            targets.append(np.eye(N_ITEMS)[target])
            for distance, item in enumerate(reversed(items[:place]), start=1):
                inputs[-1][item] = np.exp(-decay * distance)
    kept = np.flatnonzero((times > 0).sum(axis=0) > 1)
    of_kept, chosen = np.array(inputs)[:, kept], np.array(targets)[:, kept]
    gram = of_kept.T @ of_kept
    own = gram.diagonal()
    penalty = ridge * own.mean() * np.eye(len(kept)) + popular_ridge * np.diag(own)
    weights = np.zeros((N_ITEMS, N_ITEMS))
    weights[np.ix_(kept, kept)] = np.linalg.solve(gram + penalty, of_kept.T @ chosen)
    return weights


@hypothesis.given(
    seed=st.integers(0, 10_000),
    decay=st.floats(0.7, 3.0),
    ridge=st.floats(0.1, 30.0),
    popular_ridge=st.floats(0.1, 10.0),
)
@hypothesis.settings(max_examples=30)
def test_the_weights_minimize_the_ridge_regression(seed: int, decay: float, ridge: float, popular_ridge: float) -> None:
    """Decays below a thousandth are left out, so the weights agree to a hundredth of the largest."""
    times, penalties = histories(seed), {"ridge": ridge, "popular_ridge": popular_ridge}
    trained = RidgeTransitionsRecommender(
        (times > 0).astype(float), times=times, decay=decay, top_k=N_ITEMS, **penalties
    ).learn()
    expected = regression(times.toarray(), decay=decay, **penalties)
    np.testing.assert_allclose(trained.W.toarray(), expected, atol=0.01 * np.abs(expected).max())


def test_the_largest_weights_of_each_item_are_kept() -> None:
    """Of negative weights, those nearest to 0 are the largest."""
    times = histories(7)
    every, kept = (
        RidgeTransitionsRecommender((times > 0).astype(float), times=times, top_k=top_k).learn().W.toarray()
        for top_k in (N_ITEMS, 3)
    )
    for row, strongest in zip(every, kept, strict=True):
        assert sorted(strongest[strongest != 0]) == sorted(np.sort(row[row != 0])[-3:])


def test_items_of_one_time_are_in_no_order() -> None:
    """Each pair of one time counts in one direction, drawn at random, and the same in each training."""
    times = sparse.csr_matrix(np.ones((400, 2), dtype=np.int64))
    first, second = (
        RidgeTransitionsRecommender((times > 0).astype(float), times=times).learn().W.toarray() for _ in range(2)
    )
    assert first[0, 1] == pytest.approx(first[1, 0], rel=0.2)
    np.testing.assert_array_equal(first, second)


def test_a_recipe_names_it_for_histories_in_order(make_recipe: Make, tmp_path: Path) -> None:
    """Its model is one of item weights, so it answers for a history, explains, weighs dislikes and blends like them."""
    ratings = write_chain(tmp_path / "chain.csv")
    result = run(make_recipe(ratings=ratings, training=chain_training("TopPop", "RidgeTransitions")))
    model, header = opened(result)
    assert header["best_class"] == "RidgeTransitionsRecommender"
    query = planned.related(model, seed_items=["i10"], item_features=None, user_features=None, limit=1).query
    assert model.rank([query])[0].items.tolist() == [model.item_ids.index("i11")]
    with pytest.raises(RecipeError, match=r"RidgeTransitionsRecommender .* needs schema\.time_column"):
        make_recipe(
            schema={"user_column": "user_id", "item_column": "item_id"},
            training={"algorithms": ["RidgeTransitions"], "n_trials": 1, "cutoff": 5},
        )

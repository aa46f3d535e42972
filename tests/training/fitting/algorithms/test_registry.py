"""Search spaces of the algorithms, their bounds, and the first guesses."""

from __future__ import annotations

import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from svc.recipe.algorithms import TUNED
from svc.training.fitting.algorithms.registry import ALGORITHMS, nearest, search_space

TRAINABLE = [name for name in ALGORITHMS if name != "BPRFMRecommender"]


@pytest.mark.parametrize("name", TRAINABLE)
@pytest.mark.parametrize(("n_users", "n_items"), [(3, 2), (40, 30), (50_000, 40_000)])
def test_first_guesses_lie_in_the_search_space(name: str, n_users: int, n_items: int) -> None:
    """Every first guess sets all parameters, also for small data."""
    space = search_space(name, n_users=n_users, n_items=n_items, in_order=True)
    without_order = search_space(name, n_users=n_users, n_items=n_items).guesses
    assert space.guesses[: len(without_order)] == without_order
    for guess in space.guesses:
        assert guess.keys() == space.keys()
        for parameter, distribution in space.items():
            inner = distribution.to_internal_repr(guess[parameter])
            assert distribution._contains(inner), (parameter, guess[parameter])


@pytest.mark.parametrize("name", TRAINABLE)
def test_every_tuned_parameter_is_one_of_the_constructor(name: str) -> None:
    """A range for a parameter that the class does not accept would fail every trial.

    The arguments for threads and seed are set if the class has them.
    """
    import numpy as np
    from scipy import sparse

    space = search_space(name, n_users=12, n_items=8)
    matrix = sparse.csr_matrix((np.random.default_rng(0).random((12, 8)) < 0.5).astype(np.float32))
    times = {"times": matrix.astype(np.int64)} if ALGORITHMS[name].takes_times else {}
    algorithm = ALGORITHMS[name]
    for guess in space.guesses:
        trained = algorithm.irspack_class(matrix, **times, **guess)
        assert (algorithm.threads, algorithm.seed) == tuple(
            argument if hasattr(trained, argument) else None for argument in ("n_threads", "random_seed")
        )


def test_bounds_of_sizes_are_capped_by_the_data() -> None:
    space = search_space("RP3betaRecommender", n_users=500, n_items=120)
    assert space["top_k"] == IntDistribution(10, 120, log=True)
    assert not search_space("TopPopRecommender", n_users=5, n_items=5)
    assert isinstance(
        search_space("CosineKNNRecommender", n_users=5, n_items=5)["feature_weighting"], CategoricalDistribution
    )


@pytest.mark.parametrize(
    ("distribution", "middle"),
    [
        (IntDistribution(4, 100, log=True), 20),
        (IntDistribution(4, 101), 52),
        (FloatDistribution(0.01, 100.0, log=True), 1.0),
        (FloatDistribution(0.0, 5.0), 2.5),
        (CategoricalDistribution(("a", "b")), "a"),
    ],
)
def test_a_missing_value_is_the_middle_of_the_range(distribution: BaseDistribution, middle: object) -> None:
    """It is the geometric mean of a logarithmic range, and the first of choices."""
    assert nearest(None, distribution) == middle


@pytest.mark.parametrize("name", TRAINABLE)
def test_the_parameters_of_search_space_are_those_of_the_search(name: str) -> None:
    """The table for recipes, which must not import Optuna, has the same parameters and choices."""
    sides = ("user", "item") if ALGORITHMS[name].takes_features else ()
    spaces = [search_space(name, n_users=5000, n_items=3000, feature_sides=chosen) for chosen in (sides, ())]
    assert {parameter for space in spaces for parameter in space} == TUNED[name].keys()
    for space in spaces:
        for parameter, distribution in space.items():
            choices = TUNED[name][parameter].choices
            if choices:
                assert isinstance(distribution, CategoricalDistribution)
                assert set(distribution.choices) == set(choices)


def test_a_recipe_replaces_single_bounds() -> None:
    """A replaced bound keeps the default scale. It is limited by the data and has no steps."""
    wanted = {"n_components": [64, 2000], "reg": [1e-5, 0.5], "mean_prior": [True]}
    space = search_space("IALSRecommender", n_users=500, n_items=300, wanted=wanted)
    assert space["n_components"] == IntDistribution(64, 2000, log=True)
    assert space["reg"] == FloatDistribution(1e-5, 0.5, log=True)
    assert space["mean_prior"] == CategoricalDistribution((True,))
    assert not space.grows
    assert all(guess["mean_prior"] is True and guess["n_components"] >= 64 for guess in space.guesses)
    knn = search_space("CosineKNNRecommender", n_users=5, n_items=30, wanted={"top_k": [5, 500], "shrinkage": [0, 50]})
    assert knn["top_k"] == IntDistribution(5, 30, log=True)
    assert knn["shrinkage"] == FloatDistribution(0.0, 50.0)


def test_user_features_replace_the_mean_prior() -> None:
    """The constant of user features is the mean, so `mean_prior` is not tuned."""
    with_users = search_space("IALSRecommender", n_users=9, n_items=9, feature_sides=("user",))
    assert "mean_prior" not in with_users
    assert "mean_prior" in search_space("IALSRecommender", n_users=9, n_items=9, feature_sides=("item",))

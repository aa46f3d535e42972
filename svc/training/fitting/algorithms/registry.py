"""The table of algorithms: first guesses, search ranges and properties of each irspack recommender.

The parameters to tune and their ranges are irspack's `default_tune_range`, replaced or extended by `ranges`. The first
trials of a search try the guesses, which are good on most data, so that a small budget suffices. The size of the data
limits some ranges.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from svc import install_command
from svc.errors import ConfigError
from svc.recipe.algorithms import RIDGE_TRANSITIONS, TRANSITIONS, TUNED

Params = dict[str, Any]
GROWS_FROM = 128
"""Lowest upper limit of `n_components` in a search, once a trial is complete. Larger values that score better raise it.
"""
_UNOBSERVED_WEIGHT = 500.0
"""A good value of alpha0 · (number of items) for iALS with little regularization, on dense and sparse data. `alpha0` is
the weight of items that a user has not chosen.
"""

_LARGE_CATALOGUE = 20_000
"""Number of items from which a catalogue gets the guesses for large ones."""


@dataclass(frozen=True, slots=True)
class Space(Mapping[str, BaseDistribution]):
    """The search space of one algorithm: a distribution for each parameter to tune, by name.

    `guesses` are the parameters of the first trials, in turn. `grows` names the parameters that are model sizes. Once
    a trial is complete, their upper limit is at least GROWS_FROM, and is raised while larger values score better (see
    `AlgorithmSampler`).
    """

    distributions: Mapping[str, BaseDistribution] = field(default_factory=dict)
    guesses: tuple[Params, ...] = ()
    grows: frozenset[str] = frozenset()

    def __getitem__(self, name: str) -> BaseDistribution:
        return self.distributions[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.distributions)

    def __len__(self) -> int:
        return len(self.distributions)

    @property
    def is_one_number(self) -> bool:
        """Return whether there is only one parameter, a number that varies. A line search then needs few trials."""
        ranges = [
            values for values in self.values() if not (isinstance(values, CategoricalDistribution) or values.single())
        ]
        return len(self) == len(ranges) == 1


@dataclass(frozen=True, slots=True)
class Epochs:
    """Settings of early stopping.

    The model is scored after every `every` epochs. Training ends after `most` epochs, or when `patience` scores in a
    row have not exceeded the best one.
    """

    most: int
    every: int
    patience: int


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One row of the table: an algorithm, how it is tuned and how it is trained.

    - `guesses` are the parameters of the first trials. A value may be a function of the number of items.
    - `guesses_in_order` are further guesses for recipes that use the order of histories.
    - `ranges` replace irspack's ranges of single parameters, and add parameters that irspack does not tune.
    - `grows` names the parameters whose upper limit is raised during the search (see `Space`).
    - `epochs` are the settings of early stopping, or None if the algorithm does not train in epochs.
    - `seed` and `threads` are the names of the constructor's arguments for them, or None.
    - `threads_change_bits` is True if the number of threads changes the last bits of the result.
    - `takes_features` is True if the algorithm learns from features of users and items.
    - `needs_dense_items` is True if training holds dense (items, items) matrices in memory.
    - `most_items` is the largest number of items with which the algorithm gets trials, or None without a limit.
    - `takes_times` is True if the algorithm learns from the time of each interaction.
    - `reads_weights` is True if the model or its scores depend on the weights of interactions.
    - `variant`, "module:class", is trained instead of irspack's class.
    """

    name: str
    guesses: tuple[Mapping[str, Any], ...] = ()
    guesses_in_order: tuple[Mapping[str, Any], ...] = ()
    ranges: Mapping[str, BaseDistribution] = field(default_factory=dict)
    grows: tuple[str, ...] = ()
    epochs: Epochs | None = None
    seed: str | None = None
    threads: str | None = None
    threads_change_bits: bool = False
    takes_features: bool = False
    needs_dense_items: bool = False
    most_items: int | None = None
    takes_times: bool = False
    reads_weights: bool = True
    variant: str | None = None

    @property
    def irspack_class(self) -> Any:
        """Return the class to train: svc's variant if there is one, else irspack's."""
        module, _, name = (self.variant or f"irspack.recommenders:{self.name}").partition(":")
        return getattr(import_module(module), name)


def _of_items(n_items: int) -> float:
    return _UNOBSERVED_WEIGHT / n_items


def _is_large(n_items: int) -> bool:
    return n_items >= _LARGE_CATALOGUE


_TABLE = (
    Algorithm(
        "IALSRecommender",
        guesses=(
            # Strong regularization towards the mean user scores no worse than popularity, and better if tastes differ.
            {"n_components": 64, "alpha0": 0.015, "reg": 0.1, "mean_prior": True},
            {"n_components": 64, "alpha0": _of_items, "reg": 0.012, "mean_prior": False},
            # Large catalogues need more components and less regularization. Sparse small ones need less weight on
            # items that were not chosen.
            {
                "n_components": lambda n_items: 128 if _is_large(n_items) else 64,
                # A third of the weight suits small catalogues. The full weight with twice the components loses on
                # sparse data (0.058 instead of 0.105) and film ratings (0.114 instead of 0.139), and wins only on dense
                # data (0.413 instead of 0.384).
                "alpha0": lambda n_items: _of_items(n_items) / (1 if _is_large(n_items) else 3),
                "reg": lambda n_items: 0.003 if _is_large(n_items) else 0.012,
                "mean_prior": lambda n_items: not _is_large(n_items),
            },
        ),
        # For every recipe that uses the order of histories, whose histories may be sessions. These are short. They need
        # as little regularization as a large catalogue, and a ninth of the weight on items that were not chosen.
        guesses_in_order=(
            {"n_components": 128, "alpha0": lambda n_items: _of_items(n_items) / 9, "reg": 0.003, "mean_prior": True},
        ),
        ranges={
            "n_components": IntDistribution(4, 1024, log=True),
            "alpha0": FloatDistribution(1e-3, 3.0, log=True),
            "reg": FloatDistribution(1e-4, 0.3, log=True),
            "mean_prior": CategoricalDistribution((True, False)),
        },
        grows=("n_components",),
        # A patience of 2 instead of 3 finds the same epoch on 14 of 15 learning curves, and ends three epochs too early
        # on the other. Scoring every second epoch misses the best score by up to 0.0004.
        epochs=Epochs(most=16, every=1, patience=3),
        seed="random_seed",
        threads="n_threads",
        threads_change_bits=True,
        takes_features=True,
        variant="svc.training.fitting.algorithms.ials:MeanPriorIALSRecommender",
    ),
    Algorithm(
        "CosineKNNRecommender",
        guesses=(
            {"top_k": 500, "shrinkage": 10.0, "feature_weighting": "NONE", "normalize": True},
            {"top_k": 500, "shrinkage": 0.0, "feature_weighting": "NONE", "normalize": False},
        ),
        ranges={
            "top_k": IntDistribution(10, 1000, log=True),
            "shrinkage": CategoricalDistribution((0.0, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)),
        },
        threads="n_threads",
    ),
    Algorithm("TopPopRecommender"),
    Algorithm(
        "RP3betaRecommender",
        guesses=(
            # On the public Gowalla split of LightGCN this reaches recall@20 0.183, as LightGCN does (0.182).
            {"top_k": 500, "alpha": 1.0, "beta": 0.0, "normalize_weight": True, "strongest_of": "SOURCE"},
            # Dense data needs a bounded number of sources for each target: 0.502 instead of 0.406 ndcg@20 on 3,000
            # users with 120 rows each over 1,500 items.
            {"top_k": 100, "alpha": 1.0, "beta": 0.0, "normalize_weight": True, "strongest_of": "TARGET"},
            {"top_k": 100, "alpha": 0.5, "beta": 0.0, "normalize_weight": False, "strongest_of": "SOURCE"},
        ),
        ranges={
            "top_k": IntDistribution(10, 1000, log=True),
            "alpha": FloatDistribution(0.2, 2.0),
            "beta": FloatDistribution(0.0, 0.8),
            "strongest_of": CategoricalDistribution(("SOURCE", "TARGET")),
        },
        threads="n_threads",
        variant="svc.training.fitting.algorithms.item_weights:TransitionRP3betaRecommender",
    ),
    Algorithm(
        "DenseSLIMRecommender",
        guesses=({"reg": 300.0},),
        needs_dense_items=True,
        variant="svc.training.fitting.algorithms.item_weights:UnlockedDenseSLIMRecommender",
    ),
    Algorithm(
        "TruncatedSVDRecommender",
        guesses=({"n_components": 32, "weighting": "DEGREES"},),
        ranges={
            "n_components": IntDistribution(4, 1024, log=True),
            "weighting": CategoricalDistribution(("NONE", "DEGREES", "BM_25")),
        },
        grows=("n_components",),
        seed="random_seed",
        variant="svc.training.fitting.algorithms.truncated_svd:WeightedSVDRecommender",
    ),
    Algorithm(
        "BPRFMRecommender",
        guesses=({"n_components": 64, "item_alpha": 1e-6, "user_alpha": 1e-6, "loss": "warp"},),
        epochs=Epochs(most=128, every=5, patience=5),
        seed="random_seed",
        threads="n_threads",
        threads_change_bits=True,
        reads_weights=False,
        variant="svc.training.fitting.algorithms.bprfm:SeededBPRFMRecommender",
    ),
    Algorithm(
        "SLIMRecommender",
        guesses=(
            {"alpha": 1e-2, "l1_ratio": 0.03, "top_k": 300},
            {"alpha": 1e-3, "l1_ratio": 0.1, "top_k": 300},
        ),
        ranges={
            "alpha": FloatDistribution(1e-5, 1.0, log=True),
            "l1_ratio": FloatDistribution(1e-3, 1.0, log=True),
            "top_k": IntDistribution(20, 1000, log=True),
        },
        threads="n_threads",
        threads_change_bits=True,
    ),
    Algorithm(
        TRANSITIONS,
        guesses=(
            {"max_steps": 10, "backward": 0.0, "source_exponent": 0.5, "target_exponent": 0.0, "top_k": 500},
            {
                "max_steps": 10,
                "backward": 0.5,
                "same_time": 0.5,
                "source_exponent": 0.5,
                "target_exponent": 0.3,
                "top_k": 500,
            },
        ),
        ranges={
            "max_steps": IntDistribution(1, 20, log=True),
            "backward": CategoricalDistribution((0.0, 0.5, 1.0)),
            "max_gap": CategoricalDistribution(("none", "30m", "1d", "30d")),
            "same_time": CategoricalDistribution((0.0, 0.5, 1.0)),
            "source_exponent": FloatDistribution(0.0, 1.0),
            "target_exponent": FloatDistribution(0.0, 1.0),
            "top_k": IntDistribution(10, 2000, log=True),
        },
        takes_times=True,
        variant="svc.training.fitting.algorithms.transitions:TransitionsRecommender",
    ),
    Algorithm(
        RIDGE_TRANSITIONS,
        guesses=(
            {"decay": 0.2, "ridge": 3.0, "popular_ridge": 1.0, "top_k": 200},
            {"decay": 0.4, "ridge": 3.0, "popular_ridge": 1.0, "top_k": 200},
        ),
        ranges={
            "decay": FloatDistribution(0.05, 2.0, log=True),
            "ridge": FloatDistribution(0.3, 30.0, log=True),
            "popular_ridge": FloatDistribution(0.1, 10.0, log=True),
            "top_k": IntDistribution(50, 500, log=True),
        },
        needs_dense_items=True,
        # Its time is cubic in the items: 11 s of processor time on film ratings, for 5,200 items of two or more users.
        most_items=12_000,
        takes_times=True,
        variant="svc.training.fitting.algorithms.ridge_transitions:RidgeTransitionsRecommender",
    ),
)
ALGORITHMS = {algorithm.name: algorithm for algorithm in _TABLE}


def check_available(names: tuple[str, ...]) -> None:
    """Raise ConfigError for an algorithm whose extra is not installed, without importing it."""
    if "BPRFMRecommender" in names and importlib.util.find_spec("lightfm") is None:
        raise ConfigError(
            "training.algorithms: BPRFMRecommender needs the module `lightfm`, which is not installed: "
            f"{install_command('bprfm')}, or take BPRFMRecommender out of the recipe."
        )


def search_space(
    name: str,
    *,
    n_users: int,
    n_items: int,
    feature_sides: tuple[str, ...] = (),
    wanted: Mapping[str, Sequence[Any]] | None = None,
    in_order: bool = False,
) -> Space:
    """Return the search space of algorithm `name` for data of this size. It is empty if there is nothing to tune.

    - `feature_sides` are the sides with features, "user" or "item". If the algorithm learns from features, their
      regularization is tuned too.
    - `wanted` has the recipe's bounds or choices of single parameters. Parameters that are not tuned are ignored.
    - `in_order` is True if the recipe uses the order of histories. This adds the guesses for such recipes.
    """
    algorithm, wanted = ALGORITHMS[name], wanted or {}
    space = {entry.name: _distribution(entry) for entry in algorithm.irspack_class.default_tune_range}
    space.update(algorithm.ranges)
    if algorithm.takes_features:
        for side in feature_sides:
            space[f"lambda_{side}_feature"] = FloatDistribution(1.0, 1e6, log=True)
        if "user" in feature_sides:
            del space["mean_prior"]  # these features contain a constant, whose weight is the mean
    for parameter, bounds in wanted.items():
        if parameter in space:
            by_choice = bool(TUNED[name][parameter].choices)
            space[parameter] = (
                CategoricalDistribution(tuple(bounds)) if by_choice else _within(space[parameter], bounds)
            )
    if name == "TruncatedSVDRecommender":
        space["n_components"] = _cap(space["n_components"], min(n_users, n_items) - 1)
    if "top_k" in space:
        space["top_k"] = _cap(space["top_k"], n_items)
    guesses = algorithm.guesses + (algorithm.guesses_in_order if in_order else ())
    return Space(space, _guesses(guesses, space, n_items), frozenset(algorithm.grows) - wanted.keys())


def _guesses(
    wanted: tuple[Mapping[str, Any], ...], space: Mapping[str, BaseDistribution], n_items: int
) -> tuple[Params, ...]:
    """Return the guesses `wanted`, clamped to the search space, which is narrower for small data.

    A parameter without a guess gets the middle of its range, or its first choice.
    """
    guesses = []
    for guess in wanted or ({},):
        values = {key: value(n_items) if callable(value) else value for key, value in guess.items()}
        guesses.append({key: nearest(values.get(key), distribution) for key, distribution in space.items()})
    return tuple(guesses)


def _within(distribution: BaseDistribution, wanted: Sequence[Any]) -> BaseDistribution:
    """Return the recipe's range `wanted`, (low, high), on a logarithmic scale if `distribution` has one and low > 0."""
    low, high = wanted
    if isinstance(distribution, IntDistribution):
        return IntDistribution(low, high, log=distribution.log and low > 0)
    # A recipe may bound a logarithmic range by 0, which has no logarithm.
    log = isinstance(distribution, FloatDistribution) and distribution.log and low > 0
    return FloatDistribution(float(low), float(high), log=log)


def _distribution(entry: Any) -> BaseDistribution:
    kind = type(entry).__name__
    if kind == "CategoricalRange":
        return CategoricalDistribution(tuple(entry.choices))
    log = kind.startswith("Log")
    if kind.endswith("IntegerRange"):
        # Optuna refuses steps on a logarithmic scale.
        return IntDistribution(entry.low, entry.high, log=log, step=1 if log else entry.step)
    return FloatDistribution(entry.low, entry.high, log=log)


def _cap(distribution: BaseDistribution, high: int) -> BaseDistribution:
    assert isinstance(distribution, IntDistribution), "only sizes are capped by the data"
    top = max(1, min(distribution.high, high))
    return IntDistribution(min(distribution.low, top), top, log=distribution.log)


def nearest(value: Any, distribution: BaseDistribution) -> Any:
    """Return the value of `distribution` that is nearest to `value`.

    If `value` is not among the choices of a categorical distribution, return the first choice. If `value` is None,
    return the middle of the range, or the geometric mean of a logarithmic range, rounded down for integers.
    """
    if isinstance(distribution, CategoricalDistribution):
        return value if value in distribution.choices else distribution.choices[0]
    assert isinstance(distribution, IntDistribution | FloatDistribution), "irspack tunes numbers and choices"
    if value is None:
        low, high = distribution.low, distribution.high
        value = (low * high) ** 0.5 if distribution.log else (low + high) / 2
        value = int(value) if isinstance(distribution, IntDistribution) else value
    return min(max(value, distribution.low), distribution.high)

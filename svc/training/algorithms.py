"""What svc knows of each irspack recommender beyond what irspack says itself.

The parameters to tune and their ranges are irspack's own `default_tune_range`. Added here: a first guess, so that
a small budget begins at a place that is good on most data, and limits that the size of the data sets.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from svc.errors import ConfigError

Params = dict[str, Any]
Space = dict[str, BaseDistribution]


@dataclass(frozen=True, slots=True)
class Epochs:
    """Iterative training: at most `most` epochs, judged every `every`, ended by `patience` judgements without gain."""

    most: int
    every: int
    patience: int


@dataclass(frozen=True, slots=True)
class Algorithm:
    """`seed` and `threads` name the constructor's arguments; `guess` is the first trial's parameters."""

    name: str
    guess: Mapping[str, Any] = field(default_factory=dict)
    epochs: Epochs | None = None
    seed: str | None = None
    threads: str | None = None
    threads_change_bits: bool = False
    takes_features: bool = False

    @property
    def irspack_class(self) -> Any:
        """The class to train: irspack's, or svc's variant of it where that leaves something to wish for."""
        if self.name == "BPRFMRecommender":
            from svc.training.bprfm import SeededBPRFMRecommender

            return SeededBPRFMRecommender
        if self.name == "DenseSLIMRecommender":
            from svc.training.dense_slim import UnlockedDenseSLIMRecommender

            return UnlockedDenseSLIMRecommender
        from irspack import recommenders

        return getattr(recommenders, self.name)


_TABLE = (
    Algorithm(
        "IALSRecommender",
        guess={"n_components": 64, "alpha0": 0.1, "reg": 1e-2},
        epochs=Epochs(most=16, every=1, patience=3),
        seed="random_seed",
        threads="n_threads",
        threads_change_bits=True,
        takes_features=True,
    ),
    Algorithm(
        "CosineKNNRecommender",
        guess={"top_k": 100, "shrinkage": 10.0, "feature_weighting": "NONE"},
        threads="n_threads",
    ),
    Algorithm("TopPopRecommender"),
    Algorithm("RP3betaRecommender", guess={"top_k": 100, "beta": 0.3, "normalize_weight": False}, threads="n_threads"),
    Algorithm("DenseSLIMRecommender", guess={"reg": 300.0}),
    Algorithm("TruncatedSVDRecommender", guess={"n_components": 32}, seed="random_seed"),
    Algorithm(
        "BPRFMRecommender",
        guess={"n_components": 64, "item_alpha": 1e-6, "user_alpha": 1e-6, "loss": "warp"},
        epochs=Epochs(most=128, every=5, patience=5),
        seed="random_seed",
        threads="n_threads",
        threads_change_bits=True,
    ),
)
ALGORITHMS = {algorithm.name: algorithm for algorithm in _TABLE}


def check_available(names: tuple[str, ...]) -> None:
    """Raise ConfigError for an algorithm whose extra is not installed. Imports nothing of it."""
    if "BPRFMRecommender" in names and importlib.util.find_spec("lightfm") is None:
        raise ConfigError(
            "training.algorithms: BPRFMRecommender needs the module `lightfm`, which is not installed: "
            "pip install 'svc[bprfm]', or take BPRFMRecommender out of the recipe."
        )


def search_space(name: str, *, n_users: int, n_items: int, feature_sides: tuple[str, ...] = ()) -> Space:
    """Distributions of the parameters to tune, within what data of this size allows; empty for nothing to tune."""
    algorithm = ALGORITHMS[name]
    space = {entry.name: _distribution(entry) for entry in algorithm.irspack_class.default_tune_range}
    if name == "TruncatedSVDRecommender":
        space["n_components"] = _capped(space["n_components"], min(n_users, n_items) - 1)
    if "top_k" in space:
        space["top_k"] = _capped(space["top_k"], n_items)
    if algorithm.takes_features:
        for side in feature_sides:
            space[f"lambda_{side}_feature"] = FloatDistribution(1.0, 1e6, log=True)
    return space


def first_guess(name: str, space: Space) -> Params:
    """A first trial within `space`: the table's values, moved to the nearest bound where data is small."""
    guess = dict(ALGORITHMS[name].guess)
    return {key: _nearest(guess.get(key), distribution) for key, distribution in space.items()}


def _distribution(entry: Any) -> BaseDistribution:
    kind = type(entry).__name__
    if kind == "CategoricalRange":
        return CategoricalDistribution(tuple(entry.choices))
    log = kind.startswith("Log")
    if kind.endswith("IntegerRange"):
        return IntDistribution(entry.low, entry.high, log=log, step=1 if log else entry.step)
    return FloatDistribution(entry.low, entry.high, log=log)


def _capped(distribution: BaseDistribution, high: int) -> BaseDistribution:
    assert isinstance(distribution, IntDistribution), "only sizes are capped by the data"
    top = max(1, min(distribution.high, high))
    return IntDistribution(min(distribution.low, top), top)


def _nearest(value: Any, distribution: BaseDistribution) -> Any:
    """`value` moved into the distribution; without a value the middle of a range, on its scale, or the first choice."""
    if isinstance(distribution, CategoricalDistribution):
        return value if value in distribution.choices else distribution.choices[0]
    assert isinstance(distribution, IntDistribution | FloatDistribution), "irspack tunes numbers and choices"
    if value is None:
        low, high = distribution.low, distribution.high
        value = (low * high) ** 0.5 if distribution.log else (low + high) / 2
        value = int(value) if isinstance(distribution, IntDistribution) else value
    return min(max(value, distribution.low), distribution.high)

"""The recommenders that a recipe may list, and their accepted spellings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from svc.names import did_you_mean, nearest

ALGORITHMS: tuple[str, ...] = (
    "IALSRecommender",
    "CosineKNNRecommender",
    "TopPopRecommender",
    "RP3betaRecommender",
    "DenseSLIMRecommender",
    "TruncatedSVDRecommender",
    "BPRFMRecommender",
    "SLIMRecommender",
    "TransitionsRecommender",
    "RidgeTransitionsRecommender",
    "BlendRecommender",
)
BLEND = "BlendRecommender"
"""A weighted sum of two or more models of a search: the best of at most three algorithms in BLENDED, and popularity."""
FACTORS = ("IALSRecommender", "TruncatedSVDRecommender")
"""The algorithms in BLENDED with user and item factors. A blend combines at most one of these two."""
ITEM_WEIGHTS: tuple[str, ...] = (
    "CosineKNNRecommender",
    "RP3betaRecommender",
    "DenseSLIMRecommender",
    "SLIMRecommender",
    "TransitionsRecommender",
    "RidgeTransitionsRecommender",
)
"""The algorithms that learn a weight for each pair of items. `self_weight` is the weight of an item for itself."""
BLENDED: tuple[str, ...] = (*FACTORS, *ITEM_WEIGHTS)
"""The algorithms that a blend may combine, besides popularity. Each can rank items for known and new users."""
TOP_POP = "TopPopRecommender"
"""Popularity. A blend may combine it with the algorithms in BLENDED."""
TRANSITIONS = "TransitionsRecommender"
RIDGE_TRANSITIONS = "RidgeTransitionsRecommender"
TAKES_TIMES = (TRANSITIONS, RIDGE_TRANSITIONS)
"""The recommenders that learn which item follows others. They need the time of each interaction."""
TAKES_RECENCY: tuple[str, ...] = (*BLENDED, BLEND)
"""The algorithms with a `recency`, which raises the weight of later items. They score from a user's history alone."""
LEAST_SQUARES = "IALSRecommender"
"""The only recommender with user vectors from least squares. Training solves these only approximately."""
FEATURE_AWARE = "IALSRecommender"
"""The only recommender that learns from features of users and items."""
# BPRFM needs an extra. Transitions is added if the order of histories counts (see `with_default_algorithms`).
DEFAULT_ALGORITHMS: tuple[str, ...] = (*ALGORITHMS[:6], BLEND)


def short_name(algorithm: str) -> str:
    """Return the name to show to people, such as `IALS` for `IALSRecommender`."""
    return algorithm.removesuffix("Recommender")


@dataclass(frozen=True, slots=True)
class Tuned:
    """The values that a recipe may give a parameter in `training.search_space`.

    A parameter with `choices` takes some of them. Any other parameter takes two numbers from `low` to `high`, integers
    if `whole`.
    """

    low: float = 0.0
    high: float = float("inf")
    whole: bool = False
    choices: tuple[Any, ...] = ()


_SIZE = Tuned(1, 8192, whole=True)
_NEIGHBOURS = Tuned(1, 1_000_000, whole=True)
_STRENGTH = Tuned(1e-12, 1e12)
_YES_NO = Tuned(choices=(True, False))
TUNED: Mapping[str, Mapping[str, Tuned]] = {
    "IALSRecommender": {
        "n_components": _SIZE,
        "alpha0": _STRENGTH,
        "reg": _STRENGTH,
        "mean_prior": _YES_NO,
        "lambda_user_feature": _STRENGTH,
        "lambda_item_feature": _STRENGTH,
    },
    "CosineKNNRecommender": {
        "top_k": _NEIGHBOURS,
        "shrinkage": Tuned(0, 1e12),
        "feature_weighting": Tuned(choices=("NONE", "TF_IDF", "BM_25")),
        "normalize": _YES_NO,
    },
    "TopPopRecommender": {},
    "RP3betaRecommender": {
        "top_k": _NEIGHBOURS,
        "alpha": Tuned(0, 10),
        "beta": Tuned(0, 10),
        "normalize_weight": _YES_NO,
        "strongest_of": Tuned(choices=("SOURCE", "TARGET")),
    },
    "DenseSLIMRecommender": {"reg": _STRENGTH},
    "TruncatedSVDRecommender": {"n_components": _SIZE, "weighting": Tuned(choices=("NONE", "DEGREES", "BM_25"))},
    "BPRFMRecommender": {
        "n_components": _SIZE,
        "item_alpha": _STRENGTH,
        "user_alpha": _STRENGTH,
        "loss": Tuned(choices=("bpr", "warp")),
    },
    "SLIMRecommender": {"alpha": _STRENGTH, "l1_ratio": Tuned(0, 1), "top_k": _NEIGHBOURS},
    TRANSITIONS: {
        "max_steps": Tuned(1, 20, whole=True),
        "backward": Tuned(choices=(0.0, 0.5, 1.0)),
        "max_gap": Tuned(choices=("none", "30m", "1d", "30d")),
        "same_time": Tuned(choices=(0.0, 0.5, 1.0)),
        "source_exponent": Tuned(0, 1),
        "target_exponent": Tuned(0, 1),
        "top_k": Tuned(10, 2000, whole=True),
    },
    RIDGE_TRANSITIONS: {
        "decay": Tuned(0.01, 10),
        "ridge": _STRENGTH,
        "popular_ridge": _STRENGTH,
        "top_k": _NEIGHBOURS,
    },
    BLEND: {},
}
"""The parameters of each algorithm that a recipe may bound, besides RECENCY and SELF_WEIGHT."""
RECENCY = "recency"
# An item then weighs less than 1% of the next later one, because e^-5 is 0.0067.
MOST_RECENCY = 5.0
SELF_WEIGHT = "self_weight"
MOST_SELF_WEIGHT = 100.0
_SUFFIX = "recommender"
_BY_SHORT_NAME = {name.lower().removesuffix(_SUFFIX): name for name in ALGORITHMS}

_OTHER_NAMES = {
    **dict.fromkeys(("knn", "itemknn", "item-knn", "itemcf", "cosine"), "cosineknn"),
    **dict.fromkeys(("svd", "svd++", "puresvd", "pca"), "truncatedsvd"),
    **dict.fromkeys(("pop", "popular", "popularity", "mostpopular"), "toppop"),
    **dict.fromkeys(("ease", "easer", "edlae"), "denseslim"),
    **dict.fromkeys(("mf", "wmf", "als", "implicit"), "ials"),
}
"""Names of the same algorithms in other libraries, with svc's short names."""


def canonical_name(text: str) -> str:
    """Return the name in ALGORITHMS that `text` means, ignoring letter case and whether `Recommender` is at the end.

    Raises ValueError for any other text. The message suggests the most similar algorithm, if there is one.
    """
    short = text.strip().lower().removesuffix(_SUFFIX)
    if short in _BY_SHORT_NAME:
        return _BY_SHORT_NAME[short]
    near = nearest(_OTHER_NAMES.get(short, short), _BY_SHORT_NAME)
    hint = f"did you mean {_BY_SHORT_NAME[near]}? " if near else ""
    raise ValueError(f"is not a known algorithm; {hint}allowed: {', '.join(ALGORITHMS)}")


def check_search_space(algorithm: str, wanted: Mapping[str, Sequence[Any]]) -> None:
    """Raise ValueError if `algorithm` has no parameter of a name in `wanted`, or does not accept its values.

    `wanted` has the bounds or choices of parameters by name. The message names what is accepted.
    """
    tuned = {**TUNED[algorithm]}
    if algorithm in TAKES_RECENCY:
        tuned[RECENCY] = Tuned(0, MOST_RECENCY)
    if algorithm in ITEM_WEIGHTS:
        tuned[SELF_WEIGHT] = Tuned(0, MOST_SELF_WEIGHT)
    for name, bounds in wanted.items():
        if name not in tuned:
            hint = did_you_mean(name, tuned, "")
            raise ValueError(
                f"{name} is not searched for {algorithm}; {hint}searched parameters: {', '.join(tuned) or 'none'}"
            )
        problem = _problem(tuned[name], bounds)
        if problem:
            raise ValueError(f"{algorithm}.{name} {problem}")


def _problem(tuned: Tuned, bounds: Sequence[Any]) -> str | None:
    if tuned.choices:
        fits = bool(bounds) and all(value in tuned.choices for value in bounds)
        return None if fits else f"takes a list of some of {', '.join(map(str, tuned.choices))}"
    # True is an int in Python, so the next line leaves booleans out.
    numbers = [value for value in bounds if isinstance(value, int if tuned.whole else (int, float))]
    fits = len(bounds) == len(numbers) == 2 and not any(isinstance(value, bool) for value in numbers)
    if fits and tuned.low <= numbers[0] <= numbers[1] <= tuned.high:
        return None
    kind = "whole numbers" if tuned.whole else "numbers"
    return f"takes [lowest, highest], two {kind} from {tuned.low:g} to {tuned.high:g}"

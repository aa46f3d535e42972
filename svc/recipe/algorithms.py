"""The recommenders that a recipe may list, and the spellings that it may use."""

from __future__ import annotations

import difflib

ALGORITHMS: tuple[str, ...] = (
    "IALSRecommender",
    "CosineKNNRecommender",
    "TopPopRecommender",
    "RP3betaRecommender",
    "DenseSLIMRecommender",
    "TruncatedSVDRecommender",
    "BPRFMRecommender",
)
FEATURE_AWARE = "IALSRecommender"
"""The one recommender that learns from features."""
DEFAULT_ALGORITHMS: tuple[str, ...] = ALGORITHMS[:6]
_SUFFIX = "recommender"
_BY_SHORT_NAME = {name.lower().removesuffix(_SUFFIX): name for name in ALGORITHMS}


def canonical_name(text: str) -> str:
    """The irspack class name for `text`, in any case, with or without `Recommender`. ValueError names the nearest."""
    short = text.strip().lower().removesuffix(_SUFFIX)
    if short in _BY_SHORT_NAME:
        return _BY_SHORT_NAME[short]
    nearest = difflib.get_close_matches(short, _BY_SHORT_NAME, n=1)
    hint = f"did you mean {_BY_SHORT_NAME[nearest[0]]}? " if nearest else ""
    raise ValueError(f"is no known algorithm; {hint}allowed: {', '.join(ALGORITHMS)}")

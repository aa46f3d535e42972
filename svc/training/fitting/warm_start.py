"""Start a training of iALS from the vectors of the live model, with the same parameters on newer data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svc.model.model import Model
from svc.model.recommenders.blend import BlendScorer
from svc.model.recommenders.factors import IALSScorer

Vectors = NDArray[np.float32]
Rows = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class WarmStart:
    """Vectors of the live model, from which a training of iALS starts.

    - `sha8` is the version of the live model, the first 8 digits of its SHA-256.
    - `users` and `items`, (rows of the live model, K), are its vectors.
    - `user_mean`, (K,), is the vector towards which users are regularized, or None.
    - `user_rows` and `item_rows` have the row in the live model of each user and item of the training, −1 if new.
    """

    sha8: str
    users: Vectors
    items: Vectors
    user_mean: Vectors | None
    user_rows: Rows
    item_rows: Rows

    @classmethod
    def of(cls, live: Model, sha8: str, user_ids: Sequence[str], item_ids: Sequence[str]) -> WarmStart | None:
        """Return the vectors of `live` for a training whose rows and columns are `user_ids` and `item_ids`.

        Return None if `live` has no iALS, or if its iALS has learned from features. The vocabulary of features changes
        with the data, so the rows of feature weights would not match.
        """
        scorer = live.scorer.factors if isinstance(live.scorer, BlendScorer) else live.scorer
        if not isinstance(scorer, IALSScorer):
            return None
        prior = scorer.least_squares
        if prior.user_weights is not None or prior.item_weights is not None:
            return None
        items = np.empty_like(scorer.index.factors)
        items[scorer.index.columns] = scorer.index.factors  # the index holds items in another order than the model
        rows = live.user_ids.indices(user_ids), live.item_ids.indices(item_ids)
        return cls(sha8, scorer.users, items, prior.user_mean, *rows)

    def place(self, recommender: Any) -> None:
        """Set the vectors of `recommender` after `start_learning`, and its mean if both models have one.

        It must have K components. New users and items keep their random vectors.
        """
        core = recommender.trainer.core_trainer
        core.user = _with_live(core.user, self.users, self.user_rows)
        core.item = _with_live(core.item, self.items, self.item_rows)
        if recommender.has_mean and self.user_mean is not None:
            core.user_feature_weight = self.user_mean[np.newaxis]


def _with_live(drawn: Vectors, live: Vectors, rows: Rows) -> Vectors:
    """Return a copy of the random vectors `drawn`, (n, K), with live vectors in all rows that have one."""
    vectors = drawn.copy()
    vectors[rows >= 0] = live[rows[rows >= 0]]
    return vectors

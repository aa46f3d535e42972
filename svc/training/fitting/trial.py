"""A trial: the parameters of a model, its score, and the parts of a blend."""

from __future__ import annotations

from dataclasses import dataclass, replace

from svc.recipe.algorithms import TOP_POP
from svc.training.fitting.algorithms.registry import Params

FEATURES_AND_SEEDS = "features and seeds"
"""The value of `answers` in a header for the part of a model that answers only queries with features and seeds."""


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One finished trial of a search.

    - `state` is "complete", "pruned" or "failed". Only a complete trial has a `score` and `metrics`.
    - `epochs` is the best number of epochs, or None for an algorithm that does not train in epochs.
    - `seconds` is the time of training and evaluation.
    - `parts` are the trials of a blend's parts, in the order of its weights, each with its recency in the blend.
    - `recency` is the value that scored best on the validation users. For a blend, it is the highest of its parts.
    - `rank_ms` is the measured time of a single ranking by its model in milliseconds, or None.
    - `too_slow` is True if `rank_ms` exceeds the recipe's limit. Such a trial counts as pruned.
    """

    number: int
    algorithm: str
    params: Params
    state: str
    score: float | None
    metrics: dict[str, float]
    epochs: int | None
    seconds: float
    parts: tuple[TrialRecord, ...] = ()
    recency: float = 0.0
    rank_ms: float | None = None
    too_slow: bool = False

    @property
    def final_params(self) -> Params:
        """Return the parameters, including the best number of epochs on the validation users."""
        return dict(self.params) if self.epochs is None else {**self.params, "train_epochs": self.epochs}

    @property
    def is_complete(self) -> bool:
        return self.state == "complete"

    @property
    def recency_by_part(self) -> bool:
        """Return whether the parts of a blend have different recencies. Popularity does not depend on recency."""
        return len({part.recency for part in self.parts if part.algorithm != TOP_POP}) > 1

    def at_recency(self, recency: float) -> TrialRecord:
        """Return this trial with `recency` for the model and all of its parts."""
        return replace(self, recency=recency, parts=tuple(replace(part, recency=recency) for part in self.parts))

"""A trial: the parameters of a model, its score, and the parts of a blend."""

from __future__ import annotations

from dataclasses import dataclass, replace

from svc.recipe.algorithms import TOP_POP
from svc.training.fitting.algorithms.registry import Params

FEATURES_AND_SEEDS = "features and seeds"
"""The queries of the part that learned from features, if another part answers for known users."""


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One finished trial. `score` and `metrics` are set if it is complete, `epochs` if it trained in epochs.

    `rank_ms` is the measured time of a single ranking by its model in milliseconds, or None. A trial is `too_slow`, and
    not complete, if `rank_ms` exceeds the recipe's limit.

    `parts` are the trials of a blend's parts, in the order of its weights, each with its recency in the blend.
    `recency` is the value that the validation chose. The recency of a blend is the highest of its parts.
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
        """Return the parameters, with the number of epochs that the validation chose."""
        return dict(self.params) if self.epochs is None else {**self.params, "train_epochs": self.epochs}

    @property
    def is_complete(self) -> bool:
        return self.state == "complete"

    @property
    def recency_by_part(self) -> bool:
        """Return whether the parts of a blend weigh histories differently."""
        return len({part.recency for part in self.parts if part.algorithm != TOP_POP}) > 1

    def at_recency(self, recency: float) -> TrialRecord:
        """Return the same model with one recency for all of its parts."""
        return replace(self, recency=recency, parts=tuple(replace(part, recency=recency) for part in self.parts))

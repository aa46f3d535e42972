"""A trial: the parameters of a model, its score, and the parts of a blend."""

from __future__ import annotations

from dataclasses import dataclass

from svc.recipe.algorithms import TOP_POP
from svc.training.data.weights import HALF_LIFE, WEIGHT_SCALE
from svc.training.fitting.algorithms.registry import Params

FEATURES_AND_SEEDS = "features and seeds"
"""The value of `answers` in a header for the part that answers only queries for users outside the training data."""


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One finished trial of a search.

    - `state` is "complete", "pruned" or "failed". `score` is None unless the trial is complete and was evaluated.
    - `epochs` is the best number of epochs, or None for an algorithm that does not train in epochs.
    - `seconds` is the time of training and evaluation.
    - `parts` are the trials of a blend's parts, in the order of its weights.
    - `recency` says how much less each item of a history counts than the next later one. It was fixed by the recipe, or
      chosen on the validation users. All parts of a blend have its recency.
    - `rank_ms` is the measured time of a single ranking by its model in milliseconds, or None if it was not measured.
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
        """Return the parameters, with the best number of epochs as `train_epochs` if the algorithm has epochs."""
        return dict(self.params) if self.epochs is None else {**self.params, "train_epochs": self.epochs}

    @property
    def of_history(self) -> Params:
        """Return the parameters that affect the values of histories: its half-life and its scale."""
        return {name: self.params[name] for name in (HALF_LIFE, WEIGHT_SCALE) if name in self.params}

    def readings(self, cold: TrialRecord | None = None) -> list[Params]:
        """Return the distinct `of_history` of its parts that read histories, in their order, or its own alone.

        That of the cold-start part `cold` comes last, if it is another.
        """
        parts = [part for part in self.parts if part.algorithm != TOP_POP] or [self]
        trials = parts if cold is None else [*parts, cold]
        # By text, because dicts cannot be keys.
        return list({str(trial.of_history): trial.of_history for trial in trials}.values())

    def weighing_of(self, part: TrialRecord) -> int:
        """Return the position in `readings` of that of one of its parts, 0 for popularity, which has none."""
        readings = self.readings()
        return readings.index(part.of_history) if part.of_history in readings else 0

    @property
    def is_complete(self) -> bool:
        return self.state == "complete"

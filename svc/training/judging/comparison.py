"""Compare the new model with the live one and with popularity, on the same held-out users.

No model is scored on interactions that it was trained on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol

import numpy as np
from scipy import sparse

from svc import events, logs
from svc.artifact.keys import SigningKeys
from svc.errors import ArtifactError, FeatureRidgeFailed
from svc.recipe.schema import BASELINE, INCUMBENT
from svc.settings import Settings
from svc.training.data.split import global_cutoff
from svc.training.fitting.train import Matrices
from svc.training.fitting.trial import TrialRecord
from svc.training.judging.evaluator import DIGITS, Evaluator, Ranker, Rankings, Rows
from svc.training.judging.incumbent import Incumbent, Unfit, read_incumbent, trainable
from svc.training.judging.intervals import Choice, paired_change
from svc.training.judging.rankers import ServedRanker
from svc.training.judging.task import Task


@dataclass(frozen=True, slots=True, eq=False)
class ComparedModel:
    """A model with which the new model is compared.

    - `scored` is "live" for the served model itself, and "refitted" for a model that was trained again on the training
      part of the split.
    - `ranker` ranks for the users of the split by this model.
    - `evaluator` evaluates both models, on the same held-out items.
    - `excluded`, (users, items) of the split, has the items that a live model does not recommend to a user: hidden
      items, and without `training.repeats` those in the user's history. To be fair, the new model may not recommend
      them either. It is None for a refitted model.
    """

    name: str
    scored: Literal["live", "refitted"]
    ranker: Ranker
    evaluator: Evaluator
    excluded: sparse.csr_matrix | None = None


def heldout(task: Task) -> Evaluator:
    """Return an evaluator on the test users, on whom no trial was scored, or on validation users if there are none."""
    full = task.holdout.evaluators.full
    return full if task.split.test is None else full.of(task.split.test)


def baseline(task: Task) -> ComparedModel:
    """Return the baseline: a ranking by popularity, trained on the training part of the split."""
    trial = TrialRecord(0, "TopPopRecommender", {}, "complete", None, {}, None, 0.0)
    return _refitted(task, BASELINE, trial, {})


def live_model(task: Task, keys: SigningKeys, settings: Settings) -> tuple[Incumbent, ComparedModel] | None:
    """Return the live model of the recipe, with a ranker that was not trained on held-out interactions.

    Under `time_global`, a model that was trained before the cut-off is scored as it is, if this version of svc can load
    it, and if at least one user known to the model has held-out items that the model may recommend. Otherwise its class
    and parameters are trained again on the training part of the split.

    Return None and log an event if there is no live model, or if it cannot be trained again. Raise ArtifactReadError if
    there is one that cannot be read.
    """
    incumbent = read_incumbent(task.loaded, keys, settings)
    if incumbent is None:
        return None
    try:
        compared = _as_it_is(task, incumbent, settings)
        if compared is None:
            features = task.holdout.features if incumbent.header.get("features") else {}
            compared = _refitted(task, INCUMBENT, trainable(task, incumbent.header), features)
    except Unfit as unfit:
        logs.emit(events.INCUMBENT_NOT_COMPARABLE, recipe=task.loaded.recipe.name, reason=str(unfit))
        return None
    return incumbent, compared


def _as_it_is(task: Task, incumbent: Incumbent, settings: Settings) -> ComparedModel | None:
    if not _is_older_than_the_cutoff(task, incumbent.header):
        return None
    try:
        model = incumbent.model(settings)
    except ArtifactError:
        return None
    trained = task.data.trained
    ranker = ServedRanker.of(model, task.split, trained.user_ids, trained.item_ids, task.holdout.seen)
    evaluator = heldout(task)
    truth, left_out = evaluator.heldout, sparse.csr_matrix(task.holdout.seen.shape, dtype=np.float32)
    for rows in (None if task.holdout.repeats else model.history.of_seen(), model.hidden):
        if rows is not None:
            pairs = ranker.pairs(rows)
            # Items that the live model cannot show are no fair test of it, so they count for neither model.
            truth = truth - truth.multiply(pairs[evaluator.offset :])
            left_out = left_out + pairs
    # Users who came after the live model's training are left out, because it ranks nothing for them.
    is_known = (ranker.rows[evaluator.offset :] >= 0).astype(np.float32)
    truth = (sparse.diags(is_known) @ truth).tocsr()
    if not truth.count_nonzero():
        return None
    return ComparedModel(INCUMBENT, "live", ranker, evaluator.of(truth), left_out.tocsr())


def _is_older_than_the_cutoff(task: Task, header: Mapping[str, Any]) -> bool:
    training = task.loaded.recipe.training
    if training.split.scheme != "time_global":
        return False
    cutoff = global_cutoff(task.data.trained, training.split, repeats=training.repeats)
    # Whole numbers, because a float64 cannot hold nanoseconds since 1970 exactly.
    # A model from before the cut-off cannot have seen a held-out row.
    return cutoff >= int(datetime.fromisoformat(header["trained_at"]).timestamp()) * 1_000_000_000


def _refitted(task: Task, name: str, trial: TrialRecord, features: Matrices) -> ComparedModel:
    """Train the `trial` of the compared model `name` again. Raise Unfit if its feature weights cannot be solved for."""
    try:
        scorer = task.train_on_split(trial, features)
    except FeatureRidgeFailed as error:
        raise Unfit(error.message) from None
    return ComparedModel(name, "refitted", task.holdout.ranker_of(scorer, trial), heldout(task))


@dataclass(frozen=True, slots=True)
class ModelComparison:
    """The scores of the new model, `candidate`, and of the `other` model by the recipe's metric.

    `change` is the relative change from the other model to the candidate, with its `interval`. `coverage` is the share
    of all items that are in at least one user's ranking, for the candidate and for the other model.
    """

    name: str
    candidate: float
    other: float
    change: float
    interval: tuple[float, float]
    n_users: int
    scored: Literal["live", "refitted"]
    coverage: tuple[float, float]

    def as_fields(self) -> dict[str, Any]:
        """Return the fields of the artifact's header."""
        return {
            "name": self.name,
            "candidate": round(self.candidate, DIGITS),
            "other": round(self.other, DIGITS),
            "change": round(self.change, DIGITS),
            "interval": [round(end, DIGITS) for end in self.interval],
            "n_users": self.n_users,
            "scored": self.scored,
        }


class ExcludingRanker(Protocol):
    """A ranker for the users of a split.

    `excluding` returns a ranker that also leaves out the items in `pairs`, (users, items) of the split.
    """

    def __call__(self, users: Rows, size: int) -> Rankings: ...
    def excluding(self, pairs: sparse.csr_matrix) -> ExcludingRanker: ...


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """The new model in a comparison.

    - `ranker` ranks by the winner of the search, trained on the training part of the split. If the final model reorders
      items by a learned ranker, so does `ranker`.
    - `rank_ms` is the time of a single ranking by the final model, in milliseconds.
    - `ordered` is True if the final model reorders items.
    - `choice` is the table of trials with their scores for each user (see `Choice`). It is None if the winner's scores
      are missing.
    """

    ranker: ExcludingRanker
    rank_ms: float
    choice: Choice | None = None
    ordered: bool = False

    def choice_by(self, task: Task, evaluator: Evaluator) -> Choice | None:
        """Return `choice` with only the scores for the users of `evaluator`.

        With it, an interval of the winner's score over these users is corrected for choosing the best of many trials.

        Return None if `choice` is None. Return None also if the split has test users: `evaluator` is then on these, and
        the winner was not chosen by their scores.
        """
        if self.choice is None or task.split.test is not None:
            return None
        return self.choice.of_users(
            np.flatnonzero(np.isin(task.holdout.evaluators.full.evaluated_users, evaluator.evaluated_users))
        )


def compare(task: Task, candidate: Candidate, compared: ComparedModel, confidence: float) -> ModelComparison:
    """Evaluate the candidate and the `compared` model on the same users. `confidence` is that of the interval."""
    ranker = candidate.ranker if compared.excluded is None else candidate.ranker.excluding(compared.excluded)
    own, other = compared.evaluator.evaluate(ranker), compared.evaluator.evaluate(compared.ranker)
    first, second = own.scores[task.holdout.metric], other.scores[task.holdout.metric]
    seed = task.loaded.recipe.training.seed
    choice = candidate.choice_by(task, compared.evaluator)
    change = paired_change(first, second, seed=seed, confidence=confidence, relative=True, choice=choice)
    return ModelComparison(
        name=compared.name,
        candidate=float(first.mean()),
        other=float(second.mean()),
        change=change.value,
        interval=(change.low, change.high),
        n_users=len(first),
        scored=compared.scored,
        coverage=(own.metrics["catalog_coverage"], other.metrics["catalog_coverage"]),
    )

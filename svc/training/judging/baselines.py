"""The models that a new one is compared with: the live one and popularity. Neither is scored on its training data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np
from scipy import sparse

from svc import events, logs
from svc.artifact.keys import SigningKeys
from svc.errors import ArtifactError, FeatureRidgeFailed
from svc.model.recommenders.base import Scorer
from svc.recipe.promotion_schema import BASELINE, INCUMBENT
from svc.settings import Settings
from svc.training.data.split import global_cutoff
from svc.training.fitting.train import train_trial
from svc.training.fitting.trial import TrialRecord
from svc.training.judging.evaluator import Evaluator, Ranker
from svc.training.judging.incumbent import Incumbent, read_incumbent
from svc.training.judging.live_trial import Unfit, trainable
from svc.training.judging.served_ranker import ServedRanker
from svc.training.judging.task import Task, split_plan


@dataclass(frozen=True, slots=True, eq=False)
class ComparedModel:
    """A model that the new one is compared with. `evaluator` judges both.

    `ranker` ranks the rows of the search's training matrix. `scored` is "live" for the served model itself, and
    "refitted" for a model that was trained again on the training part of the split. `excluded`, (users, items), has the
    pairs that a live model was trained on or hides. The new model may not recommend them either.
    """

    name: str
    scored: Literal["live", "refitted"]
    ranker: Ranker
    evaluator: Evaluator
    excluded: sparse.csr_matrix | None = None


def heldout(task: Task) -> Evaluator:
    """Return the evaluator on test users, which no trial has seen, or on validation users without test users."""
    full = task.holdout.evaluators.full
    return full if task.split.test is None else full.of(task.split.test)


def baseline(task: Task) -> ComparedModel:
    """Return popularity, trained on the training part of the split."""
    trial = TrialRecord(0, "TopPopRecommender", {}, "complete", None, {}, None, 0.0)
    return ComparedModel(BASELINE, "refitted", task.holdout.ranker_of(_refit(task, trial, {}), trial), heldout(task))


def live_model(task: Task, keys: SigningKeys, settings: Settings) -> tuple[Incumbent, ComparedModel] | None:
    """Return the live model of the recipe, with a ranker that was not trained on held-out interactions.

    Under `time_global`, a model that was trained before the cut-off is scored as it is. Otherwise its class and
    parameters are trained again on the training part of the split. Return None and log an event if there is no live
    model, or if it cannot be trained again.
    """
    incumbent = read_incumbent(task.loaded, keys, settings)
    if incumbent is None:
        return None
    try:
        compared = _as_it_is(task, incumbent, settings) or _refit_live(task, incumbent.header)
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
    for rows in (None if task.holdout.repeats else model.history, model.hidden):
        if rows is not None:
            pairs = ranker.pairs(rows)
            truth = truth - truth.multiply(pairs[evaluator.offset :])
            left_out = left_out + pairs
    is_known = (ranker.rows[evaluator.offset :] >= 0).astype(np.float32)
    truth = (sparse.diags(is_known) @ truth).tocsr()
    truth.eliminate_zeros()
    if not truth.nnz:
        return None
    return ComparedModel(INCUMBENT, "live", ranker, evaluator.of(truth), left_out.tocsr())


def _is_older_than_the_cutoff(task: Task, header: Mapping[str, Any]) -> bool:
    plan = split_plan(task.loaded)
    if plan.scheme != "time_global":
        return False
    try:
        trained_at = datetime.fromisoformat(str(header.get("trained_at"))).astimezone(UTC)
    except ValueError:
        return False
    return global_cutoff(task.data.trained, plan) >= int(trained_at.timestamp()) * 1_000_000_000


def _refit_live(task: Task, header: Mapping[str, Any]) -> ComparedModel:
    features = task.holdout.features if header.get("features") else {}
    trial = trainable(task, header)
    ranker = task.holdout.ranker_of(_refit(task, trial, features), trial)
    return ComparedModel(INCUMBENT, "refitted", ranker, heldout(task))


def _refit(task: Task, trial: TrialRecord, features: Mapping[Any, sparse.csr_matrix]) -> Scorer:
    try:
        inputs = task.holdout
        return train_trial(task.builder, trial, inputs.decay_matrix(trial.params), features, inputs.times)
    except FeatureRidgeFailed as error:
        raise Unfit(error.message) from None

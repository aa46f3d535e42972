"""The models that a new one is compared with, the live one and popularity, never scored on their training data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np
from scipy import sparse

from svc import events, logs
from svc.artifact.keys import SigningKeys
from svc.errors import ArtifactError, FeatureRidgeFailed
from svc.recipe.algorithms import BLEND, SELF_WEIGHT
from svc.recipe.promotion_schema import BASELINE, INCUMBENT
from svc.settings import Settings
from svc.training.algorithms.registry import ALGORITHMS, search_space
from svc.training.data.decay import HALF_LIFE, NO_DECAY
from svc.training.data.split import global_cutoff
from svc.training.evaluation.evaluator import Evaluator, Scorer, scorer_of
from svc.training.promotion.incumbent import Incumbent, read_incumbent
from svc.training.promotion.live_scores import IndexMapping, LiveScores
from svc.training.search.objective import how_many_fit, refit_winner
from svc.training.search.prepare import Task, split_plan
from svc.training.search.trials import TrialRecord

_EPOCHS = "train_epochs"


@dataclass(frozen=True, slots=True, eq=False)
class Rival:
    """`scorer` scores the rows of the search's training matrix, and `evaluation` judges it and the new model alike.

    `seen` is what neither may recommend. `scored` is "live" for the model that is served, and "refitted" for one that
    was trained anew on what the search trained on.
    """

    name: str
    scored: Literal["live", "refitted"]
    scorer: Scorer
    evaluator: Evaluator
    seen: sparse.csr_matrix


class _Unfit(Exception):
    """The live model cannot be trained again; says why."""


def heldout(task: Task) -> Evaluator:
    """The users who judge: those whom no trial has seen where the split sets some aside, else the validation users."""
    full = task.objective.evaluators.full
    return full if task.split.test is None else full.of(task.split.test)


def baseline(task: Task) -> Rival:
    """Popularity on what the search trained on."""
    trained = _refit(task, TrialRecord(0, "TopPopRecommender", {}, "complete", None, {}, None, 0.0), {})
    return Rival(BASELINE, "refitted", scorer_of(trained), heldout(task), task.objective.seen)


def live_model(task: Task, keys: SigningKeys, settings: Settings) -> tuple[Incumbent, Rival] | None:
    """The live model of the recipe, scored fairly.

    It is scored as it is if it has seen nothing that is held out: under `time_global` with a cut-off not before it was
    trained. Otherwise its class and parameters are trained once on what the search trained on. None, and an event,
    where there is none, or none that can be trained again.
    """
    incumbent = read_incumbent(task.loaded, keys, settings)
    if incumbent is None:
        return None
    try:
        rival = _as_it_is(task, incumbent, settings) or _refitted(task, incumbent.header)
    except _Unfit as unfit:
        logs.emit(events.INCUMBENT_NOT_COMPARABLE, recipe=task.loaded.recipe.name, reason=str(unfit))
        return None
    return incumbent, rival


def _as_it_is(task: Task, incumbent: Incumbent, settings: Settings) -> Rival | None:
    if not _is_older_than_the_cutoff(task, incumbent.header):
        return None
    try:
        model = incumbent.model(settings)
    except ArtifactError:
        return None
    trained = task.data.trained
    mapping = IndexMapping.of(model, task.split, trained.user_ids, trained.item_ids)
    known = mapping.history(model)
    evaluator = heldout(task)
    truth, seen = evaluator.heldout, task.objective.seen
    if not task.objective.repeats:
        truth = truth - truth.multiply(known[evaluator.offset :])
        seen = (seen + known).tocsr()
    is_known = (mapping.rows[evaluator.offset :] >= 0).astype(np.float32)
    truth = (sparse.diags(is_known) @ truth).tocsr()
    truth.eliminate_zeros()
    if not truth.nnz:
        return None
    return Rival(INCUMBENT, "live", LiveScores(model, mapping, seen, evaluator.cutoff), evaluator.of(truth), seen)


def _is_older_than_the_cutoff(task: Task, header: Mapping[str, Any]) -> bool:
    plan = split_plan(task.loaded)
    if plan.scheme != "time_global":
        return False
    try:
        trained_at = datetime.fromisoformat(str(header.get("trained_at"))).astimezone(UTC)
    except ValueError:
        return False
    return global_cutoff(task.data.trained, plan) >= int(trained_at.timestamp()) * 1_000_000_000


def _refitted(task: Task, header: Mapping[str, Any]) -> Rival:
    trial = trial_of(header)
    features = task.objective.features if header.get("features") else {}
    declared = [side for side in ("user", "item") if side in (header.get("features") or {})]
    if trial.recency and task.objective.order is None:
        raise _Unfit("it weighs histories by their order, and the recipe no longer has training.recency")
    trial = replace(_fitted(task, trial), parts=tuple(_fitted(task, part) for part in trial.parts))
    for part in trial.parts or (trial,):
        _check(task, part, declared)
    scorer = task.objective.scorer(_refit(task, trial, features), trial)
    return Rival(INCUMBENT, "refitted", scorer, heldout(task), task.objective.seen)


def trial_of(header: Mapping[str, Any]) -> TrialRecord:
    """The class and parameters of a model, as its header tells them, in the form of the trial that chose them."""
    try:
        name, params = str(header["best_class"]), dict(header["best_params"])
        recency = float(header.get("recency", 0.0))
        if name != BLEND:
            return replace(_record(name, params), recency=recency)
        parts = [part for part in header["parts"] if "weight" in part]
        params["weights"] = {part["class"]: part["weight"] for part in parts}
        trials = tuple(_record(part["class"], dict(part["params"])) for part in parts)
    except (KeyError, TypeError, ValueError):
        raise _Unfit("its header does not tell its class and parameters") from None
    return replace(_record(name, params), parts=trials, recency=recency)


def _record(name: str, params: dict[str, Any]) -> TrialRecord:
    epochs = params.pop(_EPOCHS, None)
    return TrialRecord(0, name, params, "complete", None, {}, epochs, 0.0)


def _fitted(task: Task, trial: TrialRecord) -> TrialRecord:
    """`trial` with no more components than the data of now allows."""
    most = min(task.objective.train.shape) - 1
    wanted = trial.params.get("n_components")
    if trial.algorithm != "TruncatedSVDRecommender" or not isinstance(wanted, int) or wanted <= most:
        return trial
    return replace(trial, params={**trial.params, "n_components": max(1, most)})


def _check(task: Task, trial: TrialRecord, declared: list[str]) -> None:
    """Raise _Unfit for what this svc, or this recipe, cannot train."""
    name = trial.algorithm
    if name not in ALGORITHMS:
        raise _Unfit(f"this version of svc cannot train its class {name[:64]}")
    if how_many_fit(name, task.objective.train.shape[1]) == 0:
        raise _Unfit(f"the dense item matrices of its class {name} would not fit into the free memory")
    missing = [side for side in declared if side not in task.objective.features]
    if missing and ALGORITHMS[name].takes_features:
        raise _Unfit(f"it was trained with features of the {missing[0]}s, which the recipe no longer has")
    n_users, n_items = task.objective.train.shape
    known = search_space(name, n_users=n_users, n_items=n_items, feature_sides=tuple(declared))
    strange = sorted(set(trial.params) - set(known) - {HALF_LIFE, SELF_WEIGHT})
    if strange:
        raise _Unfit(f"this version of svc does not know the parameter {strange[0][:64]} of its class {name}")
    if ALGORITHMS[name].takes_times and task.objective.times is None:
        raise _Unfit(f"its class {name} learns from times, which this recipe does not read")
    if trial.params.get(HALF_LIFE, NO_DECAY) != NO_DECAY and task.loaded.recipe.training.time_decay is None:
        raise _Unfit("it was trained with a half-life, and the recipe no longer has training.time_decay")


def _refit(task: Task, trial: TrialRecord, features: Mapping[Any, sparse.csr_matrix]) -> Any:
    try:
        inputs = task.objective
        return refit_winner(task.builder, trial, inputs.decayed(trial.params), features, inputs.times)
    except FeatureRidgeFailed as error:
        raise _Unfit(error.message) from None

"""From data to a search that is ready to run: split, objective, budget, study."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

import numpy as np
import optuna
from scipy import sparse

from svc import events, logs
from svc.errors import CutoffTooLarge, TrainingError, ZeroScore
from svc.recipe.load import LoadedRecipe
from svc.settings import Settings
from svc.training.algorithms import search_space
from svc.training.budget import TrialPlan, plan_trials
from svc.training.data import TrainingData
from svc.training.evaluate import Evaluation
from svc.training.features import SideName
from svc.training.fit import Judge
from svc.training.objective import Builder, Threads, TrialObjective, is_too_large
from svc.training.progress import Progress
from svc.training.pruner import AlgorithmMedianPruner
from svc.training.sampler import AlgorithmSampler
from svc.training.search import Limits, Search, Talk
from svc.training.split import Split, SplitPlan, smallest_working_ratio, split
from svc.training.storage import StorageLocation, open_storage

_FINGERPRINT = "svc:data"


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """What the search works on. `features` have the row order of the interactions, not of the split."""

    loaded: LoadedRecipe
    data: TrainingData
    split: Split
    plan: TrialPlan
    builder: Builder
    objective: TrialObjective

    @property
    def features(self) -> dict[SideName, sparse.csr_matrix]:
        return {side: fitted.matrix for side, fitted in self.data.sides.items()}


def split_data(loaded: LoadedRecipe, data: TrainingData) -> Split:
    """Split, or raise CutoffTooLarge or ZeroScore for what no search could score."""
    training = loaded.recipe.training
    n_items = len(data.interactions.item_ids)
    if training.cutoff > n_items:
        raise CutoffTooLarge(
            f"training.cutoff is {training.cutoff}, but the cleaned data has only {n_items} items: "
            f"lower it to {n_items} or less"
        )
    logs.emit(events.SPLITTING_DATA)
    plan = split_plan(loaded)
    found = split(data.interactions, plan)
    logs.emit(events.SPLIT_DONE, val_offset=found.val_offset, n_heldout_interactions=found.n_heldout)
    if not found.n_heldout:
        raise ZeroScore(f"no interaction is held out, so every score would be 0. {_remedy(loaded, data)}")
    return found


def split_plan(loaded: LoadedRecipe) -> SplitPlan:
    chosen = loaded.recipe.training.split
    return SplitPlan(chosen.scheme, chosen.heldout_ratio, chosen.test_user_ratio, chosen.seed)


def check_scores(loaded: LoadedRecipe, data: TrainingData, best_score: float) -> None:
    """Raise ZeroScore where nothing that was tried found a single held-out item."""
    if best_score <= 0.0:
        raise ZeroScore(f"every trial scored 0. {_remedy(loaded, data)}")


def _remedy(loaded: LoadedRecipe, data: TrainingData) -> str:
    ratio = smallest_working_ratio(data.interactions, split_plan(loaded))
    given = loaded.recipe.training.split.heldout_ratio
    if ratio is None:
        raise_ratio = "No split.heldout_ratio works with these histories: deepen them"
    elif ratio > given:
        raise_ratio = f"Raise split.heldout_ratio (it is {given:g}; {ratio!r} is the smallest that holds out anything)"
    else:
        raise_ratio = f"Raise split.heldout_ratio above {given:g} ({ratio!r} is the smallest that holds out anything)"
    return f"{raise_ratio}, use deeper histories, raise split.test_user_ratio, or lower training.cutoff."


def make_task(loaded: LoadedRecipe, data: TrainingData, found: Split, settings: Settings, *, shared: bool) -> Task:
    training = loaded.recipe.training
    reproducible = training.parallelism == 1 and not shared
    builder = Builder(training.seed, Threads.choose(settings.training_threads, reproducible=reproducible))
    evaluation = Evaluation(found.heldout, offset=found.val_offset, cutoff=training.cutoff)
    features = {side: fitted.matrix for side, fitted in data.sides.items()}
    if "user" in features:
        features["user"] = features["user"][found.order]
    objective = TrialObjective(
        builder, found.train, Judge.of(evaluation, training.metric, training.split.seed), features
    )
    return Task(loaded, data, found, _plan(loaded, data), builder, objective)


def _plan(loaded: LoadedRecipe, data: TrainingData) -> TrialPlan:
    training = loaded.recipe.training
    names = []
    for name in training.algorithms:
        if is_too_large(name, len(data.interactions.item_ids)):
            logs.emit(
                events.ALGORITHM_SKIPPED,
                algorithm=name,
                reason="its dense item matrices would not fit into the free memory",
            )
        else:
            names.append(name)
    fixed = [name for name in names if not _space(name, data)]
    plan = plan_trials(names, training.n_trials, own=training.per_algorithm_trials or {}, fixed=fixed)
    for name in names:
        if name not in plan.shares and (training.per_algorithm_trials or {}).get(name) != 0:
            logs.emit(
                events.ALGORITHM_SKIPPED, algorithm=name, reason="n_trials is smaller than the list of algorithms"
            )
    if not plan.shares:
        raise TrainingError("no algorithm is left to train: list others in training.algorithms")
    return plan


def _space(name: str, data: TrainingData) -> dict[str, optuna.distributions.BaseDistribution]:
    interactions = data.interactions
    return search_space(
        name,
        n_users=len(interactions.user_ids),
        n_items=len(interactions.item_ids),
        feature_sides=tuple(data.sides),
    )


def open_search(
    task: Task, location: StorageLocation, run_id: str, progress: Progress, *, quiet: bool, verbose: bool
) -> Search:
    """Join or create the study of this run. Raises TrainingError for one that other data made."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    optuna.logging.disable_default_handler()
    optuna.logging.enable_propagation()
    training = task.loaded.recipe.training
    sampler = AlgorithmSampler(task.plan, {name: _space(name, task.data) for name in task.plan.shares}, training.seed)
    storage = open_storage(location)
    study = optuna.create_study(
        study_name=f"svc_{task.loaded.recipe.name}_{run_id}",
        storage=storage.backend,
        sampler=sampler,
        pruner=AlgorithmMedianPruner(),
        direction="maximize",
        load_if_exists=True,
    )
    if location.shared:
        _check_same_data(study, task)
        storage.release_dead_trials(study)
    limits = Limits(training.parallelism, training.timeout_seconds, training.per_trial_timeout_seconds)
    return Search(
        study=study,
        storage=storage,
        sampler=sampler,
        plan=task.plan,
        objective=task.objective,
        limits=limits,
        progress=progress,
        talk=Talk(trials=not quiet, parameters=verbose),
    )


def _check_same_data(study: optuna.Study, task: Task) -> None:
    """Scores of one study must be comparable: same interactions, split, metric, cutoff and features."""
    mine = _fingerprint(task)
    theirs = study.user_attrs.get(_FINGERPRINT)
    if theirs is None:
        study.set_user_attr(_FINGERPRINT, mine)
    elif theirs != mine:
        raise TrainingError(
            f"the study {study.study_name} was made with other data, split, metric, cutoff or features, so its scores "
            "cannot be compared: choose another --run-id"
        )


def _fingerprint(task: Task) -> str:
    training, interactions = task.loaded.recipe.training, task.data.interactions
    digest = hashlib.sha256()
    for part in (interactions.users, interactions.items, interactions.times):
        digest.update(b"" if part is None else np.ascontiguousarray(part).data)
    for ids in (interactions.user_ids, interactions.item_ids):
        digest.update("\n".join(ids).encode("utf-8", "surrogatepass"))
    for side, matrix in sorted(task.features.items()):
        digest.update(side.encode() + matrix.indptr.tobytes() + matrix.indices.tobytes() + matrix.data.tobytes())
    chosen = training.split
    rest = [training.metric, training.cutoff, chosen.scheme, chosen.heldout_ratio, chosen.test_user_ratio, chosen.seed]
    digest.update(json.dumps(rest).encode())
    return digest.hexdigest()

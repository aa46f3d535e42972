"""Build all inputs of a search from the recipe and the data, and open the study that stores its trials."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

from svc import events, logs
from svc.cores import usable_cores
from svc.errors import TrainingError
from svc.progress import Progress
from svc.recipe.algorithms import BLEND, FACTORS, ITEM_WEIGHTS, RECENCY, SELF_WEIGHT
from svc.recipe.load import LoadedRecipe
from svc.recipe.training_schema import Training
from svc.settings import Settings
from svc.training.data.fetch import TrainingData
from svc.training.data.split import SplitMatrices
from svc.training.data.weights import HALF_LIFE, WEIGHT_SCALE, positions_of
from svc.training.fitting.algorithms.registry import ALGORITHMS, Space, nearest, search_space
from svc.training.fitting.train import Builder, how_many_fit
from svc.training.judging.evaluator import Evaluator, Evaluators
from svc.training.judging.recency import HistoryOrder
from svc.training.judging.task import Holdout, Task
from svc.training.search.budget import ALGORITHM, TrialPlan, plan_trials
from svc.training.search.fork_server import ForkServer
from svc.training.search.loop import Search
from svc.training.search.objective import TrialObjective
from svc.training.search.sampler import AlgorithmSampler
from svc.training.search.storage import StorageLocation, open_storage
from svc.training.search.workers import Parallelism

_FINGERPRINT = "svc:data"
_OF_DATA = {HALF_LIFE, WEIGHT_SCALE}
SELF_WEIGHTS = (0.0, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""The choices of the search for a self-weight, the weight of an item for itself, unless the recipe gives bounds."""
_SELF_WEIGHT_GUESSES = (1.0, 0.3, 3.0)
"""The self-weights of an algorithm's first trials, in turn."""


@dataclass(frozen=True, slots=True, eq=False)
class SearchTask(Task):
    """Inputs of a search. The builder of `objective` uses only the threads of one trial, unlike `builder`."""

    plan: TrialPlan
    objective: TrialObjective
    parallelism: Parallelism


def make_task(loaded: LoadedRecipe, data: TrainingData, parts: SplitMatrices, settings: Settings) -> SearchTask:
    """Return the inputs of a search with the split `parts` of `data`.

    Log an event for each algorithm that gets no trial because of memory or `n_trials`. Raise TrainingError if no
    algorithm is left.
    """
    training = loaded.recipe.training
    plan = _plan(loaded, data)
    parallelism = Parallelism.choose(
        training.parallelism, n_trials=plan.total, n_interactions=len(data.trained), n_items=_n_items(data)
    )

    builder = partial(Builder, training.seed, settings.training_threads)
    evaluator = Evaluator(
        parts.heldout,
        offset=parts.val_offset,
        cutoff=training.cutoff,
        weighted=training.weighted_metric,
    )
    orders = {"user": parts.order, "item": parts.item_order}
    features = {side: fitted.matrix[orders[side]] for side, fitted in data.sides.items()}
    evaluators = Evaluators.of(evaluator, training.metric, training.split.seed)
    holdout = Holdout(
        parts.train,
        evaluators,
        features,
        times=parts.times,
        hidden=parts.hidden,
        order=_order(loaded, parts),
        repeats=training.repeats,
        seen_choices=parts.seen,
    )
    objective = TrialObjective(builder(parallelism.threads), holdout)
    return SearchTask(loaded, data, parts, builder(usable_cores()), holdout, plan, objective, parallelism)


def _order(loaded: LoadedRecipe, parts: SplitMatrices) -> HistoryOrder | None:
    """Return the positions of items in histories and the recencies to try, or None if the recipe ignores order."""
    wanted = loaded.recipe.recency
    if wanted == 0.0:
        return None
    assert parts.times is not None, "the split keeps times wherever recency plays a part"
    spaces = loaded.recipe.training.search_space or {}
    bounds = {name: space[RECENCY] for name, space in spaces.items() if RECENCY in space}
    return HistoryOrder(
        positions_of(parts.times),
        None if wanted == "search" else wanted,
        {name: (float(low), float(high)) for name, (low, high) in bounds.items()},
    )


def _n_items(data: TrainingData) -> int:
    return len(data.interactions.item_ids)


def _plan(loaded: LoadedRecipe, data: TrainingData) -> TrialPlan:
    training = loaded.recipe.training
    names = []
    for name in training.algorithms:
        if name == BLEND:
            continue
        most_items = ALGORITHMS[name].most_items
        if most_items is not None and _n_items(data) > most_items:
            reason = f"a training would take too long with more than {most_items} items"
        elif how_many_fit(name, _n_items(data)) == 0:
            reason = "its dense item matrices would not fit into the free memory"
        else:
            names.append(name)
            continue
        logs.emit(events.ALGORITHM_SKIPPED, algorithm=name, reason=reason)
    spaces = {name: _space(name, loaded, data) for name in names}
    # If only the half-life or the scale is to be chosen, the guesses are all the choices, and more trials would repeat
    # one.
    own = {name: len(space.guesses) for name, space in spaces.items() if space and set(space) <= _OF_DATA}
    n_parameters = {name: len(space) for name, space in spaces.items()}
    own |= training.per_algorithm_trials or {}
    # A blend reserves a place for a factor model. Factor models need many trials, and the search would give these to
    # models that use order.
    needed = FACTORS if BLEND in training.algorithms and loaded.recipe.recency else ()
    one_number = {name for name, space in spaces.items() if space.is_one_number}
    plan = plan_trials(
        names, training.n_trials, own=own, n_parameters=n_parameters, needed=needed, one_number=one_number
    )
    for name in names:
        if name not in plan.shares and (training.per_algorithm_trials or {}).get(name) != 0:
            logs.emit(
                events.ALGORITHM_SKIPPED, algorithm=name, reason="n_trials is smaller than the list of algorithms"
            )
    if not plan.shares:
        raise TrainingError("no algorithm is left to train: list others in training.algorithms")
    return plan


def _space(name: str, loaded: LoadedRecipe, data: TrainingData) -> Space:
    interactions, training = data.trained, loaded.recipe.training
    space = search_space(
        name,
        n_users=len(interactions.user_ids),
        n_items=len(interactions.item_ids),
        feature_sides=tuple(data.sides),
        wanted=(training.search_space or {}).get(name),
        in_order=bool(loaded.recipe.recency),
    )
    if loaded.recipe.shows_history and name in ITEM_WEIGHTS:
        space = with_self_weight(space, (training.search_space or {}).get(name, {}).get(SELF_WEIGHT))
    if training.time_decay is not None:
        space = with_choices(space, HALF_LIFE, training.time_decay.half_life)
    scales = loaded.recipe.weight_scales if ALGORITHMS[name].reads_weights else ()
    return with_choices(space, WEIGHT_SCALE, scales) if scales else space


def with_self_weight(space: Space, bounds: Sequence[Any] | None) -> Space:
    """Return `space` with the self-weight as an additional parameter, within the recipe's `bounds` if given."""
    distribution: BaseDistribution = CategoricalDistribution(SELF_WEIGHTS)
    if bounds is not None:
        distribution = FloatDistribution(float(bounds[0]), float(bounds[1]))
    guesses = tuple(
        {**guess, SELF_WEIGHT: nearest(_SELF_WEIGHT_GUESSES[number % len(_SELF_WEIGHT_GUESSES)], distribution)}
        for number, guess in enumerate(space.guesses or ({},))
    )
    return Space({**space, SELF_WEIGHT: distribution}, guesses, space.grows)


def with_choices(space: Space, name: str, choices: Sequence[str]) -> Space:
    """Return `space` with the additional parameter `name`, a half-life or a scale.

    The first trials combine the first guess with each of `choices`. The other guesses get the first choice.
    """
    guesses = space.guesses or ({},)
    first = [{**guesses[0], name: choice} for choice in choices]
    others = [{**guess, name: choices[0]} for guess in guesses[1:]]
    return Space({**space, name: CategoricalDistribution(tuple(choices))}, (*first, *others), space.grows)


def _most_seconds(training: Training) -> float | None:
    """Return the time limit by which the sampler judges model sizes, in seconds, or None without a time limit.

    It is the limit of a trial, or a quarter of the limit of the search if that is less.
    """
    # A trial that takes more than a quarter of the search leaves too little time for others.
    limits = [training.per_trial_timeout_seconds, training.timeout_seconds and training.timeout_seconds / 4]
    return min((limit for limit in limits if limit is not None), default=None)


def open_search(
    task: SearchTask,
    location: StorageLocation,
    run_id: str,
    progress: Progress,
    *,
    quiet: bool,
    verbose: bool,
    server: ForkServer | None = None,
) -> Search:
    """Join or create the study of the run `run_id` in the storage at `location`, and return a search in it.

    Its worker processes are forked by `server`, if they are needed. Raise StoragePathUnusable if the storage cannot be
    opened, and TrainingError if a shared study was made with other data or choices, so that scores cannot be compared.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # Optuna's own handler writes to standard error, between the events of svc.
    optuna.logging.disable_default_handler()
    optuna.logging.enable_propagation()
    training = task.loaded.recipe.training
    spaces = {name: _space(name, task.loaded, task.data) for name in task.plan.shares}
    sampler = AlgorithmSampler(task.plan, spaces, training.seed, most_seconds=_most_seconds(training))
    storage = open_storage(location)
    study = optuna.create_study(
        study_name=f"svc_{task.loaded.recipe.name}_{run_id}",
        storage=storage.backend,
        direction="maximize",
        load_if_exists=True,
    )
    if location.shared:
        try:
            _check_same_data(study, task)
        except TrainingError:
            # Otherwise SQLite's connection stays open until the garbage collector runs, and Python 3.13 warns of it.
            storage.close()
            raise
        storage.release_dead_trials(study)
    fitting = {name: how_many_fit(name, _n_items(task.data)) for name in task.plan.shares}
    return Search(
        study=study,
        storage=storage,
        sampler=sampler,
        workers=task.parallelism.open(task.objective, server),
        metric=training.metric,
        progress=progress,
        timeout_s=training.timeout_seconds,
        per_trial_timeout_s=training.per_trial_timeout_seconds,
        max_rank_ms=training.max_rank_ms,
        # At least 1: memory that was free when the trials were planned may be in use now.
        at_once={name: max(1, count) for name, count in fitting.items() if count is not None},
        quiet=quiet,
        verbose=verbose,
    )


def _check_same_data(study: optuna.Study, task: Task) -> None:
    """Raise TrainingError if the scores of the study's trials cannot be compared with those of this search.

    This is so if the data, the features, or choices of the recipe that affect scores differ, such as split, metric and
    cutoff. A new study stores a fingerprint of all of these. It is also so if a trial is of an algorithm that is not in
    the recipe: this trial could win.
    """
    fingerprint = _fingerprint(task)
    of_study = study.user_attrs.get(_FINGERPRINT)
    if of_study is None:
        study.set_user_attr(_FINGERPRINT, fingerprint)
    tried = {trial.user_attrs.get(ALGORITHM) for trial in study.get_trials(deepcopy=False)}
    if of_study not in (None, fingerprint) or tried - {None, *task.loaded.recipe.training.algorithms}:
        raise TrainingError(
            f"the study {study.study_name} has other data, split, metric, cutoff, features or algorithms, so scores "
            "cannot be compared: choose another --run-id"
        )


def _fingerprint(task: Task) -> str:
    training, parts = task.loaded.recipe.training, task.split
    features = [encoded for _, encoded in sorted(task.features.items())]
    digest = hashlib.sha256()
    # Left out instead of hashed as "none", so that studies from before `cleansing.seen` can be continued.
    of_seen = [] if parts.seen is None else [parts.seen]
    for matrix in (parts.train, parts.heldout, parts.test, parts.times, parts.hidden, *of_seen, *features):
        digest.update(b"none" if matrix is None else repr(matrix.shape).encode())
        for array in () if matrix is None else (matrix.indptr, matrix.indices, matrix.data):
            digest.update(np.ascontiguousarray(array).data)
    choices = [
        training.metric,
        training.cutoff,
        training.split.seed,
        training.weighted_metric,
        training.repeats,
        task.loaded.recipe.recency,
    ]
    digest.update(json.dumps(choices).encode())
    return digest.hexdigest()

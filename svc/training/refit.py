"""`svc train --refit`: train the live model again on the current data with the same parameters, without a search."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from svc import events, logs
from svc.artifact.keys import SigningKeys
from svc.errors import ArtifactError, RefitRefused, UsageError
from svc.recipe.algorithms import LEAST_SQUARES
from svc.recipe.load import LoadedRecipe
from svc.settings import Settings
from svc.training.fitting.trial import TrialRecord
from svc.training.fitting.warm_start import WarmStart
from svc.training.judging.incumbent import Incumbent, Unfit, check_trial, feature_trial_of, read_incumbent, trainable
from svc.training.judging.search_result import Reused, SearchResult
from svc.training.judging.task import Task
from svc.training.search.storage import StorageLocation

_COMPARED = ("training", "features", "schema", "cleansing")
"""Blocks of the recipe that must be the same as at the search, apart from _NO_PARAMETERS. The parameters may not suit
another recipe.
"""
_NO_PARAMETERS = frozenset(
    {"max_search_age", "n_trials", "parallelism", "storage_path", "timeout_seconds", "per_trial_timeout_seconds"}
)
"""Keys of `training` that set how long a search takes, where, and when to repeat it. They may differ in a refit."""


Reusable = tuple[Incumbent, Reused]
"""A live model whose parameters can be used again, and the version whose search found the parameters."""


def check_alone(location: StorageLocation, *, search_only: bool) -> None:
    """Raise UsageError if `search_only` is set, and RefitRefused if the recipe has a `training.storage_path`."""
    if search_only:
        raise UsageError("--refit does not search, so it cannot be combined with --search-only: leave one of them out")
    if location.shared:
        raise RefitRefused(
            "--refit cannot take part in a shared search: leave out training.storage_path, or train without --refit"
        )


def find_reusable(loaded: LoadedRecipe, keys: SigningKeys, settings: Settings) -> Reusable | str:
    """Return the live model of the recipe, or the reason why a search is needed instead.

    Raise RefitRefused with the differences if the recipe has changed since the search (see _COMPARED). Raise
    ArtifactReadError if there is a live model that cannot be read.
    """
    incumbent = read_incumbent(loaded, keys, settings)
    if incumbent is None:
        return "there is no live model that can be verified"
    different = list(_differences(loaded, incumbent.header))
    if different:
        raise RefitRefused(
            f"--refit: the live artifact was searched under another recipe: {'; '.join(different)}. Train without "
            "--refit once, so that a search finds parameters for the current recipe",
            fields={"differences": different},
        )
    # A refit of a refit names the search, so that max_search_age counts from it.
    origin = _origin(incumbent)
    bound_s = loaded.recipe.training.max_search_age_s
    searched_at = datetime.fromisoformat(origin.searched_at)
    if bound_s is not None and datetime.now(UTC) - searched_at > timedelta(seconds=bound_s):
        bound = loaded.recipe.training.max_search_age
        return f"the search of {origin.searched_at} is older than training.max_search_age, {bound}"
    return incumbent, origin


def _origin(incumbent: Incumbent) -> Reused:
    """Return the version whose search found the parameters: the live version, or an earlier one after refits.

    The stretch of its interval (see `Reused`) is 1 if the header lacks it.
    """
    header = incumbent.header
    live = {"sha8": incumbent.sha256[:8], "searched_at": header.get("trained_at")}
    searched = header.get("tuning", {}).get("reused_from", live)
    stretch = max(1.0, header.get("evaluation", {}).get("chosen_among", {}).get("stretch", 1.0))
    return Reused(str(searched["sha8"]), str(searched["searched_at"]), stretch=stretch)


def _differences(loaded: LoadedRecipe, header: Mapping[str, Any]) -> Iterator[str]:
    """Yield a text for each key in the blocks _COMPARED that has changed since the search, with both values.

    A header without a recipe counts as a difference. So do features that cannot be compared, because the header lacks
    them and the hash of the recipe has changed.
    """
    before, now = header.get("recipe"), loaded.unexpanded
    # Equal hashes suffice, also if the header has no room for the recipe.
    if loaded.recipe_hash == header.get("recipe_hash"):
        return
    if not isinstance(before, Mapping):
        yield "its header has no recipe"
        return
    is_whole = "source" in before  # the header lacks `source` and `features` if the whole recipe was too long for it
    for block in _COMPARED if is_whole else [name for name in _COMPARED if name != "features"]:
        yield from _between(block, _parameters(block, before), _parameters(block, now))
    if not is_whole and ("features" in header or "features" in now):
        yield "features: the recipe is too long for the header, so they are compared by the hash of the whole recipe"


def _parameters(block: str, recipe: Mapping[str, Any]) -> Any:
    values = recipe.get(block)
    if block != "training" or not isinstance(values, Mapping):
        return values
    # An empty block is equal to a missing one.
    return {name: value for name, value in values.items() if name not in _NO_PARAMETERS} or None


def _between(key: str, before: Any, now: Any) -> Iterator[str]:
    if isinstance(before, Mapping | None) and isinstance(now, Mapping | None) and (before or now):
        first, second = before or {}, now or {}
        for name in dict.fromkeys([*first, *second]):
            yield from _between(f"{key}.{name}", first.get(name), second.get(name))
    elif before != now:
        yield f"{key} was {_text(before)} and is {_text(now)}"


def _text(value: Any) -> str:
    return "not given" if value is None else repr(value)


def start_refit(
    task: Task, reusable: Reusable | str, settings: Settings, *, cold: bool
) -> tuple[TrialRecord, Reused] | None:
    """Return the trial to train and the origin of its parameters, or None if a search is needed. Log an event.

    `reusable` is the live model, or the reason why a search is needed. A search is also needed if the live model cannot
    be trained again (see `trainable`). With `cold`, the final model starts from random vectors instead of those of the
    live model.
    """
    start, reason = None, None
    if isinstance(reusable, str):
        reason = reusable
    else:
        live, origin = reusable
        try:
            trial, aware = trainable(task, live.header), feature_trial_of(live.header)
            aware = None if aware is None else check_trial(task, aware, live.header)
            vectors = None if cold else _warm_start(task, trial, live, settings)
            start = trial, replace(origin, feature_aware=aware, start=vectors)
        except Unfit as unfit:
            reason = str(unfit)
    reused = None if start is None else start[1]
    logs.emit(
        events.REFIT_STARTED,
        recipe=task.loaded.recipe.name,
        reused_from=None if reused is None else reused.as_fields(),
        vectors_from=None if reused is None or reused.start is None else reused.start.sha8,
        reason=reason,
    )
    return start


def _warm_start(task: Task, trial: TrialRecord, live: Incumbent, settings: Settings) -> WarmStart | None:
    """Return the vectors of the live model, from which iALS starts.

    Return None if the trial has no iALS part, if the artifact cannot be loaded, or if the live model has no iALS or has
    learned from features.
    """
    if LEAST_SQUARES not in (trial.algorithm, *(part.algorithm for part in trial.parts)):
        return None
    trained = task.data.trained
    try:
        # By id, because users and items of today have other numbers.
        return WarmStart.of(live.model(settings), live.sha256[:8], trained.user_ids, trained.item_ids)
    except ArtifactError:
        # Random vectors lead to models that are no worse, in about twice the time.
        return None


def measure(task: Task, trial: TrialRecord, reused: Reused) -> SearchResult:
    """Train and score `trial` on the current split, and return the result of a search with only this trial.

    Raise FeatureRidgeFailed if its feature weights cannot be solved for.
    """
    began, inputs = time.monotonic(), task.holdout
    # From random vectors: those of the live model have learned from the rows that are held out here.
    trained = task.train_on_split(trial)
    evaluation = inputs.evaluators.full.evaluate(inputs.ranker_of(trained, trial))
    seconds = round(time.monotonic() - began, 3)
    record = replace(trial, score=evaluation.metrics[inputs.metric], metrics=evaluation.metrics, seconds=seconds)
    by_user = {record.number: evaluation.scores[inputs.metric]}
    return SearchResult(
        [record], seconds, n_orphaned=0, by_user=by_user, trained=trained, evaluation=evaluation, reused=reused
    )

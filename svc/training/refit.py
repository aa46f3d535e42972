"""`svc train --refit`: the parameters of the live model on the data of now, without a search."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from svc import events, logs
from svc.artifact.keys import SigningKeys
from svc.errors import ArtifactError, RefitRefused, UsageError
from svc.recipe.algorithms import LEAST_SQUARES
from svc.recipe.load import LoadedRecipe
from svc.settings import Settings
from svc.training.fitting.train import train_trial
from svc.training.fitting.trial import TrialRecord
from svc.training.fitting.warm_start import WarmStart
from svc.training.judging.incumbent import Incumbent, read_incumbent
from svc.training.judging.live_trial import Unfit, checked, feature_trial_of, trainable
from svc.training.judging.measurements import evaluate_winner
from svc.training.judging.search_result import Reused, SearchResult
from svc.training.judging.task import Task
from svc.training.search.storage import StorageLocation

_COMPARED = ("training", "features", "schema", "cleansing")
_NO_PARAMETERS = frozenset(
    {"max_search_age", "n_trials", "parallelism", "timeout_seconds", "per_trial_timeout_seconds"}
)
"""Keys of `training` that say how long a search takes, or when to repeat it, and not what it looks for."""
_LONG_AS_HASHED = "source"
"""A header without this block of the recipe has no features either: the recipe was too long for it."""


@dataclass(frozen=True, slots=True)
class Reusable:
    """The live model whose parameters may be used again. `origin` is the version that was searched."""

    live: Incumbent
    origin: Reused


def check_alone(location: StorageLocation, *, search_only: bool) -> None:
    """Raise UsageError or RefitRefused where a search is shared: a refit takes part in none."""
    if search_only:
        raise UsageError("--refit searches nothing, so it does not go with --search-only: leave one of them out")
    if location.shared:
        raise RefitRefused(
            "--refit takes part in no shared search: leave out training.storage_path, or train without --refit"
        )


def find_reusable(loaded: LoadedRecipe, keys: SigningKeys, settings: Settings) -> Reusable | str:
    """The live model of the recipe, or why a search is needed instead.

    Raises RefitRefused, naming what differs, where the recipe is not the one that was searched.
    """
    incumbent = read_incumbent(loaded, keys, settings)
    if incumbent is None:
        return "there is no live model that can be verified"
    different = list(_differences(loaded, incumbent.header))
    if different:
        raise RefitRefused(
            f"--refit: the live artifact was searched under another recipe: {'; '.join(different)}. Train without "
            "--refit once, so that parameters are searched for the recipe of now",
            fields={"differences": different},
        )
    origin = _origin(incumbent)
    if origin is None:
        return "the header of the live model does not say when it was searched"
    bound_s = loaded.recipe.training.max_search_age_s
    searched_at = datetime.fromisoformat(origin.searched_at)
    if bound_s is not None and datetime.now(UTC) - searched_at > timedelta(seconds=bound_s):
        bound = loaded.recipe.training.max_search_age
        return f"the search of {origin.searched_at} is older than training.max_search_age, {bound}"
    return Reusable(incumbent, origin)


def _origin(incumbent: Incumbent) -> Reused | None:
    """The version that was searched: the live one, or the one that it was refitted from."""
    tuning = incumbent.header.get("tuning")
    told = tuning.get("reused_from") if isinstance(tuning, Mapping) else None
    if isinstance(told, Mapping):
        sha8, searched_at = str(told.get("sha8")), str(told.get("searched_at"))
    else:
        sha8, searched_at = incumbent.sha256[:8], str(incumbent.header.get("trained_at"))
    try:
        has_zone = datetime.fromisoformat(searched_at).tzinfo is not None
    except ValueError:
        return None
    return Reused(sha8, searched_at, stretch=_stretch(incumbent.header)) if has_zone else None


def _stretch(header: Mapping[str, Any]) -> float:
    """The stretch of the interval of a live model; 1 where its header, of an earlier version, has none."""
    evaluation = header.get("evaluation")
    among = evaluation.get("chosen_among") if isinstance(evaluation, Mapping) else None
    stretch = among.get("stretch") if isinstance(among, Mapping) else None
    return max(1.0, float(stretch)) if isinstance(stretch, int | float) else 1.0


def _differences(loaded: LoadedRecipe, header: Mapping[str, Any]) -> Iterator[str]:
    """Each key of the recipe that is not as it was at the search, with both values."""
    before, now = header.get("recipe"), loaded.unexpanded
    if loaded.recipe_hash == header.get("recipe_hash"):
        return
    if not isinstance(before, Mapping):
        yield "its header has no recipe"
        return
    is_whole = _LONG_AS_HASHED in before
    for block in _COMPARED if is_whole else [name for name in _COMPARED if name != "features"]:
        yield from _between(block, _parameters(block, before), _parameters(block, now))
    if not is_whole and ("features" in header or "features" in now):
        yield "features: the recipe is too long for the header, so they are compared by the hash of the whole recipe"


def _parameters(block: str, recipe: Mapping[str, Any]) -> Any:
    values = recipe.get(block)
    if block != "training" or not isinstance(values, Mapping):
        return values
    return {name: value for name, value in values.items() if name not in _NO_PARAMETERS} or None


def _between(key: str, before: Any, now: Any) -> Iterator[str]:
    if isinstance(before, Mapping | None) and isinstance(now, Mapping | None) and (before or now):
        first, second = before or {}, now or {}
        for name in dict.fromkeys([*first, *second]):
            yield from _between(f"{key}.{name}", first.get(name), second.get(name))
    elif before != now:
        yield f"{key} was {_shown(before)} and is {_shown(now)}"


def _shown(value: Any) -> str:
    return "not given" if value is None else repr(value)


def start_refit(
    task: Task, reusable: Reusable | str, settings: Settings, *, cold: bool
) -> tuple[TrialRecord, Reused] | None:
    """The trial to train, and where it comes from. None where a search is needed; the event says why.

    With `cold` its final model starts from nothing.
    """
    start, reason = _start(task, reusable, settings, cold=cold)
    reused = None if start is None else start[1]
    logs.emit(
        events.REFIT_STARTED,
        recipe=task.loaded.recipe.name,
        reused_from=None if reused is None else reused.as_fields(),
        vectors_from=None if reused is None or reused.start is None else reused.start.sha8,
        reason=reason,
    )
    return start


def _start(
    task: Task, reusable: Reusable | str, settings: Settings, *, cold: bool
) -> tuple[tuple[TrialRecord, Reused] | None, str | None]:
    if isinstance(reusable, str):
        return None, reusable
    header = reusable.live.header
    try:
        trial, aware = trainable(task, header), feature_trial_of(header)
        aware = None if aware is None else checked(task, aware, header)
    except Unfit as unfit:
        return None, str(unfit)
    vectors = None if cold else _warm_start(task, trial, reusable.live, settings)
    return (trial, replace(reusable.origin, feature_aware=aware, start=vectors)), None


def _warm_start(task: Task, trial: TrialRecord, live: Incumbent, settings: Settings) -> WarmStart | None:
    """The vectors of the live model; None where the trial cannot start from them, or they cannot be loaded."""
    if LEAST_SQUARES not in (trial.algorithm, *(part.algorithm for part in trial.parts)):
        return None
    trained = task.data.trained
    try:
        return WarmStart.of(live.model(settings), live.sha256[:8], trained.user_ids, trained.item_ids)
    except ArtifactError:
        return None


def measure(task: Task, trial: TrialRecord, reused: Reused) -> SearchResult:
    """The trial as the result of a search of one, with its score on the holdout of now.

    Raises FeatureRidgeFailed where its feature weights cannot be solved for.
    """
    began, inputs = time.monotonic(), task.holdout
    trained = train_trial(task.builder, trial, inputs.decayed(trial.params), inputs.features, inputs.times)
    evaluation = evaluate_winner(task, inputs.ranker_of(trained, trial))
    seconds = round(time.monotonic() - began, 3)
    record = replace(trial, score=evaluation.metrics[inputs.metric], metrics=evaluation.metrics, seconds=seconds)
    by_user = {record.number: evaluation.by_user(inputs.metric)}
    return SearchResult(
        [record], seconds, n_orphaned=0, by_user=by_user, trained=trained, evaluation=evaluation, reused=reused
    )

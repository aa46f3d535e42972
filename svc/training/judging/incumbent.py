"""Read the incumbent, which is the model that is live before a training, and check whether it can be trained again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from svc import events, logs
from svc.artifact.keys import SigningKeys
from svc.artifact.store import open_store, read_verified
from svc.errors import ArtifactError, ArtifactReadError, DataChangedTooMuch
from svc.model.load_model import load_model
from svc.model.model import Model
from svc.recipe.algorithms import BLEND, FEATURE_AWARE
from svc.recipe.load import LoadedRecipe
from svc.recipe.schema import WEIGHT_SCALES, MaxChange
from svc.settings import Settings
from svc.training.data.weights import HALF_LIFE, NO_DECAY, POPULARITY_HALF_LIFE, WEIGHT_SCALE
from svc.training.fitting.algorithms.registry import ALGORITHMS, search_space
from svc.training.fitting.train import OF_SVC, how_many_fit
from svc.training.fitting.trial import FEATURES_AND_SEEDS, TrialRecord
from svc.training.judging.task import Task


@dataclass(frozen=True, slots=True)
class Incumbent:
    """The artifact of the live model, whose signature was verified. `sha256` is that of the whole file."""

    header: Mapping[str, Any]
    sha256: str
    payload: memoryview

    def model(self, settings: Settings) -> Model:
        """Return the model as a server would load it. Raise ArtifactError if it cannot be loaded."""
        name = str(self.header.get("recipe_name"))
        return load_model(self.header, self.payload, name=name, allow_skew=settings.allow_version_skew)


def read_incumbent(loaded: LoadedRecipe, keys: SigningKeys, settings: Settings) -> Incumbent | None:
    """Return the live model of the recipe, or log an event with the reason and return None if none can be verified.

    Raise ArtifactReadError if the live model cannot be read, unless the pointer names a version that no longer exists.
    The training then stops, because the model must not be replaced without a comparison.
    """
    store = open_store(loaded.output_uri, settings)
    try:
        # First, because `read_verified` raises the same error for a missing file as for a store that does not answer.
        store.marker()
        blob, parsed = read_verified(loaded.output_uri, keys, settings)
        return Incumbent(parsed.header, blob.sha256, parsed.payload)
    except FileNotFoundError:
        reason = "there is no earlier model"
    except ArtifactReadError as error:
        target = store.live()
        if target is None or store.has_version(target):
            raise
        reason = error.message
    except ArtifactError as error:
        reason = error.message
    logs.emit(events.INCUMBENT_NOT_COMPARABLE, recipe=loaded.recipe.name, reason=reason)
    return None


def check_data_change(before: Mapping[str, Any], after: Mapping[str, int], bounds: MaxChange) -> None:
    """Raise DataChangedTooMuch if a count rose or fell by more than its relative bound since `before`.

    `before` is the block `data_stats` of the live header, and `after` has the counts of the new interactions. A count
    is not checked if it is missing or 0 in `before`, or if it has no bound.
    """
    moved = []
    for name in after:
        bound, old = getattr(bounds, name), before.get(name)
        if bound is None or not isinstance(old, int) or old < 1:
            continue
        change = after[name] / old - 1.0
        if abs(change) > bound:
            moved.append(f"{name} from {old:,} to {after[name]:,} ({change:+.0%}; max_change allows {bound:.0%})")
    if moved:
        raise DataChangedTooMuch(
            f"since the last training the data changed: {', '.join(moved)}. Check the source. If the change is "
            "intended, train once with --accept-data-change, or raise cleansing.max_change",
            fields={"before": {name: before.get(name) for name in after}, "after": dict(after)},
        )


_EPOCHS = "train_epochs"


class Unfit(Exception):
    """The live model cannot be trained again, for the reason in the message."""


def trainable(task: Task, header: Mapping[str, Any]) -> TrialRecord:
    """Return the trial of the model with this `header`, ready to be trained again on the current data.

    Raise Unfit if the header lacks its parameters, if this version of svc or the current recipe cannot train it, or if
    its dense item matrices would not fit into the free memory.
    """
    trial = trial_of(header)
    if trial.recency and task.holdout.order is None:
        raise Unfit("it weighs histories by their order, and the recipe no longer has training.recency")
    return check_trial(task, trial, header)


def check_trial(task: Task, trial: TrialRecord, header: Mapping[str, Any]) -> TrialRecord:
    """Return a `trial` that was read from `header`, with at most as many SVD components as the current data allows.

    Raise Unfit if this version of svc or the current recipe cannot train it again, or if its dense item matrices would
    not fit into the free memory.
    """
    declared = [side for side in ("user", "item") if side in (header.get("features") or {})]
    trial = replace(_limit_components(task, trial), parts=tuple(_limit_components(task, part) for part in trial.parts))
    for part in trial.parts or (trial,):
        _check(task, part, declared)
    return trial


def trial_of(header: Mapping[str, Any]) -> TrialRecord:
    """Return the trial that led to the model with this `header`. Raise Unfit if the header lacks its parameters."""
    try:
        name, params = str(header["best_class"]), dict(header["best_params"])
        recency = float(header.get("recency", 0.0))
        if name != BLEND:
            return replace(_record(name, params), recency=recency)
        parts = [part for part in header["parts"] if "weight" in part]
        if any("recency" in part for part in parts):
            raise Unfit("its parts have recencies of their own, which svc no longer trains")
        params["weights"] = {part["class"]: part["weight"] for part in parts}
        trials = tuple(replace(_record(part["class"], dict(part["params"])), recency=recency) for part in parts)
    except (KeyError, TypeError, ValueError):
        raise Unfit("its header does not tell its class and parameters") from None
    return replace(_record(name, params), parts=trials, recency=recency)


def feature_trial_of(header: Mapping[str, Any]) -> TrialRecord | None:
    """Return the trial of the part that answers only queries with features and seeds, or None without such a part."""
    for part in header.get("parts") or ():
        if part.get("class") == FEATURE_AWARE and "weight" not in part and part["answers"] == FEATURES_AND_SEEDS:
            recency = float(part.get("recency", header.get("recency", 0.0)))
            return replace(_record(FEATURE_AWARE, dict(part["params"])), score=part.get("score"), recency=recency)
    return None


def _record(name: str, params: dict[str, Any]) -> TrialRecord:
    # `final_params` adds the number of epochs to the parameters. No recommender accepts it.
    epochs = params.pop(_EPOCHS, None)
    return TrialRecord(0, name, params, "complete", None, {}, epochs, 0.0)


def _limit_components(task: Task, trial: TrialRecord) -> TrialRecord:
    """Return `trial` with fewer components than users and items, as a truncated SVD requires.

    A trial of another algorithm is returned unchanged.
    """
    most = min(task.holdout.train.shape) - 1
    wanted = trial.params.get("n_components")
    if trial.algorithm != "TruncatedSVDRecommender" or not isinstance(wanted, int) or wanted <= most:
        return trial
    return replace(trial, params={**trial.params, "n_components": max(1, most)})


def _check(task: Task, trial: TrialRecord, declared: list[str]) -> None:
    """Raise Unfit if this version of svc or this recipe cannot train the trial, or if it needs too much memory.

    `declared` are the sides, "user" and "item", for which its header has features.
    """
    name = trial.algorithm
    if name not in ALGORITHMS:
        # Cut, because a header of another version of svc may hold any text.
        raise Unfit(f"this version of svc cannot train the live model's class {name[:64]}")
    if how_many_fit(name, task.holdout.train.shape[1]) == 0:
        raise Unfit(f"the dense item matrices of its class {name} would not fit into the free memory")
    missing = [side for side in declared if side not in task.holdout.features]
    if missing and ALGORITHMS[name].takes_features:
        raise Unfit(f"it was trained with features of the {missing[0]}s, which the recipe no longer has")
    n_users, n_items = task.holdout.train.shape
    parameters = search_space(name, n_users=n_users, n_items=n_items, feature_sides=tuple(declared))
    unknown = sorted(set(trial.params) - set(parameters) - OF_SVC)
    if unknown:
        raise Unfit(f"this version of svc does not know the parameter {unknown[0][:64]} of its class {name}")
    scale = trial.params.get(WEIGHT_SCALE, WEIGHT_SCALES[0])
    if scale not in WEIGHT_SCALES:
        raise Unfit(f"this version of svc does not know the scale {str(scale)[:64]} of its weights")
    takes_times = ALGORITHMS[name].takes_times or trial.params.get(POPULARITY_HALF_LIFE, NO_DECAY) != NO_DECAY
    if takes_times and task.holdout.times is None:
        raise Unfit(f"its class {name} learns from times, which this recipe does not read")
    if trial.params.get(HALF_LIFE, NO_DECAY) != NO_DECAY and task.loaded.recipe.training.time_decay is None:
        raise Unfit("it was trained with a half-life, and the recipe no longer has training.time_decay")

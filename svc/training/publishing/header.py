"""The JSON header of an artifact: its recipe, run, data, search and scores."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

import svc
from svc.model.columns.text_column import TextColumn
from svc.model.features import FEATURE_VERSION, SideEncoder
from svc.recipe.schema import Recipe
from svc.recipe.training_schema import Split
from svc.training.judging.measurements import WinnerMeasurements
from svc.training.judging.metrics import PER_USER
from svc.training.judging.search_result import SearchResult
from svc.training.judging.task import Task

_DIGITS = 10
_MOST_TRIALS = 400
_MAX_RECIPE_BYTES = 32 << 10
"""Longest recipe, as JSON, that a header holds whole. A header has at most 64 KiB, and some recipes with long queries
have more.
"""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What `header` needs: the inputs of the training, and facts about the run, the search and the final model.

    - `fingerprint` identifies the signing key `kid`.
    - `n_interactions` is the number of pairs in the final model's matrix.
    - `n_trials` is the planned number of trials, and one more for a blend. It is 1 for a refit.
    - `measured` and `curves` have fields of the header's block `evaluation`.
    - `parts` describes the parts of the final model (see `FinalModel`).
    - `rank_ms` is the time of a single ranking by the final model, in milliseconds.
    - `ranker` describes the ranker that was learned, or is None if none was.
    """

    run_id: str
    trained_at: str
    kid: str
    fingerprint: str
    task: Task
    n_interactions: int
    n_trials: int
    result: SearchResult
    measured: WinnerMeasurements
    curves: Mapping[str, Any]
    features_active: bool
    parts: list[dict[str, Any]]
    rank_ms: float
    ranker: Mapping[str, Any] | None


def header(facts: RunFacts) -> dict[str, Any]:
    """Return the fields of the header as plain JSON values, without `promotion` and those of `fresh_fields`."""
    loaded, best = facts.task.loaded, facts.result.best
    training = loaded.recipe.training
    fields = {
        "kid": facts.kid,
        "fingerprint": facts.fingerprint,
        "format_version": 1,  # `layout.write` puts the real version here, which depends on the signature
        "svc_version": svc.__version__,
        "python_version": platform.python_version(),
        "irspack_version": version("irspack"),
        "sklearn_version": version("scikit-learn"),
        "numpy_version": np.__version__,
        "recipe": _recipe(loaded.unexpanded),
        "recipe_name": loaded.recipe.name,
        "recipe_hash": loaded.recipe_hash,
        "run_id": facts.run_id,
        "trained_at": facts.trained_at,
        "best_class": best.algorithm,
        "best_params": best.final_params,
        "best_score": best.score,
        "algorithms": list(training.algorithms),
        "metric": training.metric,
        "cutoff": training.cutoff,
        "tuning": _tuning(facts),
        "evaluation": {**best.metrics, **facts.measured.evaluation, **facts.curves},
        "data_stats": _data_stats(facts),
        "rank_ms": facts.rank_ms,
    }
    # Only a split that svc chose in place of its default: a given one stands in `recipe`, and the default needs no
    # field.
    if not loaded.has_split and training.split not in (Split(), Split(scheme="time_user")):
        fields["split"] = training.split.model_dump()
    if best.recency:
        fields["recency"] = best.recency
    if training.repeats:
        fields["repeats"] = True
    if events := loaded.recipe.cleansing.event_values:
        fields["events"] = [_event(loaded.recipe, event, weight, facts) for event, weight in events.items()]
    if loaded.recipe.serving.popular is not None:
        fields["popular"] = loaded.recipe.serving.popular.model_dump(exclude_none=True)
    if facts.ranker is not None:
        fields["ranker"] = dict(facts.ranker)
        if facts.ranker["ships"]:
            fields["score_with_order"] = facts.ranker["score_with"]
    if facts.parts:
        fields["parts"] = facts.parts
    if loaded.recipe.features is not None:
        fields["features"] = _features(facts)
    return fields


def _event(recipe: Recipe, event: str, weight: float, facts: RunFacts) -> dict[str, Any]:
    return {
        "event": event,
        "weight": weight,
        "seen": not recipe.training.repeats and (recipe.seen is None or event in recipe.seen),
        "target": recipe.target is None or event in recipe.target,
        "n_rows": facts.task.data.interactions.events.get(event, 0),
    }


def _recipe(unexpanded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe before variables were replaced.

    If it is longer than _MAX_RECIPE_BYTES, `source`, `features` and `item_metadata` are left out.
    """
    # Before variables were replaced, because their values may be secrets and everybody can read a header.
    if len(json.dumps(unexpanded)) <= _MAX_RECIPE_BYTES:
        return dict(unexpanded)
    return {key: block for key, block in unexpanded.items() if key not in ("source", "features", "item_metadata")}


def _data_stats(facts: RunFacts) -> dict[str, Any]:
    interactions = facts.task.data.interactions
    return {
        **interactions.counts,
        "n_interactions": facts.n_interactions,
        "density": round(facts.n_interactions / (len(interactions.user_ids) * len(interactions.item_ids)), _DIGITS),
        "n_heldout_interactions": facts.task.split.n_heldout,
        "drop_count": interactions.drop_count,
        **interactions.filter_counts,
        **({} if interactions.future is None else {"future_times": interactions.future.count}),
    }


def _tuning(facts: RunFacts) -> dict[str, Any]:
    result, intervals = facts.result, facts.measured.intervals
    return {
        **({} if result.reused is None else {"reused_from": result.reused.as_fields()}),
        **({} if result.reused is None or result.reused.start is None else {"vectors_from": result.reused.start.sha8}),
        "n_trials": facts.n_trials,
        "completed": result.count("complete"),
        "pruned": result.count("pruned"),
        "failed": result.count("failed"),
        **({"too_slow": result.n_too_slow} if result.n_too_slow else {}),
        "seconds": round(result.seconds, 3),
        "best_per_algorithm": {
            name: {
                "score": trial.score,
                "params": trial.params,
                **({"recency": trial.recency} if trial.recency else {}),
                "seconds": trial.seconds,
                **({} if trial.rank_ms is None else {"rank_ms": trial.rank_ms}),
                "metrics": {metric: trial.metrics[metric] for metric in PER_USER if metric in trial.metrics},
                **({"interval": intervals[name]} if name in intervals else {}),
            }
            for name, trial in result.best_per_algorithm.items()
        },
        "n_orphaned": result.n_orphaned,
        "workers": result.workers,
        "trials": _course(result),
    }


def _course(result: SearchResult) -> dict[str, list[Any]]:
    """Return number, algorithm, score and ranking time of each complete trial, in the order of the search.

    They are for the report. If there are more than _MOST_TRIALS trials, only every n-th is kept, so that the header
    stays small. The best trial of each algorithm is in the field `best_per_algorithm` in any case.
    """
    complete = result.completed
    # Rounded up, so that at most _MOST_TRIALS are left.
    shown = complete[:: -(-len(complete) // _MOST_TRIALS)] if complete else []
    names = list(result.best_per_algorithm)
    return {
        "algorithms": names,
        "numbers": [trial.number for trial in shown],
        # Numbers in place of names, because a header with 400 trials has to stay below 64 KiB.
        "of": [names.index(trial.algorithm) for trial in shown],
        "scores": [round(trial.score or 0.0, 6) for trial in shown],
        "rank_ms": [trial.rank_ms for trial in shown],
    }


def _features(facts: RunFacts) -> dict[str, Any]:
    """Return the block `features`. `active` is True if a part of the model answers requests with features."""
    sides = facts.task.data.sides
    return {
        "version": FEATURE_VERSION,
        "active": facts.features_active,
        **{
            side: {
                "dimension": fitted.encoder.dim,
                "columns": list(fitted.encoder.columns),
                **_texts(fitted.encoder),
            }
            for side, fitted in sides.items()
        },
    }


def _texts(encoder: SideEncoder) -> dict[str, Any]:
    """Return the number of words of each text column and its limit, or nothing without text columns."""
    texts = [column for column in encoder.encoders if isinstance(column, TextColumn)]
    described = [{"column": text.name, "words": text.width, "max_words": text.max_words} for text in texts]
    return {"texts": described} if described else {}

"""Train the final model after a search: the winner without holding out data, and a part for features if needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from svc import events, logs
from svc.model.codec import Stored
from svc.model.model import Model
from svc.model.ranker.page_ranker import PageRanker
from svc.model.recommenders.base import Scorer
from svc.model.recommenders.blend import BlendScorer
from svc.model.recommenders.factors import ColdStartScorer, IALSScorer
from svc.recipe.algorithms import FACTORS, FEATURE_AWARE, TOP_POP
from svc.training.data.interactions import HiddenOfOthers
from svc.training.data.weights import HALF_LIFE
from svc.training.fitting.export import (
    Columns,
    assemble,
    fold_in_users,
    most_chosen_first,
    reorder_items,
    weigh,
)
from svc.training.fitting.train import train_trial
from svc.training.fitting.trial import FEATURES_AND_SEEDS, TrialRecord
from svc.training.fitting.warm_start import WarmStart
from svc.training.judging.search_result import SearchResult
from svc.training.judging.task import Task
from svc.training.ranker.learn import Learned

EVERYTHING = "everything"
KNOWN_USERS = "known users"


@dataclass(frozen=True, slots=True, eq=False)
class FinalModel:
    """The final model of a training.

    - `matrix`, (users, items), has the interactions of all users, with the winner's half-life and in the model's order
      of items. If the recipe asks for a sample of users, only some of the rows were trained on.
    - `parts` describes the parts of the model for the header. It is empty if there is only one part.
    - `aware` is the trial that has learned from features: the winner, one of its parts or the extra part. It is None if
      there is none.
    """

    matrix: sparse.csr_matrix
    model: Model
    parts: list[dict[str, Any]]
    aware: TrialRecord | None


def train_final(task: Task, result: SearchResult, learned: Learned | None = None) -> FinalModel:
    """Train the winner without holding out data, and build the model to serve.

    If the recipe has features and the winner has not learned from them, the best trial that has learned from them
    becomes an extra part, which answers for users and items outside the training data. If the recipe asks for a sample
    of users, both are trained on the sample, and the vectors of all users are solved for afterwards.

    `learned` is the ranker that reorders the items recommended to a user. If it is None, items keep the winner's order.
    Raise FeatureRidgeFailed if the feature weights cannot be solved for.
    """
    best, interactions = result.best, task.data.interactions
    logs.emit(events.TRAINING_FINAL_MODEL, recommender=best.algorithm)
    start = None if result.reused is None else result.reused.start
    sampled = task.data.sample is not None
    raw = task.matrix({}, all_users=sampled)
    # As in the search, so that ties of scores are broken alike.
    columns = most_chosen_first(raw)
    scorer = _train(task, best, columns, start)
    aware = _feature_aware(task, result)
    cold_trial = None if aware is best or aware in best.parts else aware
    # A blend reads histories with the weights of each of its parts.
    readings = best.readings(cold_trial)
    times = (
        (interactions if sampled else task.data.trained).latest()
        if any(HALF_LIFE in reading for reading in readings)
        else None
    )
    weighed = [(reorder_items(own, columns), scale) for own, scale in weigh(raw, times, readings)]
    (matrix, scale), *other_weights = weighed
    in_order = best.recency or (learned is not None and learned.ranker.record.ordered)
    in_order = in_order or (cold_trial is not None and cold_trial.recency)
    positions = reorder_items(task.positions(all_users=sampled), columns) if in_order else None
    fold_in_users(best, scorer, weighed, positions, features=task.features.get("user"))
    logs.emit(events.FINAL_MODEL_TRAINED, recommender=best.algorithm)
    cold, parts = None, []
    if best.parts:
        parts = blend_parts(best, scorer)
    if cold_trial is not None:
        # Without `start`: the numbers of features change with the data, so no vectors fit.
        feature_scorer = _train(task, cold_trial, columns)
        assert isinstance(feature_scorer, IALSScorer), "feature-aware is iALS alone"
        # Without the vectors of its users, because the winner answers for known users.
        cold = ColdStartScorer.of(feature_scorer)
        parts = parts or [part(best, scorer, EVERYTHING)]
        parts = [{**described, "answers": KNOWN_USERS} for described in parts]
        parts += [part(cold_trial, cold, FEATURES_AND_SEEDS)]
        if best.recency or cold_trial.recency:
            parts[-1]["recency"] = cold_trial.recency
        logs.emit(
            events.COLD_START_PART_TRAINED,
            recommender=cold_trial.algorithm,
            score=cold_trial.score,
            bytes=parts[-1]["bytes"],
        )
    hidden, unknown, others = interactions.hidden_matrix(), interactions.hidden_unknown, interactions.hidden_of_others
    new_ids, seen = [] if unknown is None else unknown.item_ids, interactions.seen_matrix()
    n_new = len(new_ids)
    model = assemble(
        scorer,
        user_ids=interactions.user_ids,
        item_ids=[interactions.item_ids[column] for column in columns.tolist()],
        X=matrix,
        features=None if aware is None else task.data.feature_state,
        cold=cold,
        cold_recency=None if cold_trial is None else cold_trial.recency,
        hidden=None if hidden is None else reorder_items(hidden, columns),
        hidden_new=None if unknown is None else unknown.rows.matrix(len(interactions.user_ids), n_new),
        hidden_new_ids=new_ids,
        hidden_of_others=None if others is None else _reorder_known(others, columns, n_new),
        other_user_ids=() if others is None else others.user_ids,
        positions=positions,
        recency=best.recency,
        repeats=task.loaded.recipe.training.repeats,
        popularity=None if interactions.popularity is None else interactions.popularity[columns],
        ranker=None if learned is None else _ranker(task, learned, matrix, columns),
        seen=None if seen is None else reorder_items(seen, columns),
        scale=scale,
        others=other_weights,
        weighing_beside=0 if cold_trial is None else readings.index(cold_trial.of_history),
    )
    if task.loaded.recipe.serving.users:
        # Here and not when a server loads the model: scoring 100,000 users took 10 s.
        model.measure_users()
    return FinalModel(matrix, model, parts, aware)


def _reorder_known(others: HiddenOfOthers, columns: NDArray[np.int32], n_new: int) -> sparse.csr_matrix:
    """Return the matrix of hidden pairs of `others`, with items in the model's order, and `n_new` unknown ones last."""
    n_items = len(columns)
    matrix = others.rows.matrix(len(others.user_ids), n_items + n_new)
    return reorder_items(matrix, np.append(columns, n_items + np.arange(n_new, dtype=columns.dtype)))


def _ranker(task: Task, learned: Learned, matrix: sparse.csr_matrix, columns: NDArray[np.int32]) -> PageRanker:
    """Return the ranker of the final model. `columns` has the item of the interactions for each column of `matrix`."""
    ages = reorder_items(task.data.interactions.latest(), columns) if learned.ranker.record.ordered else None
    return learned.on(matrix, ages, columns.astype(np.int64))


def part(trial: TrialRecord, scorer: Scorer | Stored, answers: str) -> dict[str, Any]:
    """Return the header's description of one part of a model. `answers` names the queries that the part answers."""
    return {
        "class": trial.algorithm,
        "answers": answers,
        "score": trial.score,
        "params": trial.final_params,
        "bytes": sum(scorer.parts().values()),
    }


def blend_parts(blend: TrialRecord, scorer: Scorer) -> list[dict[str, Any]]:
    """Return the header's description of the parts of a blend, each with its weight."""
    assert isinstance(scorer, BlendScorer), "a trial with parts is a blend"
    weights = dict(zip((trial.algorithm for trial in blend.parts), blend.params["weights"].values(), strict=True))
    sums = iter(scorer.sums)
    described = []
    for trial in blend.parts:
        if trial.algorithm == TOP_POP:
            own: Stored | None = scorer.popularity
        else:
            own = scorer.factors if trial.algorithm in FACTORS else next(sums)
        assert own is not None, "the scorer has every part"
        described.append(part(trial, own, EVERYTHING) | {"weight": weights[trial.algorithm]})
    return described


def _train(task: Task, trial: TrialRecord, columns: Columns, start: WarmStart | None = None) -> Scorer:
    times = task.data.trained.latest() if task.loaded.recipe.trains_on_times else None
    return train_trial(task.builder, trial, task.matrix({}), task.features, times, start=start, columns=columns)


def _feature_aware(task: Task, result: SearchResult) -> TrialRecord | None:
    """Return the trial that learned from features: a part of the winning blend, a reused one, or the search's best.

    Return None if the recipe has no features. If it has features but no trial learned from them, also log an event.
    """
    if not task.data.sides:
        return None
    # The part of a blend is trained anyway, so another trial with features would be a second model.
    within = [part for part in result.best.parts if part.algorithm == FEATURE_AWARE]
    reused = None if result.reused is None else result.reused.feature_aware
    trial = within[0] if within else reused or result.best_per_algorithm.get(FEATURE_AWARE)
    if trial is None:
        logs.emit(events.FEATURES_INACTIVE, reason=f"no trial of {FEATURE_AWARE} was completed")
    return trial

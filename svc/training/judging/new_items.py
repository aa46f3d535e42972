"""Measure the effect of `serving.new_items`: how often users get new items that they choose, and what known items lose.

In each fold of coldstart.py, a tenth of the items, but at most MOST_IDS, is removed from the training part of the
split, and the model is trained on the rest. The model then ranks the removed items as new items, by their features,
among all known items. This is done for at most SAMPLE_USERS validation users in each fold. A page is the list of items
recommended to a user. It has the length of the recipe's cutoff, and obeys `max_share` and `min_share` of
`serving.new_items`.

A ranking by popularity alone never shows a new item, because no user has chosen it. So the baseline gives each user as
many new items as the model does, from the top of one list that all users share. The list is ordered by the popularity
of the items' features (see `popularity_of_unseen`), with ties in random order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from svc.asking.offer import Offer
from svc.asking.plan import known_user
from svc.model.feature_embedder import FeatureEmbedder
from svc.model.ids import IdTable
from svc.model.model import Model
from svc.model.ranking.new_items import NewItems
from svc.model.recommenders.base import Scorer
from svc.model.recommenders.factors import ColdStartScorer, IALSScorer
from svc.recipe import serving_schema
from svc.recipe.algorithms import FEATURE_AWARE
from svc.training.fitting.algorithms.registry import ALGORITHMS
from svc.training.fitting.export import assemble, fold_in_users, weigh
from svc.training.fitting.train import train_trial
from svc.training.fitting.trial import TrialRecord
from svc.training.judging.coldstart import (
    TOO_MUCH,
    draws,
    encode_rows,
    intervals_of_draws,
    is_too_much,
    measure_folds,
    popularity_of_unseen,
    training_work,
)
from svc.training.judging.evaluator import DIGITS, SAMPLE_USERS
from svc.training.judging.metrics import choices_of, user_scores
from svc.training.judging.search_result import SearchResult
from svc.training.judging.task import Task

MEASURES = ("recall", "known_change", "share", "popularity_recall")
_USERS_AT_ONCE = 256

Columns = NDArray[np.int64]
Pages = list[list[int]]


@dataclass(frozen=True, slots=True, eq=False)
class _Fold:
    """One fold: a model that was trained without the items `held`.

    `kept` and `held` are columns of the training part of the split. `new_items` has the items `held`, in this order, in
    the form in which a model ranks new items.
    """

    model: Model
    kept: Columns
    held: Columns
    new_items: NewItems

    def pages(self, users: Sequence[int], cutoff: int, *, with_new: bool) -> Pages:
        """Return the first `cutoff` items recommended to each user, as columns of the training part of the split.

        New items are among them only if `with_new` is set.
        """
        offer = Offer(model=self.model, new_items=self.new_items if with_new else None)
        queries = [known_user(offer, user, limit=cutoff) for user in users]
        columns = np.concatenate([self.kept, self.held])
        chunks = [queries[start : start + _USERS_AT_ONCE] for start in range(0, len(queries), _USERS_AT_ONCE)]
        return [columns[ranking.items].tolist() for chunk in chunks for ranking in self.model.rank(chunk)]


def evaluate_new_items(
    task: Task, result: SearchResult, aware: TrialRecord, declared: serving_schema.NewItems
) -> dict[str, Any]:
    """Return the figures for the header, or `{"skipped": reason}`.

    The measurement is skipped if it would take too much work compared with the search, if no fold has users who chose
    new and known items, or if the feature weights of a fold cannot be solved for. `aware` is the trial that learned
    from features, and `declared` the block `serving.new_items`. The figures are means over the folds, with `intervals`:

    - `recall` is the share of the new items chosen by a user that are on the user's page. It is a mean over the users
      who chose a new item.
    - `popularity_recall` is the recall of the baseline.
    - `share` is the mean share of new items on the pages of all sampled users.
    - `known_change` is the relative change of the ndcg of known items against pages without new items. −0.01 is a loss
      of 1%. In a fold where this ndcg is 0 without new items, the change is 0.
    """
    matrix = task.holdout.train
    once = sum(_work(trial, matrix) for trial in _trained_trials(result.best, aware))
    if is_too_much(once, sum(_work(trial, matrix) for trial in result.completed if not trial.parts)):
        return TOO_MUCH
    counts, measured = measure_folds(
        _held_columns(task),
        lambda number, held: _measure(_fold(task, result.best, aware, held, declared), task, number),
        nothing="no validation user chose one of the held-out items",
    )
    if not measured:
        return counts
    values = {name: np.array([figures[name] for figures in measured]) for name in MEASURES}
    return {
        **counts,
        "cutoff": task.loaded.recipe.training.cutoff,
        "max_share": declared.max_share,
        "min_share": declared.min_share,
        **{name: round(float(of_draws.mean()), DIGITS) for name, of_draws in values.items()},
        "intervals": intervals_of_draws(values),
    }


def _trained_trials(best: TrialRecord, aware: TrialRecord) -> tuple[TrialRecord, ...]:
    """Return the trials to train in each fold: the winner, and the feature-aware trial if the winner lacks it."""
    return (best,) if aware is best or aware in best.parts else (best, aware)


def _work(trial: TrialRecord, matrix: sparse.csr_matrix) -> float:
    """Return the approximate number of multiplications of one training.

    A dense solve needs about the cube of the number of items. Other item weights need one multiplication for each pair
    of items in a history. SVD, BPR and popularity are counted as if they needed these too.
    """
    if trial.parts:
        return sum(_work(part, matrix) for part in trial.parts)
    if trial.algorithm == FEATURE_AWARE:
        return training_work(trial, matrix)
    if ALGORITHMS[trial.algorithm].needs_dense_items:
        return float(matrix.shape[1]) ** 3
    return float((np.diff(matrix.indptr).astype(np.float64) ** 2).sum())


def _held_columns(task: Task) -> Iterator[Columns]:
    """Yield the items held out in each fold, as ascending columns of the training part of the split."""
    item_order = task.split.item_order
    column_of = np.empty(len(item_order), dtype=np.int64)
    # `draws` numbers items as the interactions do, so cold start and new items are measured on the same folds.
    column_of[item_order] = np.arange(len(item_order))
    for held in draws(len(item_order), task.loaded.recipe.training.split.seed, axis=1):
        yield np.sort(column_of[held])


def _fold(
    task: Task,
    best: TrialRecord,
    aware: TrialRecord,
    held: Columns,
    declared: serving_schema.NewItems,
) -> _Fold:
    holdout, recipe = task.holdout, task.loaded.recipe
    kept = np.setdiff1d(np.arange(holdout.train.shape[1]), held)
    features = {**holdout.features, "item": holdout.features["item"][kept]}
    times = None if holdout.times is None else holdout.times[:, kept]
    matrix = holdout.train[:, kept]

    def trained(trial: TrialRecord) -> Scorer:
        return train_trial(task.builder, trial, matrix, features, times)

    readings = best.readings(aware)
    (X, scale), *others = weighed = weigh(matrix, times, readings)  # noqa: N806
    positions = None
    if best.recency or aware.recency:
        assert holdout.order is not None, "a trial has a recency only where order plays a part"
        positions = holdout.order.positions[:, kept]
    scorer = trained(best)
    fold_in_users(best, scorer, weighed, positions, features=features.get("user"))
    cold = None
    if len(_trained_trials(best, aware)) > 1:
        placing = trained(aware)
        assert isinstance(placing, IALSScorer), "feature-aware is iALS alone"
        cold = ColdStartScorer.of(placing)
    # Ids that no known item of the fold has.
    new_ids = [f"new {column}" for column in range(len(held))]
    model = assemble(
        scorer,
        user_ids=[str(row) for row in range(matrix.shape[0])],
        item_ids=[f"known {column}" for column in range(len(kept))],
        X=X,
        features=task.data.feature_state,
        cold=cold,
        cold_recency=None if cold is None else aware.recency,
        hidden=None if holdout.hidden is None else holdout.hidden[:, kept],
        hidden_new=None if holdout.hidden is None else holdout.hidden[:, held],
        hidden_new_ids=new_ids,
        positions=positions,
        recency=best.recency,
        repeats=recipe.training.repeats,
        seen=None if holdout.seen_choices is None else holdout.seen_choices[:, kept],
        scale=scale,
        others=others,
        weighing_beside=0 if cold is None else readings.index(aware.of_history),
    )
    embedder = FeatureEmbedder.of(model.cold or model.scorer, model.history, model.cold_recency)
    assert embedder is not None, "the trial that learned from features is part of the model"
    vectors = embedder.place(encode_rows(holdout.features["item"][held]))
    new = NewItems(IdTable.from_ids(new_ids), vectors, model.n_items, declared.max_share, declared.min_share)
    return _Fold(model, kept, held, new)


def _measure(fold: _Fold, task: Task, number: int) -> Mapping[str, float] | None:
    """Return the MEASURES of one fold, as means over at most SAMPLE_USERS validation users.

    Return None if none of them chose a new item, or if none has a held-out known item.
    """
    holdout, training = task.holdout, task.loaded.recipe.training
    sample = holdout.evaluators.full.sample(SAMPLE_USERS, training.split.seed + number)
    validated = sample.evaluated_users
    rows = validated + sample.offset
    is_new = np.zeros(holdout.train.shape[1], dtype=bool)
    is_new[fold.held] = True
    heldout = sample.heldout[validated]
    of_known = choices_of(heldout, ~is_new)
    # Choices of the training part count too, because the model was trained without these items.
    of_new = choices_of(((holdout.train[rows] != 0) + (heldout != 0)).astype(np.float32), is_new)
    choosing = np.flatnonzero(np.diff(of_new.indptr))
    judged = np.flatnonzero(np.diff(of_known.indptr))
    if not len(choosing) or not len(judged):
        return None
    cutoff = min(training.cutoff, len(fold.kept))
    mixed = fold.pages(rows.tolist(), cutoff, with_new=True)
    known_alone = fold.pages(rows[judged].tolist(), cutoff, with_new=False)
    by_popularity = _by_popularity(fold, task, [int(is_new[page].sum()) for page in mixed])
    without = _mean("ndcg", known_alone, of_known[judged])
    with_new = _mean("ndcg", [mixed[row] for row in judged], of_known[judged])
    return {
        "recall": _mean("recall", [mixed[row] for row in choosing], of_new[choosing]),
        "known_change": with_new / without - 1.0 if without else 0.0,
        "share": float(np.mean([is_new[page].mean() if page else 0.0 for page in mixed])),
        "popularity_recall": _mean("recall", [by_popularity[row] for row in choosing], of_new[choosing]),
    }


def _mean(metric: str, pages: Pages, truth: sparse.csr_matrix) -> float:
    return float(user_scores(pages, truth)[metric].mean())


def _by_popularity(fold: _Fold, task: Task, n_new: Sequence[int]) -> Pages:
    """Return the new items of the baseline: for each user, as many of the most popular ones as `n_new` says.

    Equally popular items are in the order of the split's columns, which is random.
    """
    item_order, train = task.split.item_order, task.holdout.train[:, fold.kept]
    # Features stand in the order of the interactions, so columns of the split are translated.
    counts = popularity_of_unseen("item", train, task.data.sides["item"], item_order[fold.kept], item_order[fold.held])
    best_first = fold.held[np.argsort(-counts, kind="stable")].tolist()
    return [best_first[:count] for count in n_new]

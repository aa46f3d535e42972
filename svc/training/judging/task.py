"""The inputs of a training: its data, its split, and rankers of the users of the split."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from svc import events, logs
from svc.errors import CutoffTooLarge, ZeroScore
from svc.model.history import History
from svc.model.ids import IdTable
from svc.model.model import Model
from svc.model.recommenders.base import Scorer
from svc.model.recommenders.blend import BlendScorer
from svc.recipe.load import LoadedRecipe
from svc.training.data.features import SideName
from svc.training.data.fetch import TrainingData
from svc.training.data.split import Split, SplitPlan, order_items, smallest_working_ratio, split
from svc.training.data.weights import HALF_LIFE, decay_matrix, positions_of
from svc.training.fitting.algorithms.registry import Params
from svc.training.fitting.export import fold_in_users, recency_of_histories, to_history
from svc.training.fitting.train import Builder, Matrices, train_trial
from svc.training.fitting.trial import TrialRecord
from svc.training.judging.evaluator import Evaluator, Evaluators
from svc.training.judging.rankers import ServedRanker
from svc.training.judging.recency import HistoryOrder


@dataclass(frozen=True, slots=True, eq=False)
class Holdout:
    """The training part of the split, `train`, and the `evaluators` of its held-out items.

    `features` have rows in the order of `train`. `times` has the entries of `train` if a model depends on them.
    `hidden` has the items that users are not shown. With `repeats`, users may be recommended their items in `train`.
    """

    train: sparse.csr_matrix
    evaluators: Evaluators
    features: Matrices
    times: sparse.csr_matrix | None = None
    hidden: sparse.csr_matrix | None = None
    order: HistoryOrder | None = None
    repeats: bool = False

    @property
    def metric(self) -> str:
        return self.evaluators.metric

    @property
    def seen(self) -> sparse.csr_matrix:
        """Return the matrix of items that are not recommended to the users of `train`."""
        if self.repeats:
            return sparse.csr_matrix(self.train.shape, dtype=np.float32) if self.hidden is None else self.hidden
        return self.train if self.hidden is None else (self.train + self.hidden).tocsr()

    def decay_matrix(self, params: Params) -> sparse.csr_matrix:
        """Return `train` with the decay of the half-life in `params`."""
        return decay_matrix(self.train, self.times, params)

    def ranker_of(self, trained: Scorer, trial: TrialRecord, judged: Evaluator | None = None) -> ServedRanker:
        """Return a ranker of the users of `judged`, or of all validation users, as a server would rank.

        `trained` is the scorer of `trial`, and is not changed.
        """
        matrix, recency = self.decay_matrix(trial.params), recency_of_histories(trial)
        positions = None if recency == 0.0 or self.order is None else self.order.positions
        rows = np.arange(self.evaluators.full.offset, matrix.shape[0])
        if judged is not None:
            rows = judged.offset + judged.evaluated_users
        scorer = _copy(trained)
        scorer.ready()
        fold_in_users(trial, scorer, matrix, positions, features=self.features.get("user"), rows=rows)
        history = to_history(matrix, with_values=True, positions=positions, recency=recency)
        return self.serve_scorer(scorer, history)

    def serve_scorer(self, scorer: Scorer, history: History) -> ServedRanker:
        """Return a ranker that answers like a server with this `scorer` and these histories."""
        model = Model(
            user_ids=_numbers(len(history)),
            item_ids=_numbers(scorer.n_items),
            history=history,
            scorer=scorer,
            features=None,
            hidden=None if self.hidden is None else to_history(self.hidden, with_values=True),
            repeats=self.repeats,
        )
        model.ready()
        return ServedRanker.alike(model)


def _copy(scorer: Scorer) -> Scorer:
    """Return a copy that can solve for users without changing the users of `scorer`."""
    copied = copy.copy(scorer)
    if isinstance(copied, BlendScorer):
        copied.factors = copy.copy(copied.factors)
    return copied


@functools.lru_cache(maxsize=4)
def _numbers(count: int) -> IdTable:
    """Return ids for `count` users or items of a model that is only queried by row."""
    return IdTable.from_ids([str(number) for number in range(count)])


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Inputs of a training. `features` have the row order of the interactions, not of the split.

    `builder` makes the final model and may use all cores.
    """

    loaded: LoadedRecipe
    data: TrainingData
    split: Split
    builder: Builder
    holdout: Holdout

    def matrix(self, params: Params, *, all_users: bool = False) -> sparse.csr_matrix:
        """Return the interactions to train on, (users, items), with the decay of the half-life in `params`.

        If the recipe has a sample of users, these are the rows of the sample, unless `all_users` is set.
        """
        interactions = self.data.interactions if all_users else self.data.trained
        matrix = interactions.matrix()
        return decay_matrix(matrix, interactions.latest(), params) if HALF_LIFE in params else matrix

    def positions(self, *, all_users: bool = False) -> sparse.csr_matrix:
        """Return the positions of the entries of `matrix` in the order of each history."""
        return positions_of((self.data.interactions if all_users else self.data.trained).latest())

    def train_on_split(self, trial: TrialRecord, features: Matrices | None = None) -> Scorer:
        """Return the model of `trial`, trained on the training part of the split. Raise FeatureRidgeFailed.

        `features` replace those of the split, in the same order of rows.
        """
        inputs = self.holdout
        matrix = inputs.decay_matrix(trial.params)
        return train_trial(self.builder, trial, matrix, inputs.features if features is None else features, inputs.times)

    @property
    def features(self) -> dict[SideName, sparse.csr_matrix]:
        return {side: fitted.matrix for side, fitted in self.data.sides.items()}


def split_data(loaded: LoadedRecipe, data: TrainingData) -> Split:
    """Split the data. Raise CutoffTooLarge or ZeroScore if the split cannot be scored."""
    training = loaded.recipe.training
    n_items = len(data.interactions.item_ids)
    if training.cutoff > n_items:
        raise CutoffTooLarge(
            f"training.cutoff is {training.cutoff}, but the cleaned data has only {n_items} items: "
            f"lower it to {n_items} or less"
        )
    plan = split_plan(loaded)
    logs.emit(events.SPLITTING_DATA, scheme=plan.scheme)
    parts = split(data.trained, plan)
    logs.emit(events.SPLIT_DONE, val_offset=parts.val_offset, n_heldout_interactions=parts.n_heldout)
    if not parts.n_heldout:
        raise ZeroScore(f"no interaction is held out, so every score would be 0. {_remedy(loaded, data)}")
    return order_items(parts, plan.seed)


def split_plan(loaded: LoadedRecipe) -> SplitPlan:
    chosen = loaded.recipe.training.split
    return SplitPlan(
        chosen.scheme,
        chosen.heldout_ratio,
        chosen.test_user_ratio,
        chosen.seed,
        chosen.test,
        keep_times=loaded.recipe.trains_on_times,
        repeats=loaded.recipe.training.repeats,
    )


def check_scores(loaded: LoadedRecipe, data: TrainingData, best_score: float) -> None:
    """Raise ZeroScore if no trial ranked a single held-out item."""
    if best_score <= 0.0:
        raise ZeroScore(f"every trial scored 0. {_remedy(loaded, data)}")


def _remedy(loaded: LoadedRecipe, data: TrainingData) -> str:
    plan = split_plan(loaded)
    if plan.scheme == "leave_one_out":
        return "Use deeper histories (leave_one_out needs users with two items), or lower training.cutoff."
    ratio, current = smallest_working_ratio(data.trained, plan), plan.heldout_ratio
    if ratio is None:
        raise_ratio = "No split.heldout_ratio works with these histories: deepen them"
    elif ratio > current:
        raise_ratio = (
            f"Raise split.heldout_ratio (it is {current:g}; {ratio!r} is the smallest that holds out anything)"
        )
    else:
        raise_ratio = f"Raise split.heldout_ratio above {current:g} ({ratio!r} is the smallest that holds out anything)"
    if ratio is not None:
        raise_ratio += ", set split.scheme: leave_one_out (it holds out the latest item of each user with two or more)"
    return f"{raise_ratio}, use deeper histories, raise split.test_user_ratio, or lower training.cutoff."

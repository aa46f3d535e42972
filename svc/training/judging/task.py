"""The inputs of a training: its data, their split, and how to rank for the users of the split."""

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
from svc.training.data.doubts import Doubt
from svc.training.data.features import SideName
from svc.training.data.fetch import TrainingData
from svc.training.data.judged_users import better_split, judge_enough, split_line
from svc.training.data.split import SplitMatrices, order_items, sparing_ratio, split
from svc.training.data.weights import HALF_LIFE, decay_matrix, positions_of
from svc.training.fitting.algorithms.registry import Params
from svc.training.fitting.export import fold_in_users, to_histories, to_history, weigh
from svc.training.fitting.train import Builder, Matrices, train_trial
from svc.training.fitting.trial import TrialRecord
from svc.training.judging.evaluator import Evaluator, Evaluators
from svc.training.judging.rankers import ServedRanker
from svc.training.judging.recency import HistoryOrder


@dataclass(frozen=True, slots=True, eq=False)
class Holdout:
    """The split of a search: the interactions to train on, and the evaluators by held-out items.

    - `train`, (users, items), is the training part of the split. Rows and columns are those of the split.
    - `features` are the encoded features of users and items, in the order of the rows and columns of `train`.
    - `times` has the time of each entry of `train`, or is None if no model depends on times.
    - `hidden`, (users, items), has the items that users are never shown, or is None if there are none.
    - `order` is the order of the histories, or None to ignore it.
    - `repeats` is True if users are recommended seen items again.
    - `seen_choices`, (users, items), has the pairs of `train` that hide their item from their user. None: all do.
    """

    train: sparse.csr_matrix
    evaluators: Evaluators
    features: Matrices
    times: sparse.csr_matrix | None = None
    hidden: sparse.csr_matrix | None = None
    order: HistoryOrder | None = None
    repeats: bool = False
    seen_choices: sparse.csr_matrix | None = None

    @property
    def metric(self) -> str:
        return self.evaluators.metric

    @property
    def seen(self) -> sparse.csr_matrix:
        """Return a matrix, (users, items), of items that are not recommended to a user: hidden and seen items.

        With `repeats`, these are only the hidden items.
        """
        if self.repeats:
            return sparse.csr_matrix(self.train.shape, dtype=np.float32) if self.hidden is None else self.hidden
        seen = self.train if self.seen_choices is None else self.seen_choices
        return seen if self.hidden is None else (seen + self.hidden).tocsr()

    def decay_matrix(self, params: Params) -> sparse.csr_matrix:
        """Return `train` with the weights of the scale and the half-life in `params`, or unchanged without both."""
        return decay_matrix(self.train, self.times, params)

    def ranker_of(
        self, trained: Scorer, trial: TrialRecord, judged: Evaluator | None = None, *, ordered: bool = False
    ) -> ServedRanker:
        """Return a ranker that ranks like a server, for the users of `judged` or for all validation users.

        `trained` is the trained scorer of `trial`. It is copied, because its user vectors are solved for again.
        Histories keep the order of `times` if they are `ordered` or the trial has a recency.
        """
        weighed, recency = weigh(self.train, self.times, trial.readings()), trial.recency
        positions = None if recency == 0.0 or self.order is None else self.order.positions
        if ordered and self.times is not None:
            positions = positions_of(self.times)
        # Users before the offset are no validation users, and nobody asks for their rankings.
        rows = np.arange(self.evaluators.full.offset, self.train.shape[0])
        if judged is not None:
            rows = judged.offset + judged.evaluated_users
        scorer = _copy(trained)
        scorer.ready()
        fold_in_users(trial, scorer, weighed, positions, features=self.features.get("user"), rows=rows)
        history = to_histories(weighed, positions=positions, recency=recency, seen=self.seen_choices)
        return self.serve_scorer(scorer, history)

    def serve_scorer(self, scorer: Scorer, history: History) -> ServedRanker:
        """Return a ranker that ranks like a server, by `scorer` and the histories in `history`."""
        model = Model(
            user_ids=_numbers(len(history)),
            item_ids=_numbers(scorer.n_items),
            history=history,
            scorer=scorer,
            features=None,
            hidden=None if self.hidden is None else to_history(self.hidden),
            repeats=self.repeats,
        )
        model.ready()
        return ServedRanker.alike(model)


def _copy(scorer: Scorer) -> Scorer:
    """Return a copy of `scorer`, whose user vectors can be set without changing those of `scorer`."""
    copied = copy.copy(scorer)
    if isinstance(copied, BlendScorer):
        # A shallow copy of a blend would share the factor model whose vectors are set.
        copied.factors = copy.copy(copied.factors)
    return copied


# A model is made after each epoch, and the ids of 16,554 users take 12 ms.
@functools.lru_cache(maxsize=4)
def _numbers(count: int) -> IdTable:
    """Return the ids "0", "1", ... for a model whose users and items are identified by row and column only."""
    return IdTable.from_ids([str(number) for number in range(count)])


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Inputs of a training.

    `builder` builds the final model and every other model outside the trials of a search, and may use all cores. The
    property `features` has rows in the order of the interactions, while the rows of `holdout.features` are in the order
    of the split.
    """

    loaded: LoadedRecipe
    data: TrainingData
    split: SplitMatrices
    builder: Builder
    holdout: Holdout

    def matrix(self, params: Params, *, all_users: bool = False) -> sparse.csr_matrix:
        """Return the interactions to train on, (users, items), with the scale and the half-life in `params`.

        If the recipe asks for a sample of users, the rows are only the sampled users, unless `all_users` is set.
        """
        interactions = self.data.interactions if all_users else self.data.trained
        return decay_matrix(interactions.matrix(), interactions.latest() if HALF_LIFE in params else None, params)

    def positions(self, *, all_users: bool = False) -> sparse.csr_matrix:
        """Return the position of each entry of `matrix` in its user's history, 0 for the latest item."""
        return positions_of((self.data.interactions if all_users else self.data.trained).latest())

    def train_on_split(self, trial: TrialRecord, features: Matrices | None = None) -> Scorer:
        """Return the scorer of `trial`, trained on the training part of the split.

        `features` replace those of the split, with rows in the same order. Raise FeatureRidgeFailed if the feature
        weights cannot be solved for.
        """
        inputs = self.holdout
        own = inputs.features if features is None else features
        return train_trial(self.builder, trial, inputs.train, own, inputs.times)

    @property
    def features(self) -> dict[SideName, sparse.csr_matrix]:
        return {side: fitted.matrix for side, fitted in self.data.sides.items()}


def split_data(loaded: LoadedRecipe, data: TrainingData) -> tuple[LoadedRecipe, SplitMatrices]:
    """Split the data as the recipe says, and log it. Return the split, and the recipe with its plan.

    Raise the errors of `plan_split`.
    """
    logs.emit(events.SPLITTING_DATA, scheme=loaded.recipe.training.split.scheme)
    loaded, parts, doubt = plan_split(loaded, data)
    if doubt is not None:
        logs.emit(events.RECIPE_WARNING, **doubt._asdict())
    logs.emit(events.SPLIT_DONE, val_offset=parts.val_offset, n_heldout_interactions=parts.n_heldout)
    return loaded, order_items(parts, loaded.recipe.training.split.seed)


def plan_split(loaded: LoadedRecipe, data: TrainingData) -> tuple[LoadedRecipe, SplitMatrices, Doubt | None]:
    """Return the recipe with its plan of the split, the split, and a warning if it judges few users.

    If the recipe has no `split` and the default judges few users, the plan is one that judges most users (see
    `judge_enough`). Raise CutoffTooLarge if there are fewer items than `training.cutoff`, and ZeroScore if nothing is
    held out.
    """
    training = loaded.recipe.training
    n_items = len(data.interactions.item_ids)
    if training.cutoff > n_items:
        raise CutoffTooLarge(
            f"training.cutoff is {training.cutoff}, but the cleaned data has only {n_items} items: "
            f"lower it to {n_items} or less"
        )
    parts = _split(loaded, data)
    loaded, doubt = judge_enough(loaded, data.trained, parts.heldout.shape[0])
    if loaded.recipe.training is not training:
        parts = _split(loaded, data)
    if not parts.n_heldout:
        raise ZeroScore(f"no interaction is held out, so every score would be 0. {_remedy(loaded, data)}")
    return loaded, parts, doubt


def _split(loaded: LoadedRecipe, data: TrainingData) -> SplitMatrices:
    training, keep_times = loaded.recipe.training, loaded.recipe.trains_on_times
    return split(data.trained, training.split, keep_times=keep_times, repeats=training.repeats)


def check_scores(loaded: LoadedRecipe, data: TrainingData, best_score: float) -> None:
    """Raise ZeroScore if the best score is 0, because no trial has recommended any held-out item."""
    if best_score <= 0.0:
        raise ZeroScore(f"every trial scored 0. {_remedy(loaded, data)}")


def _remedy(loaded: LoadedRecipe, data: TrainingData) -> str:
    """Return how to hold out items of more users, or that no split can, and else to raise the cutoff."""
    plan, interactions = loaded.recipe.training.split, data.trained
    better, n_better = better_split(loaded, interactions)
    if not n_better:
        return "No user has two items, one to learn from and one to hold out: is user_column the id of an order?"
    if plan.model_copy(update={"test_user_ratio": better.test_user_ratio}) == better:
        return f"{n_better} users are judged, which is all: deepen their histories, or raise training.cutoff."
    by_ratio = ""
    if plan.scheme == "time_user":
        ratio = sparing_ratio(interactions, repeats=loaded.recipe.training.repeats)
        by_ratio = f", or raise split.heldout_ratio to {ratio:g} (an item of each user with two or more)"
    return (
        f"Write {split_line(plan, better)}, which judges {n_better} users{by_ratio}, use deeper histories, or raise "
        "training.cutoff."
    )

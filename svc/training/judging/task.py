"""The inputs of a training: its data, and the split into a training part and held-out interactions."""

from __future__ import annotations

from dataclasses import dataclass

from scipy import sparse

from svc import events, logs
from svc.errors import CutoffTooLarge, ZeroScore
from svc.recipe.load import LoadedRecipe
from svc.training.data.decay import HALF_LIFE, decay_matrix
from svc.training.data.features import SideName
from svc.training.data.fetch import TrainingData
from svc.training.data.recency import positions_of
from svc.training.data.split import Split, SplitPlan, order_items, smallest_working_ratio, split
from svc.training.fitting.algorithms.registry import Params
from svc.training.fitting.train import Builder
from svc.training.judging.holdout import Holdout


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

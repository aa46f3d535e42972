"""Choose a split that judges enough users, if the recipe leaves the split to svc, and warn of one that judges few.

With 4 of 9,531 users judged, chance chooses the model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from svc.recipe.load import LoadedRecipe
from svc.recipe.training_schema import Split
from svc.training.data.doubts import Doubt
from svc.training.data.interactions import Interactions
from svc.training.data.split import count_judged, judging_most

ENOUGH_USERS: Final = 100
ENOUGH_SHARE: Final = 0.05


def judge_enough(loaded: LoadedRecipe, interactions: Interactions, n_judged: int) -> tuple[LoadedRecipe, Doubt | None]:
    """Return the recipe with the split to use, and a warning if the split of the recipe judges few users.

    `n_judged` is the number of users with held-out items under the split of the recipe. Few are fewer than
    ENOUGH_USERS, or than ENOUGH_SHARE of all. If the recipe has a `split` of its own, it is kept. The warning has the
    lines of a split that judges more users. Without such a split there is no warning.
    """
    training, n_users = loaded.recipe.training, len(interactions.user_ids)
    plan = training.split
    if n_judged >= max(ENOUGH_USERS, ENOUGH_SHARE * n_users):
        return loaded, None
    # Only now, because another split costs sorting all rows.
    better, n_better = better_split(loaded, interactions)
    if n_better <= n_judged:
        return loaded, None
    line = split_line(plan, better)
    fault = f"under split.scheme {plan.scheme}, only {n_judged} of {n_users} users have items to hold out"
    if loaded.has_split:
        message = f"{fault}, and they alone choose the model; {line} judges {n_better}"
        return loaded, Doubt("few_judged_users", "training.split", message)
    message = f"{fault}, so this training judges {n_better} by {line}; write a split of your own to change this"
    recipe = loaded.recipe.model_copy(update={"training": training.model_copy(update={"split": better})})
    return replace(loaded, recipe=recipe), Doubt("few_judged_users", "training.split", message)


def better_split(loaded: LoadedRecipe, interactions: Interactions) -> tuple[Split, int]:
    """Return the split that judges most users, and their number."""
    training = loaded.recipe.training
    better = judging_most(interactions, training.split, repeats=training.repeats)
    return better, count_judged(interactions, better, repeats=training.repeats)


def split_line(plan: Split, better: Split) -> str:
    """Return the line of a recipe for the split `better`: its scheme, and what else differs from `plan`."""
    changed = [name for name in ("heldout_ratio", "test_user_ratio") if getattr(better, name) != getattr(plan, name)]
    more = "".join(f", {name}: {getattr(better, name):g}" for name in changed)
    return f"`training.split: {{scheme: {better.scheme}{more}}}`"

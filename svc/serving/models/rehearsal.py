"""The checks of a loaded model before it goes live: its answers can be encoded, and it knows the live model's users."""

from __future__ import annotations

from svc.errors import RehearsalFailed
from svc.model.model import Model
from svc.model.ranking.query import Ranking
from svc.model.rehearsal import rehearse, require_known_users
from svc.recipe.load import LoadedRecipe
from svc.serving.models.fragments import ItemFragments


def rehearse_answers(recipe: LoadedRecipe, model: Model, fragments: ItemFragments, live: Model | None) -> None:
    """Return when `model` may take the place of `live`, which is None for a recipe without a model.

    Blocks and computes: for a worker thread. Raises RehearsalFailed.
    """
    serving = recipe.recipe.serving
    rehearsal = None if serving is None else serving.rehearsal
    if live is not None and rehearsal is not None:
        require_known_users(model.user_ids, live.user_ids, rehearsal.min_known_users)
    for ranking in rehearse(model):
        _encode(fragments, ranking)


def _encode(fragments: ItemFragments, ranking: Ranking) -> None:
    try:
        fragments.items(ranking, with_metadata=True)
    except MemoryError:
        raise
    except Exception as error:
        raise RehearsalFailed(f"rehearsal: no answer can be written: {type(error).__name__}: {error!s:.100}") from error

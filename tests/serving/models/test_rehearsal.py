"""What a loaded model must do before it goes live."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from svc.errors import RehearsalFailed
from svc.recipe.load import LoadedRecipe
from svc.recipe.serving_schema import Serving
from svc.serving.models.fragments import ItemFragments
from svc.serving.models.rehearsal import rehearse_answers
from tests.families import EVERY_FAMILY, family
from tests.serving.artifacts import ids, popularity_model


def recipe(serving: dict[str, Any] | None = None) -> LoadedRecipe:
    block = None if serving is None else Serving.model_validate(serving)
    return cast(LoadedRecipe, SimpleNamespace(recipe=SimpleNamespace(serving=block)))


@pytest.mark.parametrize("name", EVERY_FAMILY)
def test_a_sound_model_passes(name: str) -> None:
    """Of every family, without a model before it."""
    model = family(name)
    rehearse_answers(recipe(), model, ItemFragments.build(model.item_ids, None), None)


def test_an_answer_must_become_bytes() -> None:
    """Pieces of too few items, as of another model, are found before anybody asks."""
    model = family("SVD")
    with pytest.raises(RehearsalFailed, match="no answer can be written"):
        rehearse_answers(recipe(), model, ItemFragments.build(ids("i", 1), None), None)


def test_the_users_of_the_live_model_must_be_known_where_the_recipe_asks() -> None:
    """A model whose ids were read another way ranks well and knows nobody."""
    live, fresh = popularity_model(n_users=8), popularity_model(n_users=4)
    fragments = ItemFragments.build(fresh.item_ids, None)
    for model in (live, fresh):
        model.ready()
    rehearse_answers(recipe(), fresh, fragments, live)
    rehearse_answers(recipe({"rehearsal": {"min_known_users": 0.5}}), fresh, fragments, live)
    strict = recipe({"rehearsal": {"min_known_users": 0.75}})
    with pytest.raises(RehearsalFailed, match="4 of the live model's 8 users"):
        rehearse_answers(strict, fresh, fragments, live)
    rehearse_answers(strict, fresh, fragments, None)

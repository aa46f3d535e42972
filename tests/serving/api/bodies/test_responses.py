"""Answers joined from prebuilt bytes agree with the documented models."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from svc.serving.api.bodies import responses
from tests.serving.client import BATCH, RECOMMEND, RELATED, serving

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("path", "body", "model"),
    [
        (RECOMMEND, {"user_id": "u3", "explain": 2}, responses.Recommendations),
        (RECOMMEND, {"user_id": "nobody", "fallback": "popular"}, responses.Recommendations),
        (RELATED, {"seed_items": ["i1", "no"], "pins": [{"item_id": "i9", "position": 0}]}, responses.Recommendations),
        (BATCH, {"requests": [{"user_id": "u1"}, {"user_id": "nobody"}, 7]}, responses.BatchAnswer),
        (RECOMMEND, {"user_id": 3}, responses.Error),
        ("/v1/health", None, responses.Health),
        ("/v1/health/details", None, responses.HealthDetails),
        ("/v1/recipes", None, responses.RecipeList),
        ("/v1/recipes/movies", None, responses.Recipe),
        ("/v1/recipes/movies/items?q=title", None, responses.FoundItems),
        ("/v1/recipes/movies/popular", None, responses.PopularItems),
        ("/v1/recipes/movies/somebody", None, responses.Somebody),
        ("/v1/health/live", None, responses.Status),
    ],
)
async def test_an_answer_agrees_with_its_model(path: str, body: Any, model: type[BaseModel]) -> None:
    """An answer has exactly the keys of its model, and passes a validation as strict as that of requests."""
    path, _, query = path.partition("?")
    async with serving() as (client, _):
        answer = await (client.get(path, query=query) if body is None else client.post(path, body))
    model.model_validate_json(answer.body, strict=True)
    assert model.model_validate_json(answer.body).model_dump(exclude_unset=True) == answer.json

"""Unseen items that a request describes by texts and vectors."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
import pytest

from svc.model.columns.text_column import Analyzer, TextColumn
from svc.model.columns.vector_column import VectorColumn
from svc.model.features import FEATURE_VERSION, FeatureState, SideEncoder
from svc.model.ids import IdTable
from tests.serving.client import RECOMMEND, Client, serving

pytestmark = pytest.mark.anyio
RELATED = RECOMMEND.replace(":recommend", ":recommend-related")


def describe(state: Any, analyzer: Analyzer = "word") -> None:
    """Give the model of `movies` a text column of two words and a vector column of one number."""
    words = IdTable.from_ids(["old", "sea"])
    counts = np.array([3, 2], dtype=np.int32)
    title = TextColumn("title", words, counts, n_items=9, max_words=8192, analyzer=analyzer)
    encoder = SideEncoder((title, VectorColumn("embedding", dimensions=1, delimiter="|", length=2.0)))
    model = state.registry.get("movies").served.model
    model.features = FeatureState(FEATURE_VERSION, encoder, encoder)
    model.ready()


async def related(client: Client, features: object, **more: Any) -> Any:
    return await client.post(RELATED, {"item_features": features, "limit": 5, **more})


async def test_an_unseen_item_is_ranked_by_its_words_and_its_vector() -> None:
    """Order and case of words do not matter, and unknown words are counted. A vector is a list or a text."""
    async with serving() as (client, state):
        describe(state)
        answer = await related(client, {"title": "The OLD man and the sea", "embedding": [0.5]})
        same = await related(client, {"title": "sea, old", "embedding": "0.5"})
        other = await related(client, {"title": "sea", "embedding": "0.5"}, explain=3)
    assert answer.json["ignored_features"] == ["title: 3 words"]
    assert json.dumps(answer.json["items"]) == json.dumps(same.json["items"]) != json.dumps(other.json["items"])
    assert "title=sea" in {reason.get("feature") for reason in other.json["items"][0]["because"]}


async def test_recipe_descriptions_have_the_sizes_of_texts_and_vectors() -> None:
    """The description has the number of words and of dimensions, as in the OpenAPI document."""
    async with serving() as (client, state):
        describe(state)
        columns = (await client.get("/v1/recipes/movies")).json["feature_columns"]
    assert columns["item"] == [
        {"name": "title", "kind": "text", "n_words": 2},
        {"name": "embedding", "kind": "vector", "dimensions": 1, "delimiter": "|"},
    ]


@pytest.mark.parametrize(
    ("features", "status", "code"),
    [
        ({"embedding": [1, 2]}, 422, "FEATURE_VECTOR_UNUSABLE"),
        ({"embedding": "nan"}, 422, "FEATURE_VECTOR_UNUSABLE"),
        ({"embedding": "one"}, 422, "FEATURE_VECTOR_UNUSABLE"),
        ({"title": ["old", "sea"]}, 400, "FEATURE_VALUE_UNUSABLE"),
        ({"title": "sea " * 3_000}, 422, "VALIDATION_ERROR"),
    ],
)
async def test_an_invalid_text_or_vector_is_refused(features: dict[str, Any], status: int, code: str) -> None:
    """The error names the column, but not the value."""
    async with serving() as (client, state):
        describe(state)
        answer = await related(client, features)
    assert (answer.status, answer.json["code"]) == (status, code)
    assert next(iter(features)) in answer.json["detail"]
    assert len(answer.body) < 1000


async def test_long_texts_are_split_into_characters_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splitting a long text takes milliseconds. A short text needs no thread."""
    threads = []
    read = TextColumn.read

    def noting(self: TextColumn, value: object) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return read(self, value)

    monkeypatch.setattr(TextColumn, "read", noting)
    async with serving() as (client, state):
        describe(state, "char")
        assert (await related(client, {"title": "old sea"})).status == 200
        assert (await related(client, {"title": "old sea " * 100})).status == 200
    assert threads == [True, False]


async def test_a_text_of_a_megabyte_is_refused() -> None:
    """The error says that no valid request has so long a text."""
    async with serving() as (client, state):
        describe(state)
        answer = await related(client, {"title": "sea " * 250_000})
    assert (answer.status, answer.json["code"]) == (422, "VALIDATION_ERROR")
    assert "longer text than any valid request has" in answer.json["detail"]


@pytest.mark.parametrize("title", ["人民的名义", "🦆🦆🦆", "<b>sea</b>", "\u202e\u0000", "ѕеа", "x" * 8000, ""])
async def test_any_short_text_is_answered(title: str) -> None:
    """Other scripts, emoji, markup and an empty text get status 200."""
    async with serving() as (client, state):
        describe(state)
        answer = await related(client, {"title": title})
    assert answer.status == 200

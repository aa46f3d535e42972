"""The order of `history` in requests, for models that weigh by order and for others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import trio

from svc.metrics import Metrics
from svc.model.history import History
from svc.model.model import Model
from svc.model.ranking.query import Interaction, Query
from svc.model.recommenders.factors import ColdStartScorer, IALSScorer
from svc.serving.api.application import Application
from svc.serving.api.authentication import Authenticator
from svc.serving.api.request import ServerState
from svc.serving.models.registry import Registry
from svc.settings import Settings
from tests import planned
from tests.families import family
from tests.serving.client import Client, put

pytestmark = pytest.mark.anyio

RECENCY = 0.5
FROM_HISTORIES = ("IALS", "SVD", "neighbours", "dense_weights", "blend")
"""The families whose scores follow from a history."""


def in_order(name: str) -> Model:
    """Return a model of this family that weighs histories by recency, oldest item first."""
    model = family(name)
    known = model.history
    model.history = History(known.offsets, known.columns, known.weights, recency=RECENCY)
    model.ready()
    if model.kind == "blend":
        model.scorer.measure(model.history)  # type: ignore[attr-defined]
    return model


@asynccontextmanager
async def serving(model: Model) -> AsyncIterator[Client]:
    """Return the application with the one recipe `r`."""
    state = ServerState(Registry(), Settings(), Metrics.disabled(), Authenticator({}))
    async with trio.open_nursery() as nursery:
        await put(nursery, state, "r", model)
        yield Client(Application(state))
        nursery.cancel_scope.cancel()


async def shown(client: Client, **body: Any) -> list[tuple[str, float]]:
    answer = await client.post("/v1/recipes/r:recommend", {"limit": 6, **body})
    assert answer.status == 200, answer.body
    return [(item["item_id"], item["score"]) for item in answer.json["items"]]


@pytest.mark.parametrize("name", FROM_HISTORIES)
async def test_the_last_item_counts_most(name: str) -> None:
    """A repeated item counts at its last position. Batches and explained requests give the same result."""
    model = in_order(name)
    items = model.item_ids.all()
    first, second, third = items[3], items[9], items[17]
    async with serving(model) as client:
        for who in ({}, {"user_id": model.user_ids.at(4)}):
            forward = await shown(client, history=[first, second, third], **who)
            assert forward != await shown(client, history=[third, second, first], **who)
            again = [third, first, {"item_id": second, "weight": 0.5}, {"item_id": second, "weight": 0.5}, third]
            twice = [{"item_id": first}, second, {"item_id": third, "weight": 2.0}]
            assert await shown(client, history=again, **who) == await shown(client, history=twice, **who)
            bodies = [{"limit": 6, "history": history, **who} for history in (again, twice, [first, second, third])]
            batch = await client.post("/v1/recipes/r:batch-recommend", {"requests": bodies})
            found = [[(item["item_id"], item["score"]) for item in one["items"]] for one in batch.json["results"]]
            assert found[0] == found[1]
            assert found[2] == forward
            assert await shown(client, history=[first, "nothing", second, third], **who) == forward


@pytest.mark.parametrize("name", FROM_HISTORIES)
async def test_without_recency_the_order_has_no_effect(name: str) -> None:
    """Models without recency answer the same bytes for every order."""
    model = family(name)
    model.ready()
    items = model.item_ids.all()
    async with serving(model) as client:
        body = {"limit": 6, "history": [items[3], items[9], items[17]]}
        forward = await client.post("/v1/recipes/r:recommend", body)
        backward = await client.post("/v1/recipes/r:recommend", {**body, "history": body["history"][::-1]})
        assert forward.body.partition(b'"items"')[2] == backward.body.partition(b'"items"')[2]


async def test_seen_items_are_returned_by_a_model_trained_with_repeats() -> None:
    """A model trained with repeats returns seen items by default.

    `include_seen` overrides it, in single requests and batches.
    """
    for repeats in (False, True):
        model = family("dense_weights")
        model.repeats = repeats
        model.ready()
        user, seen = model.user_ids.at(4), {model.item_ids.at(column) for column in model.history.items(4).tolist()}
        asked = [{}, {"include_seen": None}, {"include_seen": True}, {"include_seen": False}]
        bodies = [{"limit": model.n_items, "user_id": user, **one} for one in asked]
        async with serving(model) as client:
            batch = await client.post("/v1/recipes/r:batch-recommend", {"requests": bodies})
            for body, result in zip(bodies, batch.json["results"], strict=True):
                answer = await client.post("/v1/recipes/r:recommend", body)
                assert answer.json["items"] == result["items"]
                wanted = repeats if body.get("include_seen") is None else body["include_seen"]
                assert ({item["item_id"] for item in result["items"]} & seen) == (seen if wanted else set())


@pytest.mark.parametrize("name", ["neighbours", "IALS", "blend"])
async def test_the_application_gives_the_scores_of_the_model(name: str) -> None:
    """The scores of the answer and of the model are equal to the last digit."""
    model = in_order(name)
    items = model.item_ids.all()
    history = [items[3], items[9], items[17]]
    prepared = planned.recommend(
        model,
        user_id=model.user_ids.at(4),
        user_features=None,
        limit=6,
        history=[Interaction(item) for item in history],
    )
    (ranking,) = model.rank([prepared.query])
    async with serving(model) as client:
        found = await shown(client, history=history, user_id=model.user_ids.at(4))
    np.testing.assert_array_equal([score for _, score in found], ranking.scores)
    assert [item for item, _ in found] == [items[column] for column in ranking.items.tolist()]


async def test_the_cold_start_model_beside_a_blend_has_its_own_recency() -> None:
    """The cold-start model answers a history alone. The blend answers a history of a known user."""
    model, other = in_order("blend"), family("IALS").scorer
    assert isinstance(other, IALSScorer)
    model.history.recency_beside = True
    model.cold, model.cold_recency = ColdStartScorer.of(other), 0.7
    model.ready()
    items = model.item_ids.all()
    columns = np.array([model.item_ids.index(item) for item in (items[3], items[9])], dtype=np.int32)
    query = Query(limit=6, seeds=columns, seed_weights=np.exp([-0.7, 0.0]))
    (expected,) = model.cold.rank([query], model.history)
    async with serving(model) as client:
        body = {"history": [items[3], items[9]]}
        alone = await shown(client, **body)
        behind = await shown(client, **body, user_id=model.user_ids.at(4))
    assert alone == [
        (items[column], score) for column, score in zip(expected.items.tolist(), expected.scores, strict=True)
    ]
    assert alone != behind

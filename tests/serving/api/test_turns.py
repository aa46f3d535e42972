"""No request and no error blocks the event loop, for any number of items and labels."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
import trio

from svc.asking.policy import Policy
from svc.model.features import SideEncoder, TokenColumn
from svc.model.ids import IdTable
from svc.model.load_model import rehearse
from svc.model.ranking.filter_fields import FilterFields, LabelField, NumberField
from svc.serving.api.endpoints import ENDPOINTS
from svc.serving.api.pages import openapi
from tests.serving import client as served_models
from tests.serving.client import BATCH, BATCH_RELATED, RECOMMEND, RELATED, serve, served_in, serving
from tests.serving.sent import Sent
from tests.serving.transport.test_floods import measured

pytestmark = [pytest.mark.anyio, pytest.mark.system]
MANY = 100_000
LONGEST_TURN_S = 0.005
"""Bound of a turn. It is processor time of the loop, which other work of the machine hardly affects."""
ROUNDS = 6
"""Most servers that get the same questions until no turn is long. Other work of the machine slows some turns."""
RECIPE = "/v1/recipes/movies"
NO_LABEL = {"genres": {"any": ["label 7x"]}}
EMPTY = {"year": {"gt": 10 * MANY}}
FALLBACK = {"user_id": "nobody", "fallback": "popular"}
SINGLES: list[dict[str, Any]] = [
    {"user_id": "u3", "limit": 1000},
    {"user_id": "u3", "filter": {"genres": {"any": ["label 7"]}}},
    {"user_id": "u3", "filter": NO_LABEL},
    {"user_id": "u3", "filter": EMPTY},
    {"user_id": "u3", "filter": {"genre": {"any": ["label 7"]}}},
    {"user_id": "u3", "filter": {"not": {"genres": {"any": [f"label {label}" for label in range(1000)]}}}},
    {"user_id": "u3", "limits": {"genres": 1}, "limit": 100},
    {"user_id": "u3", "boosts": [{"filter": {"genres": {"any": ["label 9"]}}, "factor": 5}]},
    {"user_id": "u3", "diversity": 0.5, "limit": 100},
    {"user_id": "u3", "exclude_items": [f"i{item}" for item in range(1000)]},
    {"user_id": "u3", "include_items": ["unknown"]},
    {"user_id": "u3", "history": [f"i{item}" for item in range(50)], "explain": 10},
    {"user_id": "u3", "shown": [f"i{item}" for item in range(400)], "seed": "today"},
    {"user_features": {"tag": [f"label {label}" for label in range(250)]}},
    {"user_features": {"tag": [f"lobel {label}" for label in range(250)]}},
    {"user_id": "u3", "history": [{}] * 1000},
    {"user_id": "u3", "boosts": [{"filtr": 1, "factr": 2, "fild": 3}] * 16},
    {f"exclude_items{number}": 1 for number in range(180)},
    {"user_id": "nobody"},
    FALLBACK,
    FALLBACK | {"filter": NO_LABEL},
    {},
]
STRANGERS = "&".join(f"user_ids{number}=u3" for number in range(500))
QUERIES = {
    "/v1/recipes/{name}/items": ["q=title%20999&limit=20", "q=no%20such%20title", "limit=x"],
    "/v1/recipes/{name}/popular": ["", *(f"filter={quote(json.dumps(tree))}" for tree in (NO_LABEL, EMPTY))],
    "/v1/recipes/{name}/somebody": ["user_id=?", STRANGERS],
}
BODIES: dict[str, list[Any]] = {
    RECOMMEND: SINGLES,
    RELATED: [
        {"seed_items": ["i5"], "limit": 1000},
        {"seed_items": ["i5"], "filter": NO_LABEL},
        {"seed_items": ["?"]},
        {"item_features": {f"n{item}": {"tag": f"label {item}"} for item in range(100)}},
    ],
    BATCH: [
        {"requests": SINGLES},
        {"requests": [{"user_id": "u3", "filter": NO_LABEL}] * 50},
        {"requests": [{"user_id": "u3", "limit": 1000}] * 256, "include_metadata": True},
        {"requests": []},
    ],
    BATCH_RELATED: [{"requests": [{"seed_items": ["i5"], "filter": NO_LABEL}, {"seed_items": ["?"]}]}],
    f"{RECIPE}:recommend-users": [{"item_id": "i5", "limit": 1000}, {"item_id": "?"}],
    f"{RECIPE}:page": [
        {
            "user_id": "u3",
            "filter": NO_LABEL,
            "rows": [{"id": str(row), "popular": {"limit": 100}} for row in range(16)],
        },
        {"user_id": "u3", "rows": [{"id": "labels", "label": {"field": "genres", "rows": 16}}]},
        {"user_id": "u3", "rows": [{"id": "mine", "recommend": {"limit": 100}}]},
        {"rows": []},
    ],
    f"{RECIPE}:rerank": [{"user_id": "u3", "items": [f"i{item}" for item in range(1000)]}, {"items": []}],
}


def many_fields() -> FilterFields:
    """Return a field with a label of its own for each item, and a field of numbers."""
    pairs = np.column_stack([np.arange(MANY), np.arange(MANY)]).astype(np.int32)
    genres = LabelField("categorical", MANY, pairs, IdTable.from_ids([f"label {label}" for label in range(MANY)]))
    return FilterFields({"genres": genres, "year": NumberField(np.arange(MANY, dtype=np.float64))}, MANY)


@pytest.fixture
def anyio_backend() -> str:
    """Use the clock of the machine, because the test measures turns."""
    return "trio"


Question = tuple[str, str, str, bytes]


async def longest_turns(questions: list[Question]) -> list[tuple[Question, int, float]]:
    """Return each request with the status of its answer, and the longest turn until that answer.

    All requests go to one new server with cold caches.
    """
    answers = []
    openapi.document.cache_clear()
    async with serving() as (client, state):
        served = replace(served_in(state), filters=many_fields())
        served = served.beside(None, None, Policy(popular_fallback=True, users=True))
        served.model.serve_users()
        rehearse(served.model)
        serve(state, served)
        for method, path, query, body in questions:
            target = (f"{path}?{query}" if query else path).encode()
            headers = [(b"host", b"localhost:8080"), (b"content-length", str(len(body)).encode())]
            sent = Sent(method, target, headers, [body], "127.0.0.1", body, arrived_s=trio.current_time())
            with measured() as turns:
                response = await client.app(sent)
                await trio.lowlevel.checkpoint()  # ends the turn of the answer
            assert response is not None
            answers.append(((method, path, query, body), response.status, turns.longest_s))
    return answers


async def test_no_turn_is_long_for_any_answer_or_error_of_any_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """No turn of the event loop is long, even at the first request with cold caches."""
    labels = IdTable.from_ids([f"label {label}" for label in range(MANY)])
    monkeypatch.setattr(served_models, "N_ITEMS", MANY)
    monkeypatch.setattr(served_models, "encoder", lambda: SideEncoder((TokenColumn("tag", "multi_label", labels),)))
    asked = [("POST", path, "", json.dumps(body).encode()) for path, bodies in BODIES.items() for body in bodies]
    asked += [("POST", path, STRANGERS, b"{}") for path in BODIES]
    paths = [endpoint.path for endpoint in ENDPOINTS if endpoint.method == "GET"]
    asked += [("GET", path.format(name="movies"), query, b"") for path in paths for query in QUERIES.get(path, [""])]
    verbs = {path.format(name="movies") for path in (endpoint.path for endpoint in ENDPOINTS if endpoint.verb)}
    assert verbs == set(BODIES)
    long = set(asked)
    for _ in range(ROUNDS):
        answers = await longest_turns(asked)
        assert {200, 404, 422} <= {status for _, status, _ in answers}
        long &= {question for question, _, turn_s in answers if turn_s > LONGEST_TURN_S}
        if not long:
            break
    assert [(path, query[:80], body[:80]) for _, path, query, body in long] == []

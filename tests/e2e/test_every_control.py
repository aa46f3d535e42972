"""Requests with many controls get the same answer alone, in a batch and from each worker."""

from __future__ import annotations

import csv
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from svc.model.history import History
from svc.model.ids import IdTable
from svc.model.model import Model
from tests.e2e.server import Server, make_home, put, until, write_recipe
from tests.e2e.test_new_items import HEAD, SIDE
from tests.e2e.test_workers import clients_of_all
from tests.model.ranker.records import random_ranker
from tests.serving.client import N_ITEMS, N_USERS, model

pytestmark = pytest.mark.system
N_REQUESTS, AT_ONCE, N_PAGES = 500, 50, 40
NEW = [f"n{row}" for row in range(12)]
STRANGER, REJECTED = f"u{N_USERS}", {"i30", "i40", "n2"}
"""A user without a choice, and the items that this user must not get."""
IDS = [*(f"i{item}" for item in range(N_ITEMS)), *NEW, "none"]


def everything() -> Model:
    """Return a model with a ranker and with three hidden items for each user, and for one without a choice.

    One of them is a new item, and one comes back with `include_seen`.
    """
    made = model()
    made.ranker = random_ranker(np.random.default_rng(3), N_ITEMS, ordered=False)
    items = np.column_stack([np.arange(N_USERS) % 7 + 30, np.arange(N_USERS) % 5 + 40]).ravel().astype(np.int32)
    made.hidden = History(np.arange(0, 2 * N_USERS + 1, 2), items, np.tile(np.float32([0.5, 1.0]), N_USERS))
    made.hidden_new = History(np.arange(N_USERS + 1), np.arange(N_USERS, dtype=np.int32) % len(NEW))
    made.hidden_new_ids = IdTable.from_ids(NEW)
    made.hidden_of_others = History(np.array([0, 3]), np.array([30, 40, N_ITEMS + 2], dtype=np.int32))
    made.other_user_ids = IdTable.from_ids([STRANGER])
    return made


def random_request(rng: np.random.Generator) -> dict[str, Any]:
    """Return a request with a random choice of all controls."""

    def some(most: int) -> list[str]:
        return [IDS[place] for place in rng.permutation(len(IDS))[: rng.integers(1, most + 1)].tolist()]

    def weighed(most: int, name: str, values: list[Any]) -> list[Any]:
        each = [{"item_id": item, name: values[rng.integers(len(values))]} for item in some(most)]
        return [one["item_id"] if rng.random() < 0.3 else one for one in each]

    field = {"genre": {"any": ["abc"[rng.integers(3)]]}}
    controls: dict[str, Any] = {
        "history": weighed(6, "weight", [0.5, 1.0, 3.0]),
        "dislikes": weighed(5, "weight", [0, 1, 2.5]),
        "user_features": {"tag": "ab"[rng.integers(2)], "age": int(rng.integers(18, 80))},
        "exclude_items": some(9),
        "include_items": some(len(IDS)),
        "include_seen": bool(rng.integers(2)),
        "filter": {"any": [field, {"year": {"gte": int(rng.integers(1960, 2030))}}]},
        "boosts": [{"filter": field, "factor": [0.2, 2.0][rng.integers(2)]}],
        "limits": [{"field": "genre", "max": int(rng.integers(1, 9))}],
        "diversity": [0.3, 1.0][rng.integers(2)],
        "pins": [{"item_id": item, "position": place + 1} for place, item in enumerate(some(3))],
        "shown": weighed(30, "times", [1, 2, 100]),
        "rotation": round(float(rng.random()), 2),
        "seed": f"day {rng.integers(9)} ü",
        "shuffle": round(float(rng.random()), 2),
        "explain": int(rng.integers(1, 4)),
        "offset": int(rng.integers(0, 15)),
    }
    request = {name: value for name, value in controls.items() if rng.random() < 0.4}
    for name, needed in (("rotation", "shown"), ("shuffle", "seed")):  # without the other they are refused
        if needed not in request and rng.random() < 0.9:
            request.pop(name, None)
    if "history" in request and rng.random() < 0.3:
        request["history_mode"] = "replace"
    user = f"u{rng.integers(N_USERS + 2)}"
    return {**request, "user_id": user, "limit": int(rng.integers(1, 30)), "fallback": "popular"}


def random_page(rng: np.random.Generator) -> dict[str, Any]:
    """Return a page of each kind of row, with the user of a random request."""
    of_user = ("user_id", "history", "history_mode", "dislikes", "exclude_items", "include_seen", "filter", "fallback")
    request = {name: value for name, value in random_request(rng).items() if name in of_user}
    limit = {"limit": int(rng.integers(1, 9))}
    rows: list[dict[str, Any]] = [
        {"recommend": {**limit, "diversity": 0.3, "explain": 2}},
        {"related": {**limit, "to": "latest"}},
        {"label": {**limit, "field": "genre", "rows": 2}},
        {"popular": {**limit, "filter": {"year": {"gte": 1980}}}},
    ]
    return {**request, "rows": [{"id": f"{place}", **rows[place]} for place in rng.permutation(4).tolist()]}


def said(answer: dict[str, Any]) -> str:
    """Return the fields that single answers and results of a batch share, as JSON with exact floats."""
    only_of_one = ("request_id", "recipe", "model_version", "status", "index", "errors")
    return json.dumps({name: answer[name] for name in sorted(answer) if name not in only_of_one})


def answered_together(client: httpx.Client, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Send the requests in batches, and return the results."""
    results = []
    for start in range(0, len(requests), AT_ONCE):
        body = {"requests": requests[start : start + AT_ONCE], "include_metadata": True}
        results += client.post("/v1/recipes/films:batch-recommend", json=body).raise_for_status().json()["results"]
    return results


def has_new(client: httpx.Client) -> bool:
    """Return whether the worker has read the list of new items."""
    answer = client.post("/v1/recipes/films:recommend", json={"user_id": "u1", "limit": 30}).json()
    return any("new" in item.get("reason", ()) for item in answer["items"])


@pytest.mark.timeout(600)  # 10 s alone, many times as long beside other tests
def test_every_worker_and_every_batch_gives_the_same_bits(tmp_path: Path) -> None:
    """The requests are random, and the recipe has new items, metadata and filter fields."""
    home = make_home(tmp_path, "films", everything(), head=HEAD)
    with (tmp_path / "items.csv").open("w", newline="", encoding="utf-8") as file:
        rows = [[item, f"Film {item}", "abc"[place % 3], 1960 + place] for place, item in enumerate(IDS[:-1])]
        csv.writer(file).writerows([["item_id", "title", "genre", "year"], *rows])
    put(
        tmp_path / "new.csv",
        "item_id,tag,age\n" + "".join(f"{item},{'ab'[len(item) % 2]},{20 + n * 4}\n" for n, item in enumerate(NEW)),
    )
    write_recipe(
        home,
        "films",
        tmp_path / "films.svc",
        training={"algorithms": ["IALSRecommender"]},
        features={"item": SIDE},
        item_metadata={
            "source": {"type": "csv", "path": str(tmp_path / "items.csv")},
            "id_column": "item_id",
            "fields": ["title"],
            "filter_fields": [{"name": "genre", "kind": "categorical"}, {"name": "year", "kind": "numerical"}],
        },
        serving={
            "new_items": {
                "source": {"type": "csv", "path": str(tmp_path / "new.csv")},
                "max_share": 0.5,
                "min_share": 0.1,
            }
        },
    )
    rng = np.random.default_rng(17)
    requests = [random_request(rng) for _ in range(N_REQUESTS)]
    # Without a limit of the wait, because a slow machine would refuse batches.
    with Server(home, env={"SVC_WORKERS": "2", "SVC_MAX_QUEUE_SECONDS": "0"}) as server, ExitStack() as stack:
        clients = clients_of_all(server, stack)
        until(lambda: all(has_new(client) for client in clients))
        alone = [
            clients[place % 2].post("/v1/recipes/films:recommend", json=request).json()
            for place, request in enumerate(requests)
        ]
        by_worker = [answered_together(client, requests) for client in clients]
        pages = [random_page(rng) for _ in range(N_PAGES)]
        lists = [
            {"user_id": page["user_id"], "items": [IDS[place] for place in rng.permutation(len(IDS))[:30].tolist()]}
            for page in pages
        ]
        by_verb = [
            [
                [client.post(f"/v1/recipes/films:{verb}", json=body).raise_for_status().json() for body in bodies]
                for client in clients
            ]
            for verb, bodies in (("page", pages), ("rerank", lists))
        ]
    for first, second in by_verb:
        assert [said(page) for page in first] == [said(page) for page in second]
    for page in by_verb[0][0]:
        shown = [item["item_id"] for row in page["rows"] for item in row["items"]]
        assert len(shown) == len({*shown})
    for one, *pages in zip(alone, *by_worker, strict=True):
        assert [said(one)] * 2 == [said(page) for page in pages]
    of_stranger = [page for page, request in zip(alone, requests, strict=True) if request["user_id"] == STRANGER]
    assert of_stranger
    assert not REJECTED & {item["item_id"] for page in of_stranger for item in page.get("items", ())}
    reasons = {reason for page in alone for item in page.get("items", ()) for reason in item.get("reason", ())}
    assert reasons == {"new", "popular", "boosted", "rotated", "diversified", "pinned"}
    assert sum("items" in page for page in alone) > N_REQUESTS / 2

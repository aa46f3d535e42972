"""The bytes of an answer are known before it is encoded. Too large answers, and answers beside many unsent ones, are
refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from svc.asking.item_tables import MetadataTable
from svc.asking.policy import Policy
from svc.model.explain import POPULAR, Because
from svc.model.ids import IdTable
from svc.model.ranking.query import Prepared, Query, Ranking
from svc.serving.admission import SMALL_BYTES
from svc.serving.api.request import ServerState
from svc.serving.models import fragments
from svc.serving.models.fragments import (
    AnswerHeader,
    ItemFragments,
    batch_bytes,
    encode_elements,
    encode_fields,
    encode_users,
    fields_bytes,
    users_bytes,
)
from svc.settings import Settings
from tests.serving.client import BATCH, BATCH_RELATED, N_ITEMS, RECOMMEND, RELATED, Client, serve, served_in, serving

pytestmark = pytest.mark.anyio
DESCRIPTION = "d" * 4000
USERS = RECOMMEND.replace(":recommend", ":recommend-users")
POPULAR_ITEMS = "/v1/recipes/movies/popular"
LARGE = {"limit": 40}
ASKED: dict[str, dict[str, Any]] = {
    RECOMMEND: {"user_id": "u1", **LARGE},
    RELATED: {"seed_items": ["i1"], **LARGE},
    BATCH: {"requests": [{"user_id": "u1"}] * 16, "include_metadata": True},
    BATCH_RELATED: {"requests": [{"seed_items": ["i1"]}] * 16, "include_metadata": True},
}


@asynccontextmanager
async def described(**limits: Any) -> AsyncIterator[tuple[Client, ServerState]]:
    """Serve items with descriptions of 4 KB, under these limits."""
    async with serving(replace(Settings(), **limits)) as (client, state):
        served = served_in(state)
        table = MetadataTable(("text",), [(DESCRIPTION,)] * N_ITEMS)
        served.model.serve_users()
        pieces = ItemFragments.build(served.model.item_ids, table)
        serve(state, replace(served, fragments=pieces, policy=Policy(users=True)))
        yield client, state


@pytest.mark.parametrize("path", ASKED)
async def test_a_large_answer_is_refused_before_it_is_encoded(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a batch, all answers count together. The refusal says the size and the way out."""
    async with described(max_answer_bytes=100_000) as (client, _):
        monkeypatch.setattr(ItemFragments, "item_parts", None)
        refused = await client.post(path, ASKED[path])
        monkeypatch.undo()
        assert (refused.status, refused.json["code"]) == (422, "ANSWER_TOO_LARGE")
        assert "limit" in refused.json["detail"]
        small = {**ASKED[path], **({"include_metadata": False} if "requests" in ASKED[path] else {"limit": 20})}
        assert (await client.post(path, small)).status == 200


async def test_popular_items_and_users_are_bounded_too() -> None:
    """Each endpoint that lists items or users has the bound."""
    async with described(max_answer_bytes=100_000) as (client, _):
        refused = await client.get(POPULAR_ITEMS, query="limit=40")
        assert (refused.status, refused.json["code"]) == (422, "ANSWER_TOO_LARGE")
        assert (await client.get(POPULAR_ITEMS, query="limit=20")).status == 200
    async with described(max_answer_bytes=100) as (client, state):
        served = served_in(state)
        ids = IdTable.from_ids([f"u{user}".ljust(5000, "x") for user in range(20)])
        served.model.user_ids = ids
        refused = await client.post(USERS, {"item_id": "i19", "limit": 20})
        assert (refused.status, refused.json["code"]) == (422, "ANSWER_TOO_LARGE")


@pytest.mark.parametrize("path", ASKED)
async def test_unsent_answers_refuse_large_ones(path: str) -> None:
    """Small answers pass, so a client that does not read stops only large answers."""
    async with described(max_unsent_bytes=200_000) as (client, state):
        assert (await client.post(path, ASKED[path])).status == 200
        with state.admission.unsent.hold(100_000):
            refused = await client.post(path, ASKED[path])
            assert (refused.status, refused.json["code"]) == (503, "OVERLOADED")
            assert refused.headers["retry-after"] == "1"
            assert (await client.post(RECOMMEND, {"user_id": "u2", "limit": 10})).status == 200
        assert (await client.post(path, ASKED[path])).status == 200
        assert state.admission.unsent.count == 0


async def test_the_parts_of_a_large_answer_are_those_of_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large bodies are not joined."""
    async with described() as (client, _):
        for path, body in ASKED.items():
            whole = (await client.post(path, body, headers={"x-request-id": "r"})).body
            with monkeypatch.context() as patched:
                patched.setattr(fragments, "JOINED_BYTES", 1 << 30)
                assert (await client.post(path, body, headers={"x-request-id": "r"})).body == whole
            assert len(whole) > SMALL_BYTES


HEADER = AnswerHeader("r" * 128, "m" * 64, "sha256:" + "0" * 64)
IDS = ["plain", 'quote"\\', "line\n\u2028", "日本語" * 30, *(f"item {number}" * number for number in range(60))]


def test_the_number_is_never_below_the_bytes_of_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """With reasons, explanations, new items, errors and facts beside, it is a bound and not far from the truth."""
    monkeypatch.setattr(fragments, "JOINED_BYTES", 0)  # counts exactly, as for large answers
    rng = np.random.default_rng(0)
    own = ItemFragments.build(IdTable.from_ids(IDS), MetadataTable(("t",), [("x" * 50,)] * len(IDS)))
    new = ItemFragments.build(IdTable.from_ids(["new" * 500]), None)
    pieces = own.followed_by(new)
    for _ in range(200):
        columns = rng.choice(len(IDS) + 1, rng.integers(1, 30)).astype(np.int32)
        scores = rng.normal(size=len(columns)) * 10.0 ** rng.integers(-200, 200)
        reasons = tuple(("new", "boost:" + "b" * 64) for _ in columns)
        because = tuple(
            POPULAR if rng.random() < 0.1 else Because(((int(column) % 60, 1 / 3), ("tag: " + "é" * 90, 1 / 7)), 1 / 9)
            for column in columns
        )
        about = Prepared(
            Query(limit=1), ("f" * 100,), ("é" * 100,), ignored_pins=(("p" * 99, "no pin"),), profile="history"
        )
        ranking = Ranking(columns, scores, bool(rng.random() < 0.2), reasons, because if rng.random() < 0.5 else ())
        for with_metadata in (True, False):
            given = {"with_metadata": with_metadata}
            exact = len(HEADER.before(encode_fields(ranking, pieces, about, **given))[1])
            assert exact <= fields_bytes(ranking, pieces, about, **given) <= 2 * exact + 1000 + 400 * len(columns)
            results = [(ranking, about), (Ranking(columns[:1] % 60, scores[:1]), about)]
            parts = [*encode_elements(results, [pieces] * 2, [b""] * 2, **given)]
            assert sum(map(len, parts)) <= batch_bytes(results, [pieces] * 2, **given)
    users = Ranking(np.arange(len(IDS), dtype=np.int32), rng.normal(size=len(IDS)))
    ids = IdTable.from_ids(IDS)
    assert len(encode_users(users, ids, about)) <= users_bytes(users, ids, about)

"""A repeated request is answered from the cache with the same bytes, until the served model, policy or lists change."""

from __future__ import annotations

import gc
import json
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from svc.asking.policy import Policy
from svc.metrics import Metrics
from svc.recipe.serving_schema import ServingPin
from svc.serving.api import verbs
from svc.serving.api.request import ServerState
from svc.serving.models.lanes import Lane
from svc.settings import Settings
from tests.serving.client import RECOMMEND, RELATED, Client, Counting, serve, served_in, serving

pytestmark = pytest.mark.anyio
ID = {"x-request-id": "r1"}

questions = st.one_of(
    st.fixed_dictionaries(
        {"user_id": st.sampled_from(["u1", "u3", "nobody"])},
        optional={
            "limit": st.sampled_from([1, 3, 60]),
            "include_seen": st.booleans(),
            "exclude_items": st.lists(st.sampled_from(["i50", "i51", "unknown"]), max_size=2),
            "include_items": st.lists(st.sampled_from(["i0", "i40", "unknown"]), max_size=2),
            "user_features": st.fixed_dictionaries({}, optional={"tag": st.just("a"), "colour": st.just("red")}),
            "history": st.lists(st.sampled_from(["i7", "i9", "unknown"]), max_size=2),
            "dislikes": st.lists(st.sampled_from(["i8", "i10", "unknown"]), max_size=2),
            "fallback": st.sampled_from(["none", "popular"]),
            "explain": st.sampled_from([1, 3]),
            "offset": st.sampled_from([0, 2]),
        },
    ),
    st.just({"limit": 0}),
)


def counting(state: ServerState) -> Counting:
    """Count the queries that the lane of `movies` ranks."""
    lane = served_in(state).lane
    lane._model = model = Counting(lane._model)
    return model


async def answered(client: Client, question: object, path: str = RECOMMEND) -> bytes:
    answer = await client.post(path, question, headers=ID)
    assert answer.status == 200, answer.body
    return answer.body


@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(asked=st.lists(questions, min_size=4, max_size=20))
async def test_answers_are_the_same_bytes_as_without_the_cache(asked: list[dict[str, Any]]) -> None:
    async with (
        serving(Settings(cached_answers=2)) as (remembering, _),
        serving(Settings(cached_answers=0)) as (forgetful, _),
    ):
        for question in [*(asked[place // 2] for place in range(2 * len(asked))), *asked]:
            first = await forgetful.post(RECOMMEND, question, headers=ID)
            second = await remembering.post(RECOMMEND, question, headers=ID)
            assert (first.status, first.body, first.headers) == (second.status, second.body, second.headers)


async def test_a_repeated_request_is_ranked_once() -> None:
    """The cache compares verb and body bytes. Batches are not cached."""
    async with serving() as (client, state):
        ranked = counting(state)
        assert await answered(client, {"user_id": "u3"}) == await answered(client, {"user_id": "u3"})
        assert ranked.ranked == 1
        await answered(client, {"user_id": "u3", "limit": 9})
        await answered(client, {"seed_items": ["i3"]}, RELATED)
        await answered(client, {"seed_items": ["i3"]}, RELATED)
        assert ranked.ranked == 3


async def test_each_answer_has_the_id_of_its_own_request() -> None:
    async with serving() as (client, _):
        ids = {(await client.post(RECOMMEND, {"user_id": "u3"})).json["request_id"] for _ in range(3)}
    assert len(ids) == 3


async def test_a_change_of_model_policy_or_list_is_ranked_anew() -> None:
    """An answer from before the change is never sent after it."""
    async with serving() as (client, state):
        ranked = counting(state)
        await answered(client, {"user_id": "u3"})
        swapped = replace(served_in(state), model_version="sha256:" + "1" * 64)
        for served in (swapped, swapped.beside(None, None, Policy(popular_fallback=True))):
            serve(state, served)
            answer = json.loads(await answered(client, {"user_id": "u3"}))
            assert answer["model_version"] == served.model_version
        assert ranked.ranked == 3


async def test_errors_are_not_cached() -> None:
    async with serving() as (client, state):
        ranked = counting(state)
        for _ in range(2):
            answer = await client.post(RECOMMEND, {"user_id": "u3", "include_items": ["unknown"]})
            assert answer.json["code"] == "NO_CANDIDATES"
        assert ranked.ranked == 2


async def test_cached_fallbacks_are_counted_too() -> None:
    metrics = Metrics.create()
    async with serving(metrics=metrics) as (client, _):
        for _ in range(3):
            await answered(client, {"user_id": "nobody", "fallback": "popular"})
    assert 'svc_v1_fallbacks_total{recipe="movies",verb="recommend"} 3.0' in metrics.render().decode()


async def test_long_bodies_and_long_answers_are_not_cached() -> None:
    """Entries of a bounded size keep the cache small."""
    long_question = {"user_id": "u3", "exclude_items": [f"unknown {number:04}" for number in range(300)]}
    long_answer = {"user_id": "u3", "limit": 60, "explain": 3}
    async with serving() as (client, state):
        ranked = counting(state)
        for _ in range(2):
            await answered(client, long_question)
            assert len(await answered(client, long_answer)) > 4096
        assert ranked.ranked == 4


@pytest.mark.parametrize("padding", [100, 0], ids=["long bodies", "long answers"])
async def test_the_memory_of_the_cache_is_bounded(padding: int) -> None:
    """The counted bytes stay within the bound. The memory that Python allocates is less than twice the bound."""
    most = 80_000
    padded = {"user_id": "u3", "exclude_items": [f"unknown {number:04}" for number in range(padding)]}
    async with serving(Settings(cached_answers=10_000, cached_answers_bytes=most)) as (client, _):
        await answered(client, {"user_id": "u3"})
        gc.collect()
        tracemalloc.start()
        try:
            for number in range(120):
                shortest = 1 if padding else 50
                await answered(client, {**padded, "limit": shortest + number % 50, "offset": number // 50})
            gc.collect()
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        known = client.app._verbs._cached_answers
        assert 0.6 * most < known.n_bytes <= most
        assert 8 < len(known) < 120
        assert kept < 2 * most, kept


async def test_a_cache_of_zero_bytes_keeps_no_answer() -> None:
    async with serving(Settings(cached_answers_bytes=0)) as (client, state):
        ranked = counting(state)
        for _ in range(2):
            await answered(client, {"user_id": "u3"})
        assert ranked.ranked == 2


async def test_a_body_in_parts_is_answered_from_the_cache() -> None:
    async with serving() as (client, state):
        ranked = counting(state)
        for _ in range(2):
            answer = await client.call("POST", RECOMMEND, [b'{"user_id":', b'"u3"}'])
            assert answer.status == 200
        assert ranked.ranked == 1


async def test_a_cached_answer_is_never_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cached answer is sent at once, even if the queue of the model is full."""
    async with serving(Settings(max_queue_s=0.2)) as (client, _):
        known = await answered(client, {"user_id": "u3"})
        monkeypatch.setattr(Lane, "expected_wait_s", lambda lane, batch=0: 60.0)
        monkeypatch.setattr(Lane, "is_free_of_singles", False)
        assert await answered(client, {"user_id": "u3"}) == known
        assert (await client.post(RECOMMEND, {"user_id": "u4"})).json["code"] == "OVERLOADED"


async def test_an_answer_is_not_cached_for_models_that_changed_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of an arm may become too old between the choice of the cache's key and the choice of the arm."""
    numbers = iter([1, 2, 1, 1, 1])
    monkeypatch.setattr(verbs, "numbers_of", lambda *_: next(numbers))
    async with serving() as (client, state):
        ranked = counting(state)
        for _ in range(3):
            await answered(client, {"user_id": "u3"})
        assert ranked.ranked == 2


async def test_answers_under_timed_rules_are_not_cached() -> None:
    """Rules with times begin and end while the server runs."""
    pin = ServingPin(item_id="i50", position=0)
    async with serving() as (client, state):
        ranked = counting(state)
        serve(state, served_in(state).beside(None, None, Policy(pins=(pin,))))
        for _ in range(2):
            await answered(client, {"user_id": "u3"})
        assert ranked.ranked == 2

"""The recommendation verbs: single answers, batches, failed elements, and turns within long work."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from pydantic import TypeAdapter
from structlog.testing import capture_logs

from svc.asking.costs import Cost
from svc.asking.parsing import Rejected
from svc.asking.policy import Policy
from svc.asking.requests import AnyQuestion, RecommendRequest, RelatedRequest, UsersRequest
from svc.errors import NoCandidates, ValidationFailed
from svc.metrics import Metrics
from svc.model.ranking.query import Ranking
from svc.serving import precedence
from svc.serving.api import verbs
from svc.serving.api.authentication import hash_api_key, new_api_key, parse_api_keys
from svc.serving.api.counts import cost_of_request
from svc.serving.api.key_policies import KeyPolicies, parse_policies
from svc.serving.api.verbs import WorkThread
from svc.serving.models import fragments
from svc.serving.models.lanes import Lane
from svc.serving.models.threads import NICENESS
from tests.serving.client import BATCH, BATCH_RELATED, RECOMMEND, Answer, Client, serve, served_in, serving
from tests.serving.sent import Sent

pytestmark = pytest.mark.anyio


async def test_a_request_is_alone_until_another_one_is_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequential requests each count as alone, even after a failed one. The second of two concurrent ones does not."""
    marks: list[bool] = []
    rank = Lane.rank

    async def record(lane: Lane, *arguments: Any, alone: bool = False, **options: Any) -> list[Ranking]:
        marks.append(alone)
        await trio.testing.wait_all_tasks_blocked()
        return await rank(lane, *arguments, alone=alone, **options)

    monkeypatch.setattr(Lane, "rank", record)
    async with serving() as (client, _):
        for user in ("u1", "nobody", "u2"):
            await client.post(RECOMMEND, {"user_id": user})
        async with trio.open_nursery() as nursery:
            for user in ("u3", "u4"):
                nursery.start_soon(client.post, RECOMMEND, {"user_id": user})
        await client.post(RECOMMEND, {"user_id": "u5"})
    assert marks == [True, True, True, False, True]


async def test_recommend_answers_items_with_scores_and_metadata() -> None:
    """A known user gets `limit` unseen items by falling score, with the recipe's metadata."""
    async with serving() as (client, _):
        answer = await client.post(RECOMMEND, {"user_id": "u3", "limit": 5})
    assert answer.status == 200
    document = answer.json
    assert list(document) == ["request_id", "recipe", "model_version", "items"]
    assert document["recipe"] == "movies"
    assert answer.headers["x-svc-model-version"] == document["model_version"]
    assert answer.headers["x-request-id"] == document["request_id"]
    scores = [item["score"] for item in document["items"]]
    assert len(scores) == 5
    assert scores == sorted(scores, reverse=True)
    for item in document["items"]:
        number = int(item["item_id"][1:])
        assert number > 3
        assert (item["title"], item["year"]) == (f"Title {number}", 1990 + number)


async def test_a_batch_answers_each_element_like_a_single_request() -> None:
    """The bytes of `items` equal those of the single answer, if the batch asks for metadata."""
    bodies: list[dict[str, Any]] = [
        {"user_id": "u1"},
        {"user_id": "nobody", "user_features": {"tag": "a", "colour": "red"}},
        {"user_id": "u5", "exclude_items": ["i50", "unknown"], "limit": 60},
    ]
    async with serving() as (client, _):
        batch = (await client.post(BATCH, {"requests": bodies, "include_metadata": True})).json
        for index, body in enumerate(bodies):
            single = (await client.post(RECOMMEND, body)).json
            element = batch["results"][index]
            assert (element["index"], element["status"]) == (index, "ok")
            assert json.dumps(element["items"]) == json.dumps(single["items"])
            assert element.get("ignored_features") == single.get("ignored_features")
    assert batch["results"][1]["ignored_features"] == ["colour"]


async def test_each_element_of_a_batch_fails_alone() -> None:
    """A failed element has its code, and the others are answered. Items have no metadata by default."""
    requests: list[Any] = [
        {"user_id": "u1"},
        {"user_id": "nobody"},
        {"limit": 0},
        "text",
        {},
        {"user_features": {"age": "old"}},
    ]
    async with serving() as (client, _):
        answer = await client.post(BATCH, {"requests": requests})
    results = answer.json["results"]
    assert answer.status == 200
    assert [result["index"] for result in results] == list(range(6))
    assert [result.get("code") for result in results] == [
        None, "UNKNOWN_USER", "VALIDATION_ERROR", "VALIDATION_ERROR", "VALIDATION_ERROR", "FEATURE_VALUE_UNUSABLE",
    ]  # fmt: skip
    assert all(list(result) == ["index", "status", "code", "detail"] for result in results[1:])
    assert list(results[0]["items"][0]) == ["item_id", "score"]


async def test_a_batch_of_failures_is_still_200() -> None:
    """The status is 200 even if every element failed."""
    async with serving() as (client, _):
        answer = await client.post(BATCH_RELATED, {"requests": [{"seed_items": ["x"]}, {"seed_items": []}]})
    assert answer.status == 200
    assert [result["code"] for result in answer.json["results"]] == ["UNKNOWN_SEED_ITEMS", "VALIDATION_ERROR"]


async def test_a_failed_scorer_leaves_other_recipes_alone() -> None:
    """Each request to a scorer without memory gets 500 and a line in the log. Other recipes are answered."""
    async with serving() as (client, _):
        with capture_logs() as logs:
            for _ in range(3):
                assert (
                    await client.post("/v1/recipes/broken:batch-recommend", {"requests": [{"user_id": "u1"}]})
                ).status == 500
        assert (await client.post(RECOMMEND, {"user_id": "u1"})).status == 200
    assert [record["event"] for record in logs].count("request_failed") == 3


async def test_many_clients_at_once_get_their_own_answers() -> None:
    """Concurrent requests get the same answers as sequential ones."""
    async with serving() as (client, _):
        alone = {user: (await client.post(RECOMMEND, {"user_id": f"u{user}"})).json["items"] for user in range(20)}

        async def ask(client: Client, user: int) -> None:
            answer = await client.post(RECOMMEND, {"user_id": f"u{user}"}, headers={"x-request-id": f"r{user}"})
            assert answer.json["request_id"] == f"r{user}"
            assert answer.json["items"] == alone[user]

        async with trio.open_nursery() as nursery:
            for number in range(400):
                nursery.start_soon(ask, client, number % 20)


async def test_the_scoring_of_a_batch_ends_when_its_client_disconnects(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[bool] = []

    async def rank(*_: object, **__: object) -> list[Ranking]:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(True)

    monkeypatch.setattr(Lane, "rank", rank)
    async with serving() as (client, _):
        body = b'{"requests": [{"user_id": "u3"}]}'
        headers = [(b"host", b"localhost"), (b"content-length", b"%d" % len(body))]
        arrived_s = trio.current_time()
        leaving = Sent("POST", BATCH.encode(), headers, whole_body=body, arrived_s=arrived_s, leaves_s=0.05)
        assert await client.app(leaving) is None
    assert ended


@pytest.mark.parametrize("is_heavy", [False, True], ids=["light", "heavy"])
async def test_a_new_filter_waits_for_at_most_one_step_of_a_batch(
    is_heavy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each step, a batch goes to the end of the queue of heavy work. A light filter waits for no step."""
    prepared: list[int] = []
    may_go_on, begun = threading.Event(), threading.Event()
    planned = verbs.plan

    def noted(asked: RecommendRequest, served: Any) -> Any:
        prepared.append(asked.limit)
        if len(prepared) == 1:
            begun.set()
            assert may_go_on.wait(10)
        return planned(asked, served)

    monkeypatch.setattr(verbs, "SLICE_S", 0.0)
    monkeypatch.setattr(verbs, "plan", noted)
    async with serving() as (client, _), trio.open_nursery() as nursery:
        statuses: list[int] = []

        async def ask(path: str, body: object) -> None:
            statuses.append((await client.post(path, body)).status)

        monkeypatch.setattr(verbs, "plans_long", lambda *_: True)
        monkeypatch.setattr(verbs, "cost_of_request", lambda _: Cost.RULED if is_heavy else Cost.PLAIN)
        nursery.start_soon(ask, BATCH, {"requests": [{"user_id": "u3", "limit": 9}] * 20})
        await trio.to_thread.run_sync(begun.wait)
        nursery.start_soon(ask, RECOMMEND, {"user_id": "u3", "limit": 5})
        await trio.to_thread.run_sync(time.sleep, 0.3)
        assert prepared == ([9] if is_heavy else [9, 5])
        may_go_on.set()
    assert statuses == [200, 200]
    assert prepared.index(5) <= 2
    assert prepared.count(9) == 20


async def test_a_batch_waits_for_at_most_one_element_of_another_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer with ten reasons for each of 256,000 items takes seconds to encode."""
    order: list[str] = []
    may_go_on, begun = threading.Event(), threading.Event()
    parse_batch, encode_fields = verbs.parse_batch, fragments.encode_fields

    def parse(*arguments: Any) -> Any:
        order.append("parse")
        return parse_batch(*arguments)

    def encode(*arguments: Any, **options: Any) -> bytes:
        order.append("encode")
        begun.set()
        assert may_go_on.wait(10)
        return encode_fields(*arguments, **options)

    monkeypatch.setattr(verbs, "SLICE_S", 0.0)
    monkeypatch.setattr(verbs, "parse_batch", parse)
    monkeypatch.setattr(fragments, "encode_fields", encode)
    async with serving() as (client, _), trio.open_nursery() as nursery:
        nursery.start_soon(client.post, BATCH, {"requests": [{"user_id": "u3"}] * 20})
        await trio.to_thread.run_sync(begun.wait)
        nursery.start_soon(client.post, BATCH, {"requests": [{"user_id": "u3"}]})
        await trio.to_thread.run_sync(time.sleep, 0.3)
        may_go_on.set()
    assert order[:3] == ["parse", "encode", "parse"]
    assert order.count("encode") == 21


async def test_a_light_request_does_not_wait_for_the_answer_to_an_expensive_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An answer of 1,000 items with ten reasons each takes 0.1 s to encode."""
    may_go_on, begun = threading.Event(), threading.Event()
    encode_fields = verbs.encode_fields

    def encode(page: Ranking, *arguments: Any) -> bytes:
        if len(page.items) == 3:
            begun.set()
            assert may_go_on.wait(30)
        return encode_fields(page, *arguments)

    monkeypatch.setattr(verbs, "INLINE_ITEMS", 0)
    monkeypatch.setattr(verbs, "encode_fields", encode)
    statuses: list[int] = []
    async with serving() as (client, _), trio.open_nursery() as nursery:

        async def ask(**more: int) -> None:
            statuses.append((await client.post(RECOMMEND, {"user_id": "u3", **more})).status)

        nursery.start_soon(partial(ask, limit=3, explain=1))
        await trio.to_thread.run_sync(begun.wait)
        await ask(limit=2)
        may_go_on.set()
    assert statuses == [200, 200]


async def test_only_short_bodies_are_parsed_on_the_event_loop() -> None:
    """Texts that are split into characters take longer, and a parsed large body is prepared in a thread."""
    for reads_characters, longest in ((False, verbs.INLINE_BODY_BYTES), (True, verbs.INLINE_CHARACTERS)):
        served: Any = SimpleNamespace(model=SimpleNamespace(reads_characters=reads_characters))
        bodies: list[Any] = [b"x" * longest, b"x" * (longest + 1), {}]
        assert [verbs._is_short(body, served) for body in bodies] == [True, False, False]


async def test_a_batch_pauses_while_a_single_request_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[int] = []
    may_go_on, begun = threading.Event(), threading.Event()
    planned = verbs.plan

    def noted(asked: RecommendRequest, served: Any) -> Any:
        prepared.append(asked.limit)
        if asked.limit == 5:
            begun.set()
            assert may_go_on.wait(10)
        return planned(asked, served)

    monkeypatch.setattr(precedence, "PAUSE_SHARE", 1e9)
    monkeypatch.setattr(verbs, "plan", noted)
    monkeypatch.setattr(verbs, "plans_long", lambda *_: True)
    async with serving() as (client, _), trio.open_nursery() as nursery:
        nursery.start_soon(client.post, RECOMMEND, {"user_id": "u3", "limit": 5})
        await trio.to_thread.run_sync(begun.wait)
        nursery.start_soon(client.post, BATCH, {"requests": [{"user_id": "u3", "limit": 9}] * 20})
        await trio.to_thread.run_sync(time.sleep, 0.3)
        assert prepared == [5]
        may_go_on.set()
    assert prepared == [5, *[9] * 20]


async def test_a_request_that_waits_too_long_for_a_thread_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server refuses the request before it prepares it."""
    prepared: list[object] = []
    monkeypatch.setattr(verbs, "plan", lambda *asked: prepared.append(asked))
    monkeypatch.setattr(verbs, "plans_long", lambda *_: True)
    waiting = SimpleNamespace(tasks_waiting=int(10 / verbs.SLICE_S))
    monkeypatch.setattr(trio.CapacityLimiter, "statistics", lambda _: waiting)
    async with serving() as (client, _):
        for path, body in ((RECOMMEND, {"user_id": "u3"}), (BATCH, {"requests": [{"user_id": "u3"}]})):
            answer = await client.post(path, body)
            assert (answer.status, answer.json["code"]) == (503, "OVERLOADED")
    assert not prepared


async def test_the_reason_of_an_empty_answer_is_searched_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search may read all labels of a field, which would block the event loop."""
    on_the_loop: list[bool] = []

    def nothing(*_: object) -> NoCandidates:
        on_the_loop.append(threading.current_thread() is threading.main_thread())
        return NoCandidates()

    monkeypatch.setattr(verbs, "nothing_left", nothing)
    async with serving() as (client, _):
        answer = await client.post(RECOMMEND, {"user_id": "u3", "include_items": ["i1"], "exclude_items": ["i1"]})
    assert answer.json["code"] == "NO_CANDIDATES"
    assert on_the_loop == [False]


KEY = new_api_key()
BATCH_RECOMMEND = RECOMMEND.replace(":", ":batch-")
DIVERSE = {"user_id": "u3", "diversity": 0.5}
FEATURES = {"tag": "a"}


def bounded(rate: str) -> Any:
    keys = parse_api_keys(f"shop:{hash_api_key(KEY)}")
    policies = parse_policies(f"shop: {{{rate}}}".encode(), "policies.yaml")
    return serving(keys=keys, policies=KeyPolicies(Metrics.disabled(), policies))


async def ask(client: Client, body: object, path: str = RECOMMEND) -> Answer:
    return await client.post(path, body, headers={"X-API-Key": KEY})


async def statuses(client: Client, body: object, times: int, path: str = RECOMMEND) -> list[int]:
    return [(await ask(client, body, path)).status for _ in range(times)]


def conditions(count: int) -> dict[str, Any]:
    return {"any": [{"year": {"gte": number}} for number in range(count)]}


BOOST = {"filter": conditions(32), "factor": 2.0}


@pytest.mark.parametrize(
    ("schema", "body", "cost"),
    [
        (RecommendRequest, {"user_id": "u3"}, Cost.PLAIN),
        (RecommendRequest, {"history": ["i1"], "filter": {"genre": {"any": ["a"]}}}, Cost.PLAIN),
        (RecommendRequest, {"user_id": "u3", "dislikes": ["i1"] * 64}, Cost.PLAIN),
        (RecommendRequest, {"user_id": "u3", "dislikes": ["i1"] * 65}, Cost.LONG),
        (RecommendRequest, {"dislikes": ["i1"]}, Cost.LONG),
        (RecommendRequest, {"history": ["i1"] * 1000}, Cost.LONG),
        (RecommendRequest, {"history": ["i1"] * 1000, "dislikes": ["i2"]}, Cost.RULED),
        (RecommendRequest, {"history": ["i1"] * 1000, "dislikes": ["i2"] * 1000, "limit": 1000}, Cost.RULED),
        (RecommendRequest, {"user_id": "u3", "offset": 30}, Cost.LONG),
        (RecommendRequest, {"user_features": FEATURES}, Cost.LONG),
        (RecommendRequest, {"user_id": "u3", "pins": [{"item_id": "i1", "position": 1}]}, Cost.LONG),
        (RecommendRequest, {"user_id": "u3", "explain": 1}, Cost.RULED),
        (RecommendRequest, {"user_id": "u3", "limits": [{"field": "genre", "max": 1}]}, Cost.RULED),
        (RecommendRequest, {"user_id": "u3", "shown": ["i1"]}, Cost.RULED),
        (RecommendRequest, {"user_id": "u3", "seed": "monday"}, Cost.RULED),
        (RecommendRequest, {"user_id": "u3", "shown": ["i1"], "rotation": 0, "seed": "a", "shuffle": 0}, Cost.PLAIN),
        (RecommendRequest, {**DIVERSE, "limit": 200}, Cost.HEAVY),
        (RecommendRequest, {**DIVERSE, "limit": 201}, Cost.HUGE),
        (UsersRequest, {"item_id": "i1"}, Cost.RULED),
        (UsersRequest, {"item_id": "i1", "limit": 100, "offset": 1}, Cost.HEAVY),
        (RecommendRequest, {"user_id": "u3", "filter": conditions(8)}, Cost.PLAIN),
        (RecommendRequest, {"user_id": "u3", "filter": conditions(9)}, Cost.LONG),
        (RecommendRequest, {"user_id": "u3", "filter": conditions(17)}, Cost.RULED),
        (RecommendRequest, {"user_id": "u3", "filter": {"genre": {"any": ["a"] * 1000}}}, Cost.LONG),
        (RecommendRequest, {"user_id": "u3", "filter": {"year": {"gt": 1, "lt": 2, "lte": 9}}}, Cost.PLAIN),
        (RecommendRequest, {"user_id": "u3", "boosts": [BOOST] * 2}, Cost.RULED),
        (RecommendRequest, {"user_id": "u3", "boosts": [BOOST] * 3}, Cost.HEAVY),
        (RecommendRequest, {"user_id": "u3", "filter": {"all": [[]] * 65}}, Cost.HEAVY),
        (RecommendRequest, {"user_id": "u3", "filter": {"all": [[]] * 512}}, Cost.HEAVY),
        (RecommendRequest, {"user_id": "u3", "filter": {"all": [[]] * 513}}, Cost.HUGE),
        (RecommendRequest, {"user_features": {"tag": "a" * 8192}}, Cost.LONG),
        (RecommendRequest, {"user_features": {f"t{number}": "a" * 8192 for number in range(5)}}, Cost.RULED),
        (RelatedRequest, {"item_features": {f"n{number}": {"tag": "a" * 8192} for number in range(5)}}, Cost.RULED),
        (RelatedRequest, {"seed_items": ["i1"], "user_features": {"tags": ["a" * 100] * 400}}, Cost.RULED),
        (RelatedRequest, {"seed_items": ["i1"]}, Cost.PLAIN),
        (RelatedRequest, {"item_features": FEATURES}, Cost.LONG),
        (RelatedRequest, {"item_features": {f"n{item}": FEATURES for item in range(33)}}, Cost.RULED),
    ],
)
def test_the_cost_class_depends_on_the_body_only(schema: type[AnyQuestion], body: dict[str, Any], cost: Cost) -> None:
    asked: AnyQuestion = TypeAdapter(schema).validate_python(body)
    assert cost_of_request(asked) is cost


def test_an_invalid_element_of_a_batch_costs_one() -> None:
    assert cost_of_request(Rejected(ValidationFailed("no", errors=[]))) is Cost.PLAIN


async def test_a_request_with_diversity_is_charged_sixteen() -> None:
    """Plain requests and cached answers are charged one."""
    async with bounded("rate: 1/h, burst: 36") as (client, _):
        assert await statuses(client, DIVERSE, 1) == [200]
        assert await statuses(client, {**DIVERSE, "limit": 9}, 1) == [200]
        assert await statuses(client, {**DIVERSE, "limit": 8}, 1) == [429]
        assert await statuses(client, DIVERSE, 2) == [200, 200]
        assert await statuses(client, {"user_id": "u4"}, 2) == [200, 200]
        assert await statuses(client, {"user_id": "u4"}, 1) == [429]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (RECOMMEND, DIVERSE),
        (BATCH_RECOMMEND, {"requests": [DIVERSE]}),
        (BATCH_RECOMMEND, {"requests": [{"user_id": "u3", "filter": conditions(32)}]}),
    ],
)
async def test_a_request_refused_for_its_cost_is_not_prepared(
    path: str, body: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[object] = []
    async with bounded("rate: 1/h, burst: 16") as (client, _):
        assert await statuses(client, {"user_id": "u4"}, 1) == [200]
        monkeypatch.setattr(verbs, "plan", lambda *asked: prepared.append(asked))
        assert await statuses(client, body, 1, path) == [429]
    assert not prepared


async def test_a_batch_above_the_burst_is_refused_without_retry_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a batch would exceed the burst at any time. It is not validated, and the refusal costs no tokens."""
    async with bounded("rate: 1/h, burst: 5") as (client, _):
        monkeypatch.delattr(verbs, "_parse_batch")
        refused = await ask(client, {"requests": [{}] * 6}, BATCH_RECOMMEND)
        assert (refused.status, refused.json["code"]) == (429, "RATE_LIMITED")
        assert "more than the burst of 5" in refused.json["detail"]
        assert "retry-after" not in refused.headers
        assert await statuses(client, {"user_id": "u4"}, 6) == [200] * 5 + [429]


async def test_a_batch_is_charged_the_sum_of_its_elements() -> None:
    """An invalid element is charged 1."""
    async with bounded("rate: 1/h, burst: 36") as (client, _):
        body = {"requests": [DIVERSE, DIVERSE, {"user_id": "u4"}, {"limit": 0}]}
        assert await statuses(client, body, 1, BATCH_RECOMMEND) == [200]
        assert await statuses(client, {"user_id": "u4"}, 3) == [200, 200, 429]


async def test_a_cost_above_the_burst_takes_the_whole_burst() -> None:
    """Otherwise an expensive single request could never be answered."""
    async with bounded("rate: 1/h, burst: 5") as (client, _):
        assert await statuses(client, {"user_id": "u3", "explain": 3, "limit": 500}, 1) == [200]
        assert await statuses(client, {"user_id": "u4"}, 1) == [429]


async def test_rules_of_the_recipe_are_not_charged() -> None:
    """A client is charged only for the rules in its request."""
    async with bounded("rate: 1/h, burst: 3") as (client, state):
        serve(state, served_in(state).beside(None, None, Policy(diversity=0.5)))
        assert await statuses(client, {"user_id": "u3"}, 1) == [200]
        assert await statuses(client, {"user_id": "u4"}, 2) == [200, 200]
        assert (await ask(client, DIVERSE)).status == 429


async def test_long_work_takes_turns_with_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a time slice, work goes to the end of the queue. Every step runs once and in order."""
    monkeypatch.setattr(verbs, "SLICE_S", 0.0)
    order: list[str] = []

    def steps(name: str) -> Iterator[int]:
        for number in range(3):
            order.append(name)
            yield number

    thread, results = WorkThread(), dict[str, list[int]]()

    async def run(name: str) -> None:
        results[name] = await thread.run_steps(steps(name))

    held = threading.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(thread.run, held.wait)
        await trio.testing.wait_all_tasks_blocked(0.01)
        for name in "ab":
            nursery.start_soon(run, name)
            await trio.testing.wait_all_tasks_blocked(0.01)
        held.set()
    assert order == list("ababab")
    assert results == {"a": [0, 1, 2], "b": [0, 1, 2]}


async def test_preparation_runs_at_the_low_priority_of_scoring() -> None:
    """Trio reuses threads, so light and heavy work must have the same priority."""

    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    assert await WorkThread().run(priority) == max(os.getpriority(os.PRIO_PROCESS, 0), NICENESS)


async def test_the_expected_wait_depends_on_the_time_of_earlier_work() -> None:
    """Work that raises counts too. Work that is running does not, because it may end at any moment."""
    thread = WorkThread()

    def fail() -> None:
        time.sleep(0.06)
        raise KeyError

    for _ in range(3):
        with pytest.raises(KeyError):
            await thread.run(fail)
    held = threading.Event()
    async with trio.open_nursery() as nursery:
        for _ in range(11):
            nursery.start_soon(thread.run, held.wait)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert 0.6 <= thread.wait_s < 2
        held.set()

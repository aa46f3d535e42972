"""Parsing of bodies into models: refusals, and messages that never repeat a value."""

from __future__ import annotations

import pytest

from svc.asking.parsing import Rejected, keys_within
from svc.asking.requests import RecommendBatch, elements, parse_batch
from tests.serving.client import BATCH, RECOMMEND, RELATED, serving

pytestmark = pytest.mark.anyio


BAD_BODIES: dict[str, bytes] = {
    "empty": b"",
    "not json": b"user_id=u1",
    "not utf-8": b'{"user_id":"\xff\xfe"}',
    "utf-16": '{"user_id":"u1"}'.encode("utf-16"),
    "lone surrogate": b'{"user_id":"\\ud800"}',
    "bom": b'\xef\xbb\xbf{"user_id":"u1"}',
    "array": b"[]",
    "null": b"null",
    "nan": b'{"user_id":"u1","limit":NaN}',
    "nan feature": b'{"user_features":{"age":NaN}}',
    "infinity": b'{"user_features":{"age":-Infinity}}',
    "huge number": b'{"user_features":{"age":1e400}}',
    "huge integer": b'{"user_id":"u1","limit":' + b"9" * 5000 + b"}",
    "deep": b'{"user_features":{"a":' + b"[" * 5000 + b"]" * 5000 + b"}}",
    "twice": b'{"user_id":"u1","user_id":"u2"}',
    "twice inside": b'{"user_features":{"age":1,"age":2}}',
    "unknown key": b'{"user_id":"u1","Limit":3}',
    "number as id": b'{"user_id":3}',
    "limit true": b'{"user_id":"u1","limit":true}',
    "nobody": b"{}",
    "null user": b'{"user_id":null}',
    "object value": b'{"user_features":{"k":{}}}',
    "many values": b'{"user_id":[' + b"[]," * 200_000 + b"[]]}",
    "trailing": b'{"user_id":"u1"} {}',
}


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES.keys())
async def test_bad_bodies_are_refused_with_422(body: bytes) -> None:
    """Any bytes give 422 with a list of errors, none of which repeats a value."""
    async with serving() as (client, _):
        answer = await client.post(RECOMMEND, body)
    assert (answer.status, answer.json["code"]) == (422, "VALIDATION_ERROR")
    assert list(answer.json) == ["request_id", "detail", "code", "errors"]
    assert answer.json["errors"]
    assert all(sorted(error) == ["loc", "msg", "type"] for error in answer.json["errors"])
    assert len(answer.body) < 40_000


async def test_values_are_never_echoed() -> None:
    """A refused value appears nowhere in the answer."""
    secret = "hunter2-" * 5
    async with serving() as (client, _):
        for body in (
            {"user_id": [secret]},
            {"user_id": secret * 10},
            {"user_features": {"age": secret}},
            {"limit": secret},
        ):
            answer = await client.post(RECOMMEND, body)
            assert answer.status >= 400
            assert secret not in answer.body.decode()


async def test_the_content_type_does_not_matter() -> None:
    """JSON is parsed as JSON, also from curl's -d without a Content-Type."""
    async with serving() as (client, _):
        for kind in ("text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-8"):
            answer = await client.post(RECOMMEND, {"user_id": "u1"}, headers={"content-type": kind})
            assert answer.status == 200


async def test_colons_in_ids_are_not_taken_for_repeated_keys() -> None:
    """The check for repeated keys ignores colons inside strings."""
    async with serving() as (client, _):
        assert (await client.post(RECOMMEND, {"user_id": "u1", "exclude_items": ["a:b", "::"]})).status == 200


def test_the_keys_of_nested_objects_are_counted() -> None:
    """Bodies whose count is right skip the exact check for repeated keys. Objects in lists count too."""
    assert keys_within({"a": {"b": 1, "c": None}, "d": [{"e": 2}, 3, [{"f": "g"}]]}) == 6
    assert keys_within([*map(str, range(100)), {"a": 1}]) == 1
    assert keys_within(list(range(100))) == 0


BOOST = 'unknown field; a boost names its items by a filter: {"filter": {"genres": {"any": ["Drama"]}}, "factor": 2}'
STRING = 'Input should be a valid string; ids are strings: "17", not 17'
WHOLE = "Input should be a whole number without quotes, such as 3"
MESSAGES: dict[str, tuple[str, object, str]] = {
    "explain as a switch": (
        RECOMMEND,
        {"user_id": "u1", "explain": True},
        f"explain: {WHOLE}: most reasons for each item",
    ),
    "a number in quotes": (RECOMMEND, {"user_id": "u1", "limit": "3"}, f"limit: {WHOLE}: most items to return"),
    "a number as an id": (RECOMMEND, {"user_id": 17}, f"user_id: {STRING}"),
    "a number as an id in a list": (
        RECOMMEND,
        {"user_id": "u1", "exclude_items": ["a", 17]},
        f"exclude_items.1: {STRING}",
    ),
    "count": (RECOMMEND, {"user_id": "u1", "count": 3}, "count: unknown field; did you mean limit?"),
    "n": (RECOMMEND, {"user_id": "u1", "n": 3}, "n: unknown field; did you mean limit?"),
    "user": (RECOMMEND, {"user": "u1"}, "user: unknown field; did you mean user_id?"),
    "an item asked about": (
        RECOMMEND,
        {"item_id": "i1"},
        "item_id: unknown field of this verb; :recommend-related takes seed_items",
    ),
    "a seed by its id": (
        RELATED,
        {"item_id": "i1"},
        "item_id: unknown field; did you mean seed_items? its value has another form",
    ),
    "a user asked about": (RELATED, {"user_id": "u1"}, "user_id: unknown field of this verb; :recommend takes user_id"),
    "a misspelt key of a limit": (
        RECOMMEND,
        {"user_id": "u1", "limits": [{"feild": "genres", "max": 3}]},
        "limits.0.feild: unknown field; did you mean field?",
    ),
    "a boost by value": (
        RECOMMEND,
        {"user_id": "u1", "boosts": [{"field": "genres", "value": "Drama", "factor": 2}]},
        f"boosts.0.field: {BOOST}",
    ),
    "a misspelt list of a batch": (
        BATCH,
        {"request": [{"user_id": "u1"}]},
        "request: unknown field; did you mean requests?",
    ),
}


@pytest.mark.parametrize(("path", "body", "message"), MESSAGES.values(), ids=MESSAGES.keys())
async def test_a_mistake_is_reported_first_at_the_name_that_the_client_sent(
    path: str, body: object, message: str
) -> None:
    """If a field is misspelt, the error about a missing field comes later."""
    async with serving() as (client, _):
        answer = await client.post(path, body)
    assert (answer.status, answer.json["detail"]) == (422, f"request body: {message}")


async def test_a_request_in_a_batch_gets_the_error_of_a_single_request() -> None:
    """This includes mistakes in nested fields."""
    mistakes = [{"user": "u1"}, {"user_id": "u1", "n": 3}, {"user_id": "u1", "limits": [{"feild": "a", "max": 3}]}]
    async with serving() as (client, _):
        singles = [(await client.post(RECOMMEND, body)).json["detail"] for body in mistakes]
        batch = await client.post(BATCH, {"requests": mistakes})
    messages = [result["detail"].replace("request: ", "request body: ") for result in batch.json["results"]]
    assert messages == singles


def test_an_invalid_element_of_a_batch_has_only_the_error_that_its_answer_shows() -> None:
    """256 elements with 20 errors each would take 0.3 s."""
    (batch,) = parse_batch(RecommendBatch, b'{"requests": [{"user_id": "u1", "limi": 3, "ofset": 3}]}')
    (element,) = elements(batch)
    assert isinstance(element, Rejected)
    assert [error["msg"] for error in element.error.errors] == ["unknown field; did you mean limit?"]


async def test_a_request_without_a_user_lists_the_fields_that_describe_one() -> None:
    """The error lists every field that can describe the user."""
    async with serving() as (client, _):
        answer = await client.post(RECOMMEND, {"limit": 2})
    assert (answer.status, answer.json["detail"]) == (422, "give user_id, user_features, history or fallback")


async def test_an_answer_has_at_most_20_errors() -> None:
    """The bound holds for bodies and for query strings."""
    async with serving() as (client, _):
        for count, shown in ((20, 20), (21, 20)):
            names = {f"x{number}": 1 for number in range(count)}
            body = await client.post(RECOMMEND, {"user_id": "u1", **names})
            query = await client.get("/v1/recipes/movies/items", query="&".join(f"{name}=1" for name in names))
            assert [len(answer.json["errors"]) for answer in (body, query)] == [shown, shown]

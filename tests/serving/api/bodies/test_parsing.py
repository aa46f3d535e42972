"""From the bytes of a body to its model: what is refused, in which words, and what is never repeated."""

from __future__ import annotations

import json

import pytest

from tests.serving.client import RECOMMEND, serving

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
    "limit 0": b'{"user_id":"u1","limit":0}',
    "limit 1001": b'{"user_id":"u1","limit":1001}',
    "limit true": b'{"user_id":"u1","limit":true}',
    "empty id": b'{"user_id":""}',
    "long id": b'{"user_id":"' + b"x" * 257 + b'"}',
    "nobody": b"{}",
    "null user": b'{"user_id":null}',
    "many excluded": json.dumps({"user_id": "u1", "exclude_items": ["x"] * 1001}).encode(),
    "many features": json.dumps({"user_features": {str(i): 1 for i in range(65)}}).encode(),
    "long key": json.dumps({"user_features": {"k" * 257: 1}}).encode(),
    "long text": json.dumps({"user_features": {"k": "x" * 8193}}).encode(),
    "object value": b'{"user_features":{"k":{}}}',
    "many values": b'{"user_id":[' + b"[]," * 200_000 + b"[]]}",
    "trailing": b'{"user_id":"u1"} {}',
}


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES.keys())
async def test_bad_bodies_are_refused_with_422(body: bytes) -> None:
    """Whatever bytes come: 422 with a list of errors, none of which repeats a value."""
    async with serving() as (client, _):
        answer = await client.post(RECOMMEND, body)
    assert (answer.status, answer.json["code"]) == (422, "VALIDATION_ERROR")
    assert list(answer.json) == ["request_id", "detail", "code", "errors"]
    assert answer.json["errors"]
    assert all(sorted(error) == ["loc", "msg", "type"] for error in answer.json["errors"])
    assert len(answer.body) < 40_000


async def test_values_are_never_echoed() -> None:
    """A refused value appears nowhere in the error body."""
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


async def test_the_declared_type_of_a_body_does_not_matter() -> None:
    """JSON is read as JSON, as when curl's -d is used without a Content-Type of one's own."""
    async with serving() as (client, _):
        for kind in ("text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-8"):
            answer = await client.post(RECOMMEND, {"user_id": "u1"}, headers={"content-type": kind})
            assert answer.status == 200


async def test_colons_in_ids_are_not_taken_for_repeated_keys() -> None:
    """Keys are counted exactly where strings hold colons."""
    async with serving() as (client, _):
        assert (await client.post(RECOMMEND, {"user_id": "u1", "exclude_items": ["a:b", "::"]})).status == 200

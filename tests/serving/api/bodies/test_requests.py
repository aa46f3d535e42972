"""Requests parsed from small bodies in one call, and from large bodies in parts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from svc.errors import ValidationFailed
from svc.serving.api.bodies import requests
from svc.serving.api.bodies.parsing import Rejected, parse
from svc.serving.api.bodies.requests import RecommendBatch, RecommendRequest, RelatedBatch, RelatedRequest
from tests.serving.bodies import read

FEATURES = {
    "year": 1999,
    "score": 0.5,
    "genres": ["a", "b", None],
    "old": True,
    "text": "\u00e4\ud83d\ude00",
    "no": None,
}
BODIES = {
    RecommendRequest: [
        b'{"user_id": "u1", "limit": 10.0, "exclude_items": ["a"], "include_seen": true}',
        json.dumps({"user_features": FEATURES, "limit": 3}).encode(),
        b'{"user_id": 5}',
        b'{"user_id": "u", "limit": "10"}',
        b'{"user_id": "u", "limit": 0, "other": 1}',
        b'{"user_features": {"a": NaN}}',
        b'{"user_features": {"a": 1e999, "b": {"c": 1}}}',
        b'{"user_id": "u", "user_id": "v"}',
        b'["u"]',
        b'"u"',
        b'{"user_id": "\\ud800"}',
        b'{"user_id": "u"',
        b"\xff{}",
        b'{"user_id": ' + b"[" * 300,
        json.dumps({"user_id": "u", "exclude_items": ["a", 1, "b" * 257] * 300}).encode(),
        json.dumps({"user_features": {"a": ["x"] * 1001, "b": "x" * 8193, "c": [[1]]}}).encode(),
    ],
    RelatedRequest: [
        json.dumps(
            {"seed_items": ["i1"], "item_features": {"x": FEATURES, "y": {}}, "user_features": FEATURES}
        ).encode(),
        b'{"seed_items": []}',
        b'{"item_features": {"x": {"a": 1}, "y": 2}}',
    ],
    RecommendBatch: [
        b'{"requests": [{"user_id": "u1"}, {"user_id": 5}, {}, 7, {"user_id": "u"}], "include_metadata": true}',
        b'{"requests": []}',
        b'{"requests": [{"user_id": "u", "user_id": "v"}]}',
        b'{"requests": [{"user_id": "u"}, {"user_id": "v", "limit": NaN}]}',
        json.dumps({"requests": [{"user_id": "u", "exclude_items": ["i"] * 2000}, {"user_id": "u"}]}).encode(),
        json.dumps({"requests": [{f"n{n}": n for n in range(2000)}, {"user_id": "u"}]}).encode(),
    ],
    RelatedBatch: [json.dumps({"requests": [{"item_features": FEATURES}, {"seed_items": ["a", "b"]}]}).encode()],
}


Parse = Callable[[Any, bytes], Any]


def in_pieces(schema: Any, body: bytes) -> Any:
    """Return the result of parsing the body as a large one."""
    large = read(body, requests.LONGEST)
    if not issubclass(schema, requests.Batch):
        return parse(schema, large)
    *_, batch = requests.parse_batch(schema, large)
    return batch


def outcome(schema: Any, body: bytes, how: Parse) -> object:
    """Return the result in a comparable form, with errors as clients see them."""
    try:
        parsed = how(schema, body)
    except ValidationFailed as error:
        return [one["type"] if one["type"] == "json_invalid" else one for one in error.errors or []]
    if isinstance(parsed, requests.Batch):
        return [one.error.errors if isinstance(one, Rejected) else one for one in requests.elements(parsed)]
    return parsed


@pytest.mark.parametrize("schema", BODIES, ids=lambda schema: schema.__name__)
def test_small_and_large_bodies_give_the_same_requests(schema: Any) -> None:
    """Both parsers accept the same bodies with the same values, and give the same errors except for invalid JSON."""
    for body in BODIES[schema]:
        assert outcome(schema, body, in_pieces) == outcome(schema, body, parse)


@pytest.mark.parametrize("schema, field", [(RecommendBatch, "history"), (RelatedBatch, "seed_items")])
def test_a_step_parses_one_element_of_a_large_batch(schema: Any, field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last step validates only the rest of the body. No element is validated twice."""
    validated: list[object] = []
    validate = requests._validated

    def noted(request: Any, value: Any, by: Any) -> Any:
        validated.append(value)
        return validate(request, value, by)

    elements = [{field: [f"i{number}"]} for number in range(requests.MAX_BATCH - 1)]
    monkeypatch.setattr(requests, "_validated", noted)
    steps = [
        (step, sum(isinstance(value, dict) for value in validated))
        for step in requests.parse_batch(schema, {"requests": [*elements, {field: 7}]})
    ]
    assert [count for _, count in steps] == [*range(1, requests.MAX_BATCH + 1), requests.MAX_BATCH]
    batch, _ = steps[-1]
    assert batch is not None
    assert [isinstance(element, Rejected) for element in requests.elements(batch)] == [False] * 255 + [True]


@pytest.mark.parametrize(
    "schema, name, most",
    [
        (RecommendBatch, "requests", requests.MAX_BATCH),
        (RecommendRequest, "exclude_items", requests.MAX_EXCLUDED),
        (RelatedRequest, "seed_items", requests.MAX_SEEDS),
    ],
)
def test_a_list_that_is_too_long_is_named(schema: Any, name: str, most: int) -> None:
    """The error names the list, in small and in large bodies."""
    body = json.dumps({name: ["i"] * (most + 1)}).encode()
    for how in (parse, in_pieces):
        with pytest.raises(ValidationFailed, match=f"{name}: List should have at most {most} items") as caught:
            how(schema, body)
        assert [(error["loc"], error["type"]) for error in caught.value.errors or []] == [(["body", name], "too_long")]

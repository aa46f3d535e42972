"""Requests parsed from small bodies in one call, and from large bodies in parts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from svc.asking import requests
from svc.asking.page import RelatedRow
from svc.asking.parsing import Rejected, parse
from svc.asking.requests import RecommendBatch, RecommendRequest, RelatedBatch, RelatedRequest, UsersRequest
from svc.errors import ValidationFailed
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
    large = read(body)
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
        (RelatedRow, "seed_items", requests.MAX_SEEDS),
    ],
)
def test_a_list_that_is_too_long_is_named(schema: Any, name: str, most: int) -> None:
    """The error names the list, in small and in large bodies."""
    body = json.dumps({name: ["i"] * (most + 1)}).encode()
    for how in (parse, in_pieces):
        with pytest.raises(ValidationFailed, match=f"{name}: List should have at most {most} items") as caught:
            how(schema, body)
        assert [(error["loc"], error["type"]) for error in caught.value.errors or []] == [(["body", name], "too_long")]


ID = "i" * 256
FIELD = {"field": "f", "max": 1}
BOOST = {"filter": {"f": {"any": ["a"]}}, "factor": 1}
ITEMS = [f"i{number}" for number in range(1001)]
RECOMMEND_BOUNDS: list[tuple[str, Any, Any]] = [
    ("user_id", ID, ID + "i"),
    ("user_id", "u", ""),
    ("limit", 1000, 1001),
    ("limit", 1, 0),
    ("offset", 999, 1000),
    ("offset", 0, -1),
    ("explain", 10, 11),
    ("explain", 1, 0),
    *((name, *pair) for name in ("diversity", "rotation", "shuffle") for pair in ((1, 1.01), (0, -0.01))),
    ("seed", "s" * 64, "s" * 65),
    ("seed", "s", ""),
    *((name, ITEMS[:1000], ITEMS) for name in ("exclude_items", "include_items", "history", "dislikes", "shown")),
    *(
        (name, [ID], [wrong])
        for name in ("exclude_items", "include_items", "history", "dislikes", "shown")
        for wrong in (ID + "i", "")
    ),
    ("history", [{"item_id": ID, "weight": 1000}], [{"item_id": "i", "weight": 1000.1}]),
    ("history", [{"item_id": "i", "weight": 1e-9}], [{"item_id": "i", "weight": 0}]),
    ("dislikes", [{"item_id": ID, "weight": 10}], [{"item_id": "i", "weight": 10.1}]),
    ("dislikes", [{"item_id": "i", "weight": 0}], [{"item_id": "i", "weight": -0.1}]),
    ("shown", [{"item_id": ID, "times": 100}], [{"item_id": "i", "times": 101}]),
    ("shown", [{"item_id": "i", "times": 1}], [{"item_id": "i", "times": 0}]),
    ("limits", [{"field": f"f{number}", "max": 1} for number in range(4)], [FIELD] * 5),
    ("limits", [{"field": ID, "max": 1000}], [{"field": ID + "i", "max": 1}]),
    ("limits", [FIELD], [{"field": "f", "max": 0}]),
    ("limits", [FIELD], [{"field": "f", "max": 1001}]),
    ("limits", [FIELD], [{"field": "", "max": 1}]),
    ("boosts", [BOOST] * 16, [BOOST] * 17),
    ("boosts", [{**BOOST, "factor": 10}], [{**BOOST, "factor": 10.1}]),
    ("boosts", [{**BOOST, "factor": 0.1}], [{**BOOST, "factor": 0.09}]),
    (
        "pins",
        [{"item_id": f"i{number}", "position": number} for number in range(16)],
        [{"item_id": f"i{number}", "position": number} for number in range(17)],
    ),
    ("pins", [{"item_id": ID, "position": 999}], [{"item_id": "i", "position": 1000}]),
    ("pins", [{"item_id": "i", "position": 0}], [{"item_id": "i", "position": -1}]),
]
FEATURE_BOUNDS: list[tuple[Any, Any]] = [
    ({f"n{number}": 1 for number in range(64)}, {f"n{number}": 1 for number in range(65)}),
    ({ID: 1}, {ID + "i": 1}),
    ({"n": 1}, {"": 1}),
    ({"n": "x" * 8192}, {"n": "x" * 8193}),
    ({"n": ["x" * 8192] * 1000}, {"n": ["x" * 8193]}),
    ({"n": ["x"] * 1000}, {"n": ["x"] * 1001}),
    ({"n": [0.5] * 4096}, {"n": [0.5] * 4097}),
]
MANY = {f"i{number}": {"n": 1} for number in range(101)}
BOUNDS = [
    *((RecommendRequest, *bound) for bound in RECOMMEND_BOUNDS),
    *((RecommendRequest, "user_features", *bound) for bound in FEATURE_BOUNDS),
    *((RelatedRequest, "item_features", *bound) for bound in FEATURE_BOUNDS),
    *((UsersRequest, "item_features", *bound) for bound in FEATURE_BOUNDS),
    (RelatedRequest, "item_features", {name: MANY[name] for name in list(MANY)[:100]}, MANY),
    (RelatedRequest, "seed_items", ITEMS[:100], ITEMS[:101]),
    (RelatedRequest, "seed_items", [ID], []),
    (RelatedRequest, "seed_items", [ID], [ID + "i"]),
    (UsersRequest, "item_id", ID, ID + "i"),
    (UsersRequest, "limit", 1000, 1001),
    (UsersRequest, "offset", 999, 1000),
    (UsersRequest, "offset", 0, -1),
    (UsersRequest, "limit", 1, 0),
    (UsersRequest, "min_history", 1000, 1001),
    (UsersRequest, "min_history", 0, -1),
    *((UsersRequest, name, ITEMS[:1000], ITEMS) for name in ("include_users", "exclude_users")),
    *((UsersRequest, name, [ID], [ID + "i"]) for name in ("include_users", "exclude_users")),
]
NEEDED: dict[Any, dict[str, Any]] = {
    RecommendRequest: {"user_id": "u", "limit": 1000},
    RelatedRequest: {"seed_items": ["i"]},
    UsersRequest: {"item_id": "i"},
}


DEFAULTS: dict[Any, dict[str, Any]] = {
    RecommendRequest: {"exclude_items": [], "history_mode": "append", "rotation": 0.25, "shuffle": 0.25},
    RelatedRequest: {"exclude_items": []},
    UsersRequest: {"order": "score"},
}


@pytest.mark.parametrize(("schema", "name", "within", "beyond"), BOUNDS)
def test_a_value_at_its_bound_is_accepted_and_one_beyond_is_refused(
    schema: Any, name: str, within: Any, beyond: Any
) -> None:
    """The error names the field."""
    needed = {} if name == "item_features" else NEEDED[schema]
    parse(schema, json.dumps({**needed, name: within}).encode())
    with pytest.raises(ValidationFailed, match=name):
        parse(schema, json.dumps({**needed, name: beyond}).encode())


@pytest.mark.parametrize("schema", NEEDED)
def test_a_field_that_is_not_given_has_its_documented_default(schema: Any) -> None:
    """A field without a documented default is None."""
    given = {name: NEEDED[schema][name] for name in NEEDED[schema] if name != "limit"}
    request = parse(schema, json.dumps(given).encode())
    found = {name: value for name, value in request if value is not None and name not in given}
    assert found == {"limit": 10, "offset": 0, **DEFAULTS[schema]}

"""Requests with the largest permitted value of each field, made from the table of endpoints and its schemas.

A field that is added to a schema is in the requests by itself. `Unbounded` is raised for a field whose schema names no
largest value, and `tests/project/test_largest_requests.py` builds the requests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any, NamedTuple
from urllib.parse import quote

from svc.recipe.filter_tree import MAX_CONDITIONS, MAX_VALUES
from svc.serving.api.endpoint import Endpoint
from svc.serving.api.endpoints import ENDPOINTS

RECIPE, TOGETHER = "a", "all fields together"
FIELDS = ("f0", "f1", "f2", "f3")
"""The filter fields of the recipe. Each item has one of MAX_VALUES values in each."""
QUERY_VALUES = 200
"""The values of a filter in a query string, whose line may have 4,096 bytes."""
BASES: Mapping[str, Mapping[str, Any]] = {
    "recommend": {"user_id": "u1"},
    "recommend-related": {"seed_items": ["i1"]},
    "recommend-users": {"item_id": "i1"},
    "page": {"user_id": "u1", "rows": [{"id": "a", "recommend": {"limit": 100}}]},
    "rerank": {"user_id": "u1", "items": [f"i{item}" for item in range(1000)]},
}
"""The required fields of each verb. A new verb needs a row."""
WITH: Mapping[str, Mapping[str, Any]] = {
    "offset": {"limit": 1},
    "history_mode": {"history": ["i1"]},
    "rotation": {"shown": ["i1"]},
    "shuffle": {"seed": "a"},
    "user_features": {"user_id": None},
}
"""Other values that a request needs beside the largest value of a field."""
INSTEAD: Mapping[str, Mapping[str, str]] = {
    "recommend-related": {"item_features": "seed_items"},
    "recommend-users": {"item_features": "item_id"},
}
"""The field that the largest value of another field replaces."""


UNSERVED = {"event"}
"""Parts of list elements that the model of the benchmark refuses, because it was trained without events."""


class Unbounded(Exception):
    """The schema of a field names no largest value."""


class Asked(NamedTuple):
    """A request: the name of its endpoint, the field with its largest value, its path and its body."""

    endpoint: str
    field: str
    path: str
    body: dict[str, Any] | None


def filter_of(largest_list: int = MAX_VALUES, conditions: int = MAX_CONDITIONS, number: int = 0) -> dict[str, Any]:
    """Return a filter that all items satisfy, with as many conditions and values. Its text depends on `number`."""
    values = [f"v{value}" for value in range(largest_list - 1)]
    parts = [{FIELDS[part % len(FIELDS)]: {"any": [*values, f"x{number}-{part}"]}} for part in range(conditions)]
    return {"all": parts} if len(parts) > 1 else parts[0]


def features(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return features with as many columns as permitted. `tag` has the most labels, and the others the longest text."""
    most = schema["maxProperties"]
    scalars = schema["additionalProperties"]["anyOf"]
    labels = max(part["maxItems"] for part in scalars if part.get("type") == "array" and "anyOf" in part["items"])
    text = "word " * (max(part.get("maxLength", 0) for part in scalars) // 5)
    return {"tag": [f"t{label}" for label in range(labels)], **{f"c{column}": text for column in range(most - 1)}}


class Values:
    """The largest values of the fields of one schema. Ids are distinct, and those of items and users of the model."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._definitions = schema.get("$defs", {})
        self._numbers = count(2)

    def of(self, name: str, schema: Mapping[str, Any]) -> Any:
        """Return the largest value of the field `name`, or raise Unbounded."""
        if "$ref" in schema:
            return self.of(name, self._definitions[schema["$ref"].rpartition("/")[2]])
        number = next(self._numbers)
        if name == "filter":
            return filter_of(number=number)
        if name in {"item_features", "user_features"}:
            return self._features(schema)
        if "anyOf" in schema:
            return self.of(name, [part for part in schema["anyOf"] if part.get("type") != "null"][-1])
        if "enum" in schema or "const" in schema:
            return schema["const"] if "const" in schema else schema["enum"][-1]
        makers: dict[str, Callable[[], Any]] = {
            "boolean": lambda: True,
            "integer": lambda: self._number(name, schema),
            "number": lambda: self._number(name, schema),
            "string": lambda: self._text(name, schema, number),
            "array": lambda: [self._element(name, schema, place) for place in range(_bound(name, schema, "maxItems"))],
            "object": lambda: {
                key: self.of(key, part) for key, part in schema["properties"].items() if key not in UNSERVED
            },
        }
        if schema.get("type") not in makers:
            raise Unbounded(name)
        return makers[schema["type"]]()

    def _element(self, name: str, schema: Mapping[str, Any], place: int) -> Any:
        if name == "rows":  # rows of labels rank all items first
            row = {**self.of("label", self._definitions["LabelRow"]), "field": FIELDS[0]}
            return {"id": f"row {place}", "label": row}
        element = self.of(name, schema["items"])
        if name == "limits":
            element["field"] = FIELDS[place]
        elif name == "pins":
            element["position"] = place
        return element

    def _features(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        schemas = schema.get("anyOf", [schema])
        several = [part for part in schemas if "maxProperties" in part.get("additionalProperties", {})]
        if not several:
            return features(next(part for part in schemas if "maxProperties" in part))
        one = features(several[0]["additionalProperties"])
        labels = {f"c{column}": "t1" for column in range(len(one) - 1)}  # all texts at their longest would be 50 MB
        return {f"new{item}": {"tag": one["tag"], **labels} for item in range(several[0]["maxProperties"])}

    def _number(self, name: str, schema: Mapping[str, Any]) -> float:
        if "exclusiveMaximum" in schema:
            return int(schema["exclusiveMaximum"]) - 1
        return _bound(name, schema, "maximum")

    def _text(self, name: str, schema: Mapping[str, Any], number: int) -> str:
        _bound(name, schema, "maxLength")
        if "user" in name:
            return f"u{number}"
        return f"i{number}" if "item" in name or name in {"history", "dislikes", "shown"} else "x" * schema["maxLength"]


def _bound(name: str, schema: Mapping[str, Any], key: str) -> int:
    if key not in schema:
        raise Unbounded(f"{name}: {key}")
    bound: int = schema[key]
    return bound


def asked_of(row: Endpoint) -> Iterator[Asked]:
    """Yield a request with the largest value of each field of an endpoint, and one with all of them."""
    path = row.path.replace("{name}", RECIPE)
    if row.query is not None:
        schema = row.query.model_json_schema()
        for name, field in schema["properties"].items():
            value = json.dumps(filter_of(QUERY_VALUES, 1)) if name == "filter" else _largest(schema, name)
            yield Asked(row.name, name, f"{path}?{name}={quote(str(value), safe='')}", None)
            assert field
    if row.request is None:
        return
    schema = row.request.model_json_schema()
    single = row.verb.removeprefix("batch-")
    if row.is_batch:
        element = {**BASES[single], "limit": _largest(_single(single), "limit")}
        requests = [element] * _bound("requests", schema["properties"]["requests"], "maxItems")
        for name in schema["properties"]:
            body: dict[str, Any] = {"requests": requests}
            yield Asked(row.name, name, path, body if name == "requests" else {**body, name: _largest(schema, name)})
        return
    base = {**BASES[single], **({"limit": _largest(schema, "limit")} if "limit" in schema["properties"] else {})}
    together: dict[str, Any] = dict(BASES[single])
    for name in schema["properties"]:
        own = {**base, **WITH.get(name, {}), name: _largest(schema, name)}
        own.pop(INSTEAD.get(single, {}).get(name, ""), None)
        yield Asked(row.name, name, path, {key: value for key, value in own.items() if value is not None})
        if name not in {"offset", "user_features", "item_features", "item_id", "user_id"}:
            together[name] = own[name]
    for name in {"history", "dislikes", "shown"} & together.keys():  # an item is never in two of them
        start = {"history": 0, "dislikes": 2000, "shown": 4000}[name]
        together[name] = [{**entry, "item_id": f"i{start + n}"} for n, entry in enumerate(together[name])]
    if "include_items" in together:  # these, without the excluded ones, leave a page of `limit` items
        together["include_items"] = [f"i{10_000 + n}" for n in range(len(together["include_items"]))]
        together["exclude_items"] = [f"i{20_000 + n}" for n in range(len(together["exclude_items"]))]
        together["pins"] = [{**pin, "item_id": f"i{10_000 + n}"} for n, pin in enumerate(together["pins"])]
    yield Asked(row.name, TOGETHER, path, together)


def _single(verb: str) -> dict[str, Any]:
    (request,) = [row.request for row in ENDPOINTS if row.verb == verb and row.request is not None]
    return request.model_json_schema()


def _largest(schema: Mapping[str, Any], name: str) -> Any:
    return Values(schema).of(name, schema["properties"][name])


def every_request() -> Iterator[Asked]:
    """Yield the requests of all endpoints that have fields."""
    for row in ENDPOINTS:
        yield from asked_of(row)

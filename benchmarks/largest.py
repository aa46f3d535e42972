"""What does each verb cost with the largest permitted value of each field, and do others notice?

    python -m benchmarks largest                            # a neighbour model with rows of 200, some three minutes
    python -m benchmarks largest --kind ials --verbs recommend,recommend-related
    python -m benchmarks largest --row 2000 --beside 20

A server with 100,000 items and 1,000 users answers each request of `every_request` alone: one with all fields
together, the others with one field and `limit` at its largest. A row says the status, the processor milliseconds of
the server, the bytes of the answer, and the longest time that a probe of `/v1/health` took meanwhile, which is the
longest pause of the event loop. With `--beside` one key asks for 1,000 varied items again and again, and the
99th percentile of another key's pages of 10 varied items is shown alone and beside it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import numpy as np

from benchmarks.common import ids, origin, processor_s
from benchmarks.servers import address_of, probing
from svc.model.coldstart import LeastSquares
from svc.model.features import FEATURE_VERSION, FeatureState, SideEncoder, TokenColumn
from svc.model.history import History
from svc.model.ids import IdTable
from svc.model.model import Model
from svc.model.recommenders.base import Scorer
from svc.model.recommenders.factor_index import FactorIndex
from svc.model.recommenders.factors import IALSScorer
from svc.model.recommenders.neighbours import NeighbourScorer
from svc.recipe.filter_tree import MAX_CONDITIONS, MAX_VALUES
from svc.serving.api.authentication import hash_api_key, new_api_key
from svc.serving.api.endpoint import Endpoint
from svc.serving.api.endpoints import ENDPOINTS
from tests.e2e.server import Server, write_recipe
from tests.serving.artifacts import header as artifact_header
from tests.serving.artifacts import write_artifact

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


N_USERS, LENGTH, COMPONENTS, LABELS = 1_000, 50, 128, 1_000
PATIENCE_S, BESIDE_LIMIT = 600.0, 10
VARIED = {"diversity": 1, "limit": 1000}
ENVIRONMENT = {"SVC_CACHED_ANSWERS": "0", "SVC_MAX_ARTIFACT_BYTES": "8GiB", "SVC_MAX_PAYLOAD_BYTES": "8GiB"}
"""Rows of 2,000 take 1.6 GB, more than a server loads by default."""


def neighbours(rng: np.random.Generator, n_items: int, row: int) -> NeighbourScorer:
    columns = np.sort(rng.integers(0, n_items, (n_items, row), dtype=np.int32), axis=1).ravel()
    weights = rng.random(n_items * row, dtype=np.float32)
    return NeighbourScorer(np.arange(0, n_items * row + 1, row), columns, weights)


def factors(rng: np.random.Generator, n_items: int) -> IALSScorer:
    items, users = (rng.normal(0, 0.1, (n, COMPONENTS)).astype(np.float32) for n in (n_items, N_USERS))
    effects = rng.normal(0, 0.1, (LABELS + 1, COMPONENTS)).astype(np.float32)
    solver = LeastSquares(
        alpha0=0.01, reg=0.01, nu=1.0, confidence=1.0, target_weight=1.0, n_users=N_USERS, n_items=n_items,
        user_weights=effects, item_weights=effects,
    )  # fmt: skip
    return IALSScorer(users, FactorIndex.build(items), solver)


def model(kind: str, n_items: int, row: int) -> Model:
    """Return a model of one kind. The factor model reads the feature `tag` of users and items."""
    rng = np.random.default_rng(0)
    scorer: Scorer = neighbours(rng, n_items, row) if kind == "neighbours" else factors(rng, n_items)
    seen = np.sort(rng.integers(0, n_items - LENGTH, (N_USERS, LENGTH)), axis=1) + np.arange(LENGTH)
    tags = SideEncoder((TokenColumn("tag", "multi_label", IdTable.from_ids(ids("t", LABELS))),))
    return Model(
        user_ids=IdTable.from_ids(ids("u", N_USERS)),
        item_ids=IdTable.from_ids(ids("i", n_items)),
        history=History(np.arange(0, seen.size + 1, LENGTH), seen.astype(np.int32).ravel()),
        scorer=scorer,
        features=FeatureState(FEATURE_VERSION, tags, tags) if kind == "ials" else None,
    )


@contextmanager
def serving(kind: str, n_items: int, row: int, keys: dict[str, str]) -> Iterator[Server]:
    """Serve a model whose items have one of MAX_VALUES values in each filter field."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        lines = [",".join([f"i{n}", *[f"v{n % (MAX_VALUES - 1)}"] * len(FIELDS)]) for n in range(n_items)]
        (folder / "items.csv").write_text("\n".join([",".join(["item_id", *FIELDS]), *lines]), encoding="utf-8")
        metadata = {
            "source": {"type": "csv", "path": str(folder / "items.csv")},
            "id_column": "item_id",
            "filter_fields": [{"name": name, "kind": "categorical"} for name in FIELDS],
        }
        (folder / "recipes").mkdir()
        more: dict[str, Any] = {"item_metadata": metadata, "serving": {"users": True}}
        write_recipe(folder / "recipes", RECIPE, folder / "a.svc", **more)
        side = {"dimension": LABELS + 1, "columns": ["tag"]}
        state = (
            {"features": {"version": FEATURE_VERSION, "active": True, "user": side, "item": side}}
            if kind == "ials"
            else {}
        )
        write_artifact(folder / "a.svc", model(kind, n_items, row), head=artifact_header(**state))
        listed = ",".join(f"{name}:{hash_api_key(key)}" for name, key in keys.items())
        with Server(folder / "recipes", env=ENVIRONMENT | {"SVC_API_KEYS": listed}) as server:
            yield server


def ask(server: Server, asked: Asked, headers: dict[str, str]) -> tuple[int, float, int, float]:
    """Return status, processor seconds, bytes of the answer, and the longest time of a probe in seconds."""
    body = None if asked.body is None else json.dumps(asked.body)
    with probing(address_of(server.url)) as probes:
        began = processor_s(server.process.pid)
        with httpx.Client(base_url=server.url, timeout=PATIENCE_S, headers=headers) as client:
            answer = client.request("GET" if body is None else "POST", asked.path, content=body)
        taken = processor_s(server.process.pid) - began
    return answer.status_code, taken, len(answer.content), max(probes, default=0.0)


def beside(server: Server, seconds: float, keys: dict[str, str]) -> None:
    """Print the 99th percentile of one key's varied pages, alone and beside a key that asks for 1,000 varied items."""
    over, answered = threading.Event(), [0]
    path = f"/v1/recipes/{RECIPE}:recommend"

    def greedy() -> None:
        with httpx.Client(base_url=server.url, timeout=PATIENCE_S, headers=header(keys["greedy"])) as client:
            while not over.is_set():
                answered[0] += client.post(path, json={"user_id": "u1", **VARIED}).status_code == 200

    def p99_ms(until: float) -> tuple[float, int]:
        took, failed = list[float](), 0
        with httpx.Client(base_url=server.url, timeout=PATIENCE_S, headers=header(keys["modest"])) as client:
            while time.perf_counter() < until:
                began = time.perf_counter()
                body = {"user_id": f"u{len(took) % N_USERS}", "diversity": 0.3, "limit": BESIDE_LIMIT}
                failed += client.post(path, json=body).status_code != 200
                took.append(time.perf_counter() - began)
        return float(np.quantile(took, 0.99)) * 1e3, failed

    p99_ms(time.perf_counter() + 2)
    alone = p99_ms(time.perf_counter() + seconds)
    threads = [threading.Thread(target=greedy) for _ in range(2)]
    for thread in threads:
        thread.start()
    attacked = p99_ms(time.perf_counter() + seconds)
    over.set()
    for thread in threads:
        thread.join()
    words = f"{attacked[0]:.1f} ms beside {answered[0]} pages of 1,000, {attacked[1]} refused"
    print(f"another key's pages of 10 varied items, p99: {alone[0]:.1f} ms alone, {words}", flush=True)


def header(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def main(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kind", choices=("neighbours", "ials"), default="neighbours")
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--row", type=int, default=200, help="weights of an item")
    parser.add_argument("--verbs", help="names of endpoints, separated by commas")
    parser.add_argument("--beside", type=float, default=0.0, metavar="SECONDS")
    options = parser.parse_args()
    print("\n".join(origin()))
    names = options.verbs.split(",") if options.verbs is not None else None
    keys = {name: new_api_key() for name in ("greedy", "modest")}
    with serving(options.kind, options.items, options.row, keys) as server:
        headers = header(keys["greedy"])
        print(f"{options.kind}, {options.items:,} items, rows of {options.row}")
        print(
            "| endpoint | largest | status | processor ms | answer bytes | longest pause ms |\n"
            + "|---|---|--:|--:|--:|--:|"
        )
        small = Asked("recommend", "48 bytes", f"/v1/recipes/{RECIPE}:recommend", {"user_id": "u1", **VARIED})
        for asked in [small, *every_request()]:
            if names is None or asked.endpoint in names:
                status, taken, size, pause = ask(server, asked, headers)
                row = f"| {asked.endpoint} | {asked.field} | {status} | {taken * 1e3:.0f} | {size:,} |"
                print(f"{row} {pause * 1e3:.0f} |", flush=True)
        if options.beside:
            beside(server, options.beside, keys)

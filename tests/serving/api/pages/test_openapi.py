"""The OpenAPI document and the reference page list the errors that the server raises."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from svc import __version__
from svc.asking.requests import ItemSearch, PopularQuery, RecommendRequest, RelatedRequest
from svc.errors import ApiError
from svc.serving.api.pages.openapi import document
from svc.serving.models.registry import Registry
from tests.serving.client import RECOMMEND, serving
from tests.serving.documented import require_documented

API_PAGE = Path(__file__).parents[4] / "docs" / "reference" / "api.md"


def api_errors(kind: type[ApiError] = ApiError) -> dict[str, int]:
    """Return the status of every ApiError by code."""
    own = {} if kind is ApiError else {kind.code: kind.http_status}
    return own | {code: status for below in kind.__subclasses__() for code, status in api_errors(below).items()}


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from ([value["$ref"]] if "$ref" in value else [])
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from references(part)


def test_every_error_is_on_the_page_with_its_status() -> None:
    """docs/reference/api.md lists exactly the existing codes."""
    rows = re.findall(r"^\| (\d+) \| `([A-Z_]+)` \|", API_PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert {code: int(status) for status, code in rows} == api_errors()


def test_every_error_of_an_endpoint_is_an_example_in_the_document() -> None:
    """Each error code is an example under its status. Only the example of an invalid request lists errors."""
    found: dict[str, int] = {}
    for path in document(__version__, has_keys=True, has_metrics=True)["paths"].values():
        for operation in (value for key, value in path.items() if key in ("get", "post")):
            for status, response in operation["responses"].items():
                for code, example in response["content"].get("application/json", {}).get("examples", {}).items():
                    found[code] = int(status)
                    assert ("errors" in example["value"]) == (code == "VALIDATION_ERROR")
    assert found == api_errors()


def test_operations_have_the_statuses_of_their_kind() -> None:
    """Beside what any request may get, keys add 401 and 403, recipes 404, models 503, and bodies 408 and 413."""
    keyed, body = {401, 403, 429}, {408, 413}
    expected = {
        "/v1/health": {503},
        "/v1/health/live": set(),
        "/v1/health/ready": {503},
        "/v1/health/details": keyed | {503},
        "/v1/metrics": keyed | {404},
        "/v1/recipes": keyed | {422},
    }
    for path, operations in document(__version__, has_keys=True, has_metrics=True)["paths"].items():
        of_recipe = keyed | {404, 422, 503} | (body if ":" in path else set())
        (operation,) = (value for key, value in operations.items() if key in ("get", "post"))
        found = {int(status) for status in operation["responses"]}
        assert found == {200, 400, 405, 414, 415, 431, 500} | expected.get(path, of_recipe), path


def test_every_reference_resolves() -> None:
    """No `$ref` of the document points outside its components."""
    whole = document(__version__, has_keys=True, has_metrics=True)
    known = {f"#/components/schemas/{name}" for name in whole["components"]["schemas"]}
    assert set(references(whole)) <= known


def test_every_operation_has_a_summary_and_a_tag() -> None:
    """Generators name and document their methods by them."""
    paths = document(__version__, has_keys=True, has_metrics=True)["paths"]
    for path, rows in paths.items():
        operations = [operation for name, operation in rows.items() if name != "parameters"]
        assert all(operation["summary"] for operation in operations)
        tag = (
            "Recommendations"
            if "}:" in path
            else "Recipes and their items"
            if "recipes" in path
            else "Health and metrics"
        )
        assert all(operation["tags"] == [tag] for operation in operations), path


def test_fields_with_free_objects_are_described() -> None:
    """The schema of such a field does not tell its content, so the description does."""
    schemas = document(__version__, has_keys=True, has_metrics=True)["components"]["schemas"]
    free = {
        f"{name}.{field}": schema.get("description")
        for name, model in schemas.items()
        for field, schema in model.get("properties", {}).items()
        if True in (schema.get("additionalProperties"), schema.get("items", {}).get("additionalProperties"))
    }
    assert {"Recipe.parts", "Recipe.evaluation", "RecommendRequest.filter"} <= free.keys()
    assert [field for field, description in free.items() if not description] == []


def test_the_page_lists_every_operation() -> None:
    """docs/reference/api.md has exactly the document's operations, and marks those that need a key."""
    paths = document(__version__, has_keys=True, has_metrics=True)["paths"]
    operations = {
        (method.upper(), path): path_item[method]
        for path, path_item in paths.items()
        for method in path_item.keys() & {"get", "post"}
    }
    bodies = {
        path: operation.get("requestBody") for (method, path), operation in operations.items() if method == "POST"
    }
    assert all(body["required"] and body["content"]["application/json"]["examples"] for body in bodies.values())
    page = API_PAGE.read_text("utf-8")
    assert sorted(re.findall(r"^\| `(GET|POST) (/v1/[^`]+)` \|", page, re.MULTILINE)) == sorted(operations)
    public = re.findall(r"`(/v1/[^`]+)`", page.partition("need an API key, except ")[2].partition("\n")[0])
    assert sorted(public) == sorted(path for (_, path), operation in operations.items() if not operation["security"])


def bounds(schema: dict[str, Any]) -> set[str]:
    """Return the numbers in a schema that limit texts, lists and values."""
    kinds = [schema, *schema.get("anyOf", [])]
    names = ("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "maxProperties")
    return {str(kind[name]) for kind in kinds for name in names if kind.get(name)}


def test_the_page_lists_every_field_with_its_bounds() -> None:
    """Each field of a request has a table row with its bounds."""
    page = API_PAGE.read_text("utf-8")
    features = page.partition("## Features")[2].partition("##")[0]
    rows: dict[str, str] = defaultdict(str)
    for names, meaning in re.findall(r"^\| (`[a-z_`, ]+`) \|(.*)\|$", page, re.MULTILINE):
        for name in re.findall(r"`([a-z_]+)`", names):
            rows[name] += meaning
    for model in (RecommendRequest, RelatedRequest, ItemSearch, PopularQuery):
        for name, schema in model.model_json_schema()["properties"].items():
            assert name in rows
            told = rows[name] + (features if name.endswith("_features") else "")
            assert bounds(schema) <= set(re.findall(r"\d+", told)), name


def test_numbers_have_the_precision_of_the_server() -> None:
    """Scores, weights and features are doubles. The generators of Go and Java round numbers without a format."""
    schemas = document(__version__, has_keys=True, has_metrics=True)["components"]["schemas"]
    request = json.dumps(schemas["RecommendRequest"])
    assert schemas["Item"]["properties"]["score"]["format"] == "double"
    assert request.count('"number"') == request.count('"double"') > 3


def test_without_keys_no_operation_requires_a_key() -> None:
    """The document of a server without keys has no security scheme, no 401 and no metrics."""
    whole = document(__version__, has_keys=False, has_metrics=False)
    assert "securitySchemes" not in whole["components"]
    assert "/v1/metrics" not in whole["paths"]
    operations = [op for path in whole["paths"].values() for op in path.values() if isinstance(op, dict)]
    assert all(op["security"] == [] and "401" not in op["responses"] for op in operations)


def test_header_fields_of_requests_and_answers_are_described() -> None:
    """All requests have X-Request-ID, and requests that wait for a model X-Request-Timeout-Ms.

    Paths below a recipe have its name. Refusals have Retry-After.
    """
    paths = document(__version__, has_keys=True, has_metrics=True)["paths"]
    for path, item in paths.items():
        expected = {"X-Request-ID", "traceparent"} | ({"name"} if "{name}" in path else set())
        assert {row["name"] for row in item["parameters"]} == expected, path
    for path, method in (("/v1/recipes/{name}/popular", "get"), ("/v1/recipes/{name}:batch-recommend", "post")):
        asked = paths[path][method]
        assert "X-Request-Timeout-Ms" in {row["name"] for row in asked["parameters"]}
        assert "X-Svc-Model-Version" in asked["responses"]["200"]["headers"]
        assert "Retry-After" in asked["responses"]["429"]["headers"]
        assert "Retry-After" in asked["responses"]["503"]["headers"]
        assert "Allow" in asked["responses"]["405"]["headers"]
    assert "Retry-After" not in paths["/v1/recipes/{name}"]["get"]["responses"]["503"]["headers"]


def test_the_health_of_workers_is_described() -> None:
    """The document describes the numbers of workers. Answers with undescribed keys fail the tests' check."""
    registry = Registry()
    registry.workers = {"total": 4, "ready": 3, "failing": 1}
    answer, status = registry.health()
    headers = {"content-type": "application/json"}
    require_documented("GET", "/v1/health", status, headers, json.dumps(answer).encode())
    with pytest.raises(AssertionError, match="breaks the document"):
        require_documented("GET", "/v1/health", status, headers, json.dumps({**answer, "other": 1}).encode())


def test_client_generators_find_a_type_for_every_field() -> None:
    """Schemas of requests are plain objects without `default`. A filter is an object, or a text in a query string.

    The fields of a recommended item are described.
    """
    whole = document(__version__, has_keys=True, has_metrics=True)
    schemas = whole["components"]["schemas"]
    for name in ("RecommendRequest", "RelatedRequest"):
        assert schemas[name]["type"] == "object"
        assert not schemas[name].keys() & {"anyOf", "oneOf", "allOf", "required"}
        assert schemas[name]["properties"]["filter"]["type"] == ["object", "null"]
        assert schemas[name]["properties"]["filter"]["additionalProperties"] is True
    assert schemas["RecommendRequest"]["properties"]["limit"]["description"] == "Most items to return. Default: 10."
    assert "Default" not in schemas["RecommendRequest"]["properties"]["user_id"].get("description", "")
    assert all(field.get("description") for name, field in schemas["Item"]["properties"].items() if name != "item_id")
    assert schemas["ItemDescription"]["additionalProperties"] is True
    assert not any("default" in field for schema in schemas.values() for field in schema.get("properties", {}).values())
    assert schemas["RecommendBatch"]["properties"]["requests"]["items"] == {
        "$ref": "#/components/schemas/RecommendRequest"
    }
    for name, field, by, kinds in (
        ("BatchAnswer", "results", "status", "error ok"),
        ("FeatureColumns", "user", "kind", "categorical multi_label numerical text vector"),
        ("FeatureColumns", "item", "kind", "categorical multi_label numerical text vector"),
        ("Recipe", "filter_fields", "kind", "categorical multi_label numerical"),
    ):
        found = schemas[name]["properties"][field]["items"]["discriminator"]
        assert (found["propertyName"], sorted(found["mapping"])) == (by, kinds.split())
    parameters = whole["paths"]["/v1/recipes/{name}/popular"]["get"]["parameters"]
    assert {row["name"]: row["schema"]["type"] for row in parameters if row["in"] == "query"} == {
        "limit": "integer",
        "offset": "integer",
        "filter": "string",
    }


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("body", "is_valid"),
    [
        ({"user_id": "u1", "history_mode": "replace"}, False),
        ({"user_id": "u1", "history_mode": "replace", "history": None}, False),
        ({"user_id": "u1", "history_mode": "replace", "history": ["i1"]}, True),
        ({"user_id": "u1", "history_mode": "append"}, False),
        ({"user_id": "u1", "history_mode": "append", "history": ["i1"]}, True),
        ({"user_id": "u1", "rotation": 0.5}, False),
        ({"user_id": "u1", "rotation": 0.5, "shown": []}, False),
        ({"user_id": "u1", "rotation": 0.5, "shown": ["i1"]}, True),
        ({"user_id": "u1", "shuffle": 0.5, "seed": None}, False),
        ({"user_id": "u1", "shuffle": 0.5, "seed": "a"}, True),
        ({"user_id": "u1", "pins": 2 * [{"item_id": "i1", "position": 0}]}, False),
        ({"user_id": "u1", "pins": [{"item_id": f"i{n}", "position": n} for n in range(30, 32)]}, True),
    ],
)
async def test_the_schema_and_the_server_agree_on_pins_and_fields_that_need_others(
    body: dict[str, Any], is_valid: bool
) -> None:
    """The server accepts a body exactly if the schema does."""
    whole = document(__version__, has_keys=True, has_metrics=True)
    schema = {"$ref": "#/components/schemas/RecommendRequest", "components": whole["components"]}
    async with serving() as (client, _):
        answer = await client.post(RECOMMEND, body)
    assert jsonschema_rs.validator_for(schema).is_valid(body) == is_valid
    assert (answer.status == 200) == is_valid, answer.json


def test_error_codes_and_probe_states_are_enumerated() -> None:
    """Clients get one enum for the error codes of answers and batch elements, and one for the states of probes."""
    schemas = document(__version__, has_keys=True, has_metrics=True)["components"]["schemas"]
    assert schemas["ErrorCode"]["enum"] == sorted(api_errors())
    for name in ("Error", "Failed"):
        assert schemas[name]["properties"]["code"] == {"$ref": "#/components/schemas/ErrorCode"}
    assert schemas["Status"]["properties"]["status"]["enum"] == ["ok", "loading", "draining"]

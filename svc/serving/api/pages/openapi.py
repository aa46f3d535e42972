"""The OpenAPI 3.1 document, generated from the table of endpoints and the pydantic models of requests and answers."""

from __future__ import annotations

import json
from collections import defaultdict
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from svc import errors
from svc.errors import ApiError
from svc.names import NAME_PATTERN
from svc.serving.api.bodies import responses
from svc.serving.api.endpoint import PARAMETER, Endpoint, Errors
from svc.serving.api.endpoints import ENDPOINTS

Document = dict[str, Any]


def _parameter(name: str, where: str, description: str, example: object, **schema: object) -> Document:
    """Return a parameter of requests that is in the path or in a header."""
    return {
        "name": name,
        "in": where,
        "required": where == "path",
        "description": description,
        "schema": schema,
        "example": example,
    }


NAME = _parameter("name", "path", "The recipe.", "movies", type="string", pattern=NAME_PATTERN)
_ID = "The id of the request in the answer and in the log. An invalid value is replaced."
REQUEST_ID = _parameter("X-Request-ID", "header", _ID, "checkout-42", type="string")
_EXAMPLE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
_TRACE = "W3C trace context. An invalid value is ignored."
TRACEPARENT = _parameter("traceparent", "header", _TRACE, _EXAMPLE, type="string")
_WAIT = "Longest wait in milliseconds. A request that would wait longer is refused at once."
TIMEOUT = _parameter("X-Request-Timeout-Ms", "header", _WAIT, 200, type="integer", minimum=1, maximum=999_999_999)
_RETURNED_ID = {
    "description": "The id of the request.",
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,128}$"},
}
_MODEL_VERSION = {
    "description": "The artifact that answered.",
    "schema": {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"},
}
_RETRY_AFTER = {
    "Retry-After": {
        "description": "Whole seconds to wait before a retry.",
        "schema": {"type": "integer", "minimum": 1},
    }
}
_HEADERS_OF: dict[type[ApiError], Document] = {
    errors.RateLimited: _RETRY_AFTER,
    errors.Overloaded: _RETRY_AFTER,
    errors.MethodNotAllowed: {"Allow": {"description": "The methods of this path.", "schema": {"type": "string"}}},
}
TAGS = ("Recommendations", "Recipes and their items", "Health and metrics")
ABOUT = "Recommendations from trained models. Every error has the body `Error`, with a `code`."


@cache
def document(version: str, *, has_keys: bool, has_metrics: bool, server: str = "/") -> Document:
    """Return the OpenAPI document of a server.

    `server` is the address of the server, absolute or relative to the document. With `has_keys` clients need an API
    key. With `has_metrics` the server has the endpoint of metrics.
    """
    rows = [row for row in ENDPOINTS if row.response is not None and (has_metrics or row.name != "metrics")]
    paths: Document = defaultdict(dict)
    for row in rows:
        operation = _operation(row)
        if not has_keys and operation["security"]:
            operation["security"] = []
            operation["responses"].pop("401")
        paths[row.path][row.method.lower()] = operation
        paths[row.path]["parameters"] = [*([NAME] if PARAMETER in row.path else []), REQUEST_ID, TRACEPARENT]
    components: Document = {"schemas": _schemas(rows)}
    if has_keys:
        components["securitySchemes"] = {
            "ApiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            "Bearer": {"type": "http", "scheme": "bearer"},
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "svc", "version": version, "description": ABOUT},
        "servers": [{"url": server, "description": "This server."}],
        "tags": [{"name": name} for name in TAGS],
        "paths": dict(paths),
        "components": components,
    }


def _schemas(rows: list[Endpoint]) -> Document:
    models = {model: None for row in rows for model in (row.request, row.response) if model is not None}
    described = [(model, "validation") for model in (*models, responses.Error)]
    _, definitions = models_json_schema(described, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    for schema in definitions["$defs"].values():
        _simplify(schema)
    # Through JSON, because `object_hook` visits each nested schema.
    schemas: Document = json.loads(json.dumps(definitions["$defs"]), object_hook=_with_precision)
    return schemas


def _with_precision(schema: Document) -> Document:
    """Return the schema of a number with the format `double`: Go's generators make float32 of other numbers."""
    return {**schema, "format": "double"} if schema.get("type") in ("number", ["number", "null"]) else schema


def _simplify(schema: Document) -> None:
    """Rewrite the JSON Schema of a model so that code generators create convenient types.

    Moves `default` into the description, because openapi-typescript makes a field with a default required. Replaces
    `anyOf` with null by a list of types, because datamodel-code-generator creates a class for each `anyOf`.
    """
    for field in schema.get("properties", {}).values():
        default = field.pop("default", None)
        if default is not None:
            field["description"] = f"{field.get('description', '')} Default: {json.dumps(default)}.".lstrip()
        kinds = field.get("anyOf", [])
        if len(kinds) == 2 and kinds[1] == {"type": "null"} and "type" in kinds[0]:
            del field["anyOf"]
            field |= {**kinds[0], "type": [kinds[0]["type"], "null"]}
            if "const" in field:  # which excludes null, and which Orval names like a type
                field["enum"] = [field.pop("const")]
            if "enum" in field:
                field["enum"] = [*field["enum"], None]


def _operation(row: Endpoint) -> Document:
    assert row.response is not None
    answer = row.response.__name__
    operation: Document = {
        "operationId": row.name,
        "tags": [_tag(row)],
        "summary": row.summary,
        "security": [] if row.public else [{"ApiKey": []}, {"Bearer": []}],
        "responses": {"200": _response(answer, "The answer."), **_error_responses(row.all_errors)},
    }
    success = operation["responses"]["200"]
    if row.content_type != "application/json":
        success["content"] = {row.content_type: {"schema": {"type": "string"}}}
    if row.unavailable:
        operation["responses"]["503"] = _response(answer, row.unavailable)
    parameters = [] if row.query is None else _query_parameters(row.query)
    if row.asks_model:
        parameters.append(TIMEOUT)
        success["headers"]["X-Svc-Model-Version"] = _MODEL_VERSION
    if parameters:
        operation["parameters"] = parameters
    if row.request is not None:
        operation["requestBody"] = _body(row.request)
    return operation


def _tag(row: Endpoint) -> str:
    """Return the tag of an endpoint, under which the API reference lists it."""
    if row.verb:
        return TAGS[0]
    return TAGS[1] if row.path.startswith("/v1/recipes") else TAGS[2]


def _body(model: type[BaseModel]) -> Document:
    schema = model.model_json_schema()
    examples = {_example_name(value): {"value": value} for value in schema["examples"]}
    content = {"schema": _ref(model.__name__), "examples": examples}
    return {"required": True, "content": {"application/json": content}}


def _example_name(example: Document) -> str:
    """Return the name of an example: a list of its fields, without `limit` and `include_metadata`."""
    return f"by {', '.join(name for name in example if name not in ('limit', 'include_metadata'))}"


def _query_parameters(model: type[BaseModel]) -> list[Document]:
    described = model.model_json_schema()
    responses.without_null(described)
    _simplify(described)
    return [
        {"name": name, "in": "query", "required": False, "description": schema.pop("description"), "schema": schema}
        for name, schema in described["properties"].items()
    ]


def _response(schema: str, description: str) -> Document:
    return {
        "description": description,
        "headers": {"X-Request-ID": _RETURNED_ID},
        "content": {"application/json": {"schema": _ref(schema)}},
    }


def _error_responses(failures: Errors) -> Document:
    """Return a response for each HTTP status, with an example for each error code that has the status."""
    by_status: dict[int, list[type[ApiError]]] = defaultdict(list)
    for error in failures:
        by_status[error.http_status].append(error)
    responses: Document = {}
    for status, errors_of_status in sorted(by_status.items()):
        response = _response("Error", ", ".join(f"`{error.code}`" for error in errors_of_status))
        response["content"]["application/json"]["examples"] = {
            error.code: {"value": _example(error)} for error in errors_of_status
        }
        for error in errors_of_status:
            response["headers"] |= _HEADERS_OF.get(error, {})
        responses[str(status)] = response
    return responses


def _example(error: type[ApiError]) -> Document:
    example: Document = {"request_id": "3f9c0d6a1b2e", "detail": error.detail, "code": error.code}
    if error is errors.ValidationFailed:
        example["errors"] = list(errors.ValidationFailed.example)
    return example


def _ref(name: str) -> Document:
    return {"$ref": f"#/components/schemas/{name}"}

"""The OpenAPI 3.1 document, from the models that validate requests and the errors that are raised."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from svc import errors
from svc.errors import ApiError
from svc.serving import answers
from svc.serving.schemas import ItemSearch, RecommendBatch, RecommendRequest, RelatedBatch, RelatedRequest

Document = dict[str, Any]
Errors = Sequence[type[ApiError]]

ANY: Errors = (errors.AmbiguousLength, errors.HostNotAllowed, errors.InternalError)
KEYED: Errors = (errors.MissingApiKey, errors.InvalidApiKey)
RECIPE: Errors = (errors.RecipeNotFound, errors.RecipeUnavailable)
BODY: Errors = (errors.BodyTimeout, errors.PayloadTooLargeForRequest, errors.ValidationFailed)
FEATURES: Errors = (errors.FeaturesNotSupported, errors.FeatureValueUnusable)
USER: Errors = (errors.UnknownUser, errors.NoCandidates, *FEATURES)
SEEDS: Errors = (errors.UnknownSeedItems, errors.NoCandidates, *FEATURES)

REQUESTS: tuple[type[BaseModel], ...] = (RecommendRequest, RelatedRequest, RecommendBatch, RelatedBatch)
NAME = {
    "name": "name",
    "in": "path",
    "required": True,
    "description": "The recipe.",
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"},
    "example": "movies",
}
REQUEST_ID = {
    "name": "X-Request-ID",
    "in": "header",
    "required": False,
    "description": "Comes back in the answer and in the log; a value of another form is replaced.",
    "schema": {"type": "string"},
    "example": "checkout-42",
}
_RETURNED_ID = {
    "description": "The id of the request.",
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,128}$"},
}
_MODEL_VERSION = {
    "description": "The artifact that answered.",
    "schema": {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"},
}
ABOUT = "Recommendations from trained models. Every error has the body `Error`; its `code` says what happened."


@cache
def document(version: str, *, has_keys: bool, has_metrics: bool) -> Document:
    """The whole document. `has_keys` and `has_metrics` say what this server is set up with."""
    paths = {**_public_paths(), **_guarded_paths(has_metrics=has_metrics)}
    for verb, (model, answer, failures) in _verbs().items():
        paths[f"/v1/recipes/{{name}}:{verb}"] = {"post": _verb(verb, model, answer, failures), "parameters": [NAME]}
    for path in paths.values():
        path.setdefault("parameters", []).append(REQUEST_ID)
        for operation in path.values():
            if isinstance(operation, dict) and not has_keys and operation.pop("security", None):
                operation["responses"].pop("401")
    components: Document = {"schemas": _schemas()}
    if has_keys:
        components["securitySchemes"] = {"ApiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "svc", "version": version, "description": ABOUT},
        "paths": paths,
        "components": components,
    }


def _schemas() -> Document:
    models = [(model, "validation") for model in (*REQUESTS, *answers.ANSWERS)]
    _, definitions = models_json_schema(models, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    schemas: Document = definitions["$defs"]
    return schemas


def _verbs() -> dict[str, tuple[type[BaseModel], str, Errors]]:
    return {
        "recommend": (RecommendRequest, "Recommendations", USER),
        "recommend-related": (RelatedRequest, "Recommendations", SEEDS),
        "batch-recommend": (RecommendBatch, "BatchAnswer", ()),
        "batch-recommend-related": (RelatedBatch, "BatchAnswer", ()),
    }


def _verb(verb: str, model: type[BaseModel], answer: str, failures: Errors) -> Document:
    schema = model.model_json_schema()
    examples = {f"example {place}": {"value": value} for place, value in enumerate(schema["examples"], start=1)}
    content = {"schema": _ref(model.__name__), "examples": examples}
    operation = _operation(verb.replace("-", "_"), model.__doc__ or "", answer, [*KEYED, *RECIPE, *BODY, *failures])
    operation["requestBody"] = {"required": True, "content": {"application/json": content}}
    operation["responses"]["200"]["headers"]["X-Svc-Model-Version"] = _MODEL_VERSION
    return operation


def _public_paths() -> Document:
    health = _operation("health", "How many recipes are loaded; 503 while one has no model.", "Health", ())
    health["responses"]["503"] = _answered("Health", "A recipe has no model.")
    live = _operation("live", "200 while the process answers.", "Status", ())
    ready = _operation("ready", "200 once a recipe is loaded and the server is not draining.", "Status", ())
    ready["responses"]["503"] = _answered("Status", "Nothing is loaded yet, or the server is draining.")
    return {
        "/v1/health": {"get": health},
        "/v1/health/live": {"get": live},
        "/v1/health/ready": {"get": ready},
    }


def _guarded_paths(*, has_metrics: bool) -> Document:
    details = _operation("health_details", "The state of each recipe.", "HealthDetails", KEYED)
    details["responses"]["503"] = _answered("HealthDetails", "A recipe has a current load error.")
    described = _operation("describe_recipe", "What the served model was built from.", "Recipe", [*KEYED, *RECIPE])
    found = _operation(
        "find_items",
        "Items by id or metadata, a few at a time: for people who choose seeds.",
        "FoundItems",
        [*KEYED, *RECIPE, errors.ValidationFailed],
    )
    found["parameters"] = _query_parameters(ItemSearch)
    paths: Document = {
        "/v1/health/details": {"get": details},
        "/v1/recipes": {"get": _operation("list_recipes", "All recipes.", "RecipeList", KEYED)},
        "/v1/recipes/{name}": {"get": described, "parameters": [NAME]},
        "/v1/recipes/{name}/items": {"get": found, "parameters": [NAME]},
    }
    if has_metrics:
        metrics = _operation("metrics", "Metrics in the Prometheus text format.", "Status", KEYED)
        metrics["responses"]["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}
        paths["/v1/metrics"] = {"get": metrics}
    return paths


def _operation(name: str, summary: str, answer: str, failures: Errors) -> Document:
    operation: Document = {
        "operationId": name,
        "summary": summary,
        "responses": {"200": _answered(answer, "The answer."), **_failed([*failures, *ANY])},
    }
    if errors.MissingApiKey in failures:
        operation["security"] = [{"ApiKey": []}]
    return operation


def _query_parameters(model: type[BaseModel]) -> list[Document]:
    fields = model.model_json_schema()["properties"]
    return [
        {"name": name, "in": "query", "required": False, "description": schema.pop("description"), "schema": schema}
        for name, schema in fields.items()
    ]


def _answered(schema: str, description: str) -> Document:
    return {
        "description": description,
        "headers": {"X-Request-ID": _RETURNED_ID},
        "content": {"application/json": {"schema": _ref(schema)}},
    }


def _failed(failures: Errors) -> Document:
    """One response a status, with an example for each code that has it."""
    by_status: dict[int, list[type[ApiError]]] = defaultdict(list)
    for error in failures:
        by_status[error.http_status].append(error)
    responses: Document = {}
    for status, found in sorted(by_status.items()):
        response = _answered("Error", ", ".join(f"`{error.code}`" for error in found))
        response["content"]["application/json"]["examples"] = {
            error.code: {"value": _example(error)} for error in found
        }
        responses[str(status)] = response
    return responses


def _example(error: type[ApiError]) -> Document:
    example: Document = {"request_id": "3f9c0d6a1b2e", "detail": answers.DETAILS[error.code], "code": error.code}
    if error is errors.ValidationFailed:
        example["errors"] = [{"loc": ["body", "limit"], "msg": "Input should be a valid integer", "type": "int_type"}]
    return example


def _ref(name: str) -> Document:
    return {"$ref": f"#/components/schemas/{name}"}

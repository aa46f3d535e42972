"""Everything but the four verbs: health, recipes, metrics, the OpenAPI document and the pages, in quart."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import trio
from pydantic_core import to_json
from quart import Response, request
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException
from werkzeug.routing import BaseConverter

from svc.errors import (
    MethodNotAllowed,
    NotFound,
    PayloadTooLargeForRequest,
    RecipeNotFound,
    RecipeUnavailable,
    ValidationFailed,
)
from svc.serving.catalogue import feature_columns, find_items
from svc.serving.console.pages import add_pages
from svc.serving.openapi import document
from svc.serving.probes import PROBES, Document
from svc.serving.registry import Entry, Served
from svc.serving.schemas import ItemSearch, parse_query
from svc.serving.state import ServerState

FAILURE = "svc.failure"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# What a description tells of an artifact; everything else of its header stays inside.
DESCRIBED = (
    "algorithms",
    "metric",
    "cutoff",
    "best_class",
    "best_params",
    "best_score",
    "trained_at",
    "recipe_hash",
    "data_stats",
    "evaluation",
    "features",
)


class RecipeName(BaseConverter):
    """The part of a path that can be a recipe's name."""

    regex = "[A-Za-z0-9_-]{1,64}"


def build_routes(state: ServerState) -> QuartTrio:
    """The quart application. It leaves the exception of a failed request in the scope, under FAILURE."""
    app = QuartTrio("svc", static_folder=None)
    app.config["PROVIDE_AUTOMATIC_OPTIONS"] = False
    app.url_map.converters["recipe_name"] = RecipeName
    app.register_error_handler(Exception, _keep)
    add_pages(app, state)
    _health(app, state)
    _recipes(app, state)
    if state.metrics.enabled:
        limiter = trio.CapacityLimiter(1)

        @app.get("/v1/metrics")
        async def metrics() -> Response:
            text = await trio.to_thread.run_sync(state.metrics.render, limiter=limiter, abandon_on_cancel=True)
            return Response(text, content_type=METRICS_TYPE)

    if not state.settings.is_closed:

        @app.get("/v1/openapi.json")
        async def openapi() -> Response:
            return _json(document(state.version, has_keys=state.auth.required, has_metrics=state.metrics.enabled))

    return app


def _health(app: QuartTrio, state: ServerState) -> None:
    for path, document_of in PROBES.items():  # what the front does not answer: HEAD, and methods that are not allowed
        app.add_url_rule(path, path, partial(_probe, state, document_of), methods=["GET"])

    @app.get("/v1/health/details")
    async def details() -> Response:
        return _json(*state.registry.details())


async def _probe(state: ServerState, document_of: Callable[[ServerState], Document]) -> Response:
    return _json(*document_of(state))


def _recipes(app: QuartTrio, state: ServerState) -> None:
    limiter = trio.CapacityLimiter(1)

    @app.get("/v1/recipes")
    async def recipes() -> Response:
        return _json({"recipes": [_summary(entry) for entry in state.registry.entries()]})

    @app.get("/v1/recipes/<recipe_name:name>")
    async def recipe(name: str) -> Response:
        entry, served = _entry(state, name)
        described = {key: served.header[key] for key in DESCRIBED if key in served.header}
        columns = await trio.to_thread.run_sync(
            feature_columns, served.model, state.settings.metadata_field_deny, limiter=limiter, abandon_on_cancel=True
        )
        if columns is not None:
            described["feature_columns"] = columns
        return _json({**_summary(entry), **described})

    @app.get("/v1/recipes/<recipe_name:name>/items")
    async def items(name: str) -> Response:
        _, served = _entry(state, name)
        asked = parse_query(ItemSearch, request.args.to_dict())
        found, more = await trio.to_thread.run_sync(
            find_items, served, asked.q, asked.limit, limiter=limiter, abandon_on_cancel=True
        )
        return _json({"recipe": name, "model_version": served.model_version, "items": found, "more": more})


def _entry(state: ServerState, name: str) -> tuple[Entry, Served]:
    """A recipe and its model of now. Raises RecipeNotFound or RecipeUnavailable."""
    entry = state.registry.get(name)
    if entry is None:
        raise RecipeNotFound("no recipe of this name is served here")
    if entry.served is None:
        raise RecipeUnavailable("the recipe has no model now; /v1/health/details says why")
    return entry, entry.served


def _summary(entry: Entry) -> dict[str, Any]:
    summary: dict[str, Any] = {"name": entry.name, "loaded": entry.served is not None}
    if entry.served:
        summary["model_version"] = entry.served.model_version
        summary["best_class"] = entry.served.header.get("best_class")
    return summary


def _json(body: object, status: int = 200) -> Response:
    return Response(to_json(body), status=status, content_type="application/json")


async def _keep(error: Exception) -> Response:
    """Leave the error to the gate, which answers every error in one way."""
    request.scope[FAILURE] = _translated(error)  # type: ignore[literal-required]
    return Response(b"", status=500)


def _translated(error: Exception) -> Exception:
    """The ApiError for what quart itself raises."""
    if not isinstance(error, HTTPException):
        return error
    match error.code:
        case 404:
            return NotFound("nothing is served at this path")
        case 405:
            allowed = sorted(getattr(error, "valid_methods", None) or ())
            return MethodNotAllowed(f"this endpoint takes {', '.join(allowed)}", fields={"allow": allowed})
        case 413:
            return PayloadTooLargeForRequest("the body is larger than this endpoint takes")
        case code if code is not None and code < 500:
            return ValidationFailed("the request is not valid")
    return error

"""quart handlers of all endpoints that are neither health probes nor recommendation verbs, and of the web pages.

The files of the web pages need no key, because they contain no data: the browser asks the API with the user's key. The
pages load nothing from other hosts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from functools import cache, partial
from importlib import resources
from typing import Any, TypeVar

import trio
from pydantic_core import to_json
from quart import Response, request
from quart.routing import QuartMap, QuartRule
from quart_trio import QuartTrio

from svc import __version__, logs
from svc.asking.parsing import parse_query
from svc.asking.requests import MAX_MATCHES, ItemSearch, SampleUserQuery
from svc.errors import RecipeUnavailable, SvcError
from svc.serving.api.endpoint import PARAMETER
from svc.serving.api.endpoints import CONSOLE, ENDPOINTS, PROBES, REFERENCE, SHARED, SWAGGER_UI, USERS_VERB, VERBS
from svc.serving.api.pages.openapi import document
from svc.serving.api.request import Request, ServerState
from svc.serving.models.console import feature_columns, find_items, sample_user
from svc.serving.models.registry import Entry, Served, unknown_recipe

T = TypeVar("T")
RankPopular = Callable[[Request, Served, Mapping[str, str]], Awaitable[bytes]]
"""A function that returns the body of the answer with the most popular items, for query parameters."""

FAILURE = "svc.failure"
REQUEST = "svc.request"
"""The key of the ASGI scope for the `Request` that quart answers."""
MODEL_VERSION = "X-Svc-Model-Version"
LONGEST_LISTING_S = 10.0
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# The fields of an artifact's header that clients may see.
DESCRIBED = (
    "algorithms",
    "metric",
    "cutoff",
    "best_class",
    "best_params",
    "best_score",
    "score_with_order",
    "trained_at",
    "recipe_hash",
    "data_stats",
    "evaluation",
    "features",
    "parts",
    "popular",
    "events",
)


def build_routes(state: ServerState, rank_popular: RankPopular) -> QuartTrio:
    """Return the quart application, which routes all endpoints that are neither health probes nor verbs.

    `rank_popular` is `Verbs.popular`. If a handler raises, the exception is in the ASGI scope under FAILURE.
    """
    # Otherwise Quart adds a route /static, which the table of endpoints lacks.
    app = QuartTrio("svc", static_folder=None)
    app.register_error_handler(Exception, _keep)
    app.url_map = _url_map()
    app.view_functions.update({**page_handlers(state), **_handlers(state, rank_popular)})
    return app


@cache
def _url_map() -> QuartMap:
    """Return quart's rules for the endpoints that are neither health probes nor verbs.

    All applications of a process share them, because compiling them takes 8 ms.
    """
    return QuartMap(
        [
            QuartRule(row.path.replace(PARAMETER, "<name>"), methods=[row.method], endpoint=row.path)
            for row in ENDPOINTS
            if row not in PROBES and row not in VERBS
        ],
        # By default werkzeug matches //v1 as /v1. The table of endpoints does not.
        merge_slashes=False,
    )


def _handlers(state: ServerState, rank_popular: RankPopular) -> dict[str, Handler]:
    """Return the handlers by path. The paths are spelled as in the table of endpoints."""
    # One thread for each kind, so that searches of 2 s delay no metrics.
    described, searched, rendered, documented = (trio.CapacityLimiter(1) for _ in range(4))
    compared = defaultdict[str, trio.CapacityLimiter](partial(trio.CapacityLimiter, 1))  # by recipe: a store may hang

    async def details() -> Response:
        return _json(*state.registry.details(_asked().may_ask))

    async def recipes() -> Response:
        may_ask = _asked().may_ask
        return _json({"recipes": [_summary(entry) for entry in state.registry.recipes() if may_ask(entry.name)]})

    async def recipe(name: str) -> Response:
        entry, served = state.registry.require_served(name)
        header = {key: served.header[key] for key in DESCRIBED if key in served.header}
        columns = await _in_thread(feature_columns, served.model, state.settings.is_denied, limiter=described)
        features: dict[str, Any] = {} if columns is None else {"feature_columns": columns}
        if served.filters.fields:
            features["filter_fields"] = await _in_thread(served.filters.describe, limiter=described)
        if served.policy.popular_fallback:
            features["fallback"] = "popular"
        return _json({**_summary(entry), **header, **features})

    async def items(name: str) -> Response:
        _, served = state.registry.require_served(name)
        parameters = parse_query(ItemSearch, request.args.to_dict())
        matches, more = await _in_thread(find_items, served, parameters.q, parameters.limit, limiter=searched)
        return _json({"recipe": name, "model_version": served.model_version, "items": matches, "more": more})

    async def popular(name: str) -> Response:
        entry, served = state.registry.require_served(name)
        entry.require_fresh()
        body = await rank_popular(_asked(), served, request.args.to_dict())
        return Response(body, content_type="application/json", headers={MODEL_VERSION: served.model_version})

    async def random_user(name: str) -> Response:
        _, served = state.registry.require_served(name)
        parameters = parse_query(SampleUserQuery, request.args.to_dict())
        user = await _in_thread(sample_user, served, parameters.user_id, MAX_MATCHES, limiter=searched)
        return _json({"recipe": name, "model_version": served.model_version, **user})

    async def versions(name: str) -> Response:
        state.registry.require(name)
        if state.versions is None:
            raise unknown_recipe(name)
        with trio.move_on_after(LONGEST_LISTING_S):
            try:
                history = await _in_thread(state.versions, name, limiter=compared[name])
            except LookupError:  # the recipe was removed meanwhile
                raise unknown_recipe(name) from None
            except SvcError as error:
                raise RecipeUnavailable(f"the versions cannot be read: {logs.redact_text(error.message)}") from error
            return _json({"recipe": name, **history})
        raise RecipeUnavailable(f"the store did not list its versions within {LONGEST_LISTING_S:g} s")

    async def metrics() -> Response:
        return Response(await _in_thread(state.metrics.render, limiter=rendered), content_type=METRICS_TYPE)

    async def openapi() -> Response:
        return await _in_thread(_document, state, limiter=documented)

    return {
        "/v1/health/details": details,
        "/v1/recipes": recipes,
        "/v1/recipes/{name}": recipe,
        "/v1/recipes/{name}/items": items,
        "/v1/recipes/{name}/popular": popular,
        "/v1/recipes/{name}/somebody": random_user,
        "/v1/recipes/{name}/versions": versions,
        "/v1/metrics": metrics,
        "/v1/openapi.json": openapi,
    }


def _document(state: ServerState) -> Response:
    """Return the OpenAPI document. The first call takes 30 ms.

    The server is the folder above that of the document, so it is right behind a proxy that adds a prefix to paths.
    """
    with_keys, with_metrics = state.auth.required, state.settings.metrics_enabled
    return _json(document(__version__, has_keys=with_keys, has_metrics=with_metrics, server=".."))


async def _in_thread(work: Callable[..., T], *args: Any, limiter: trio.CapacityLimiter) -> T:
    """Return `work(*args)`, called in a thread. Cancellation does not wait for the thread."""
    return await trio.to_thread.run_sync(work, *args, limiter=limiter, abandon_on_cancel=True)


def _asked() -> Request:
    """Return the request that the current quart handler answers."""
    asked: Request = request.scope[REQUEST]  # type: ignore[literal-required]
    return asked


def _summary(entry: Entry) -> dict[str, Any]:
    served = entry.served
    if served is None:
        return {"name": entry.name, "loaded": False}
    ranks_users = served.policy.users and served.model.can_rank_users
    return {
        "name": entry.name,
        "loaded": True,
        "kind": "user-item",
        "model_version": served.model_version,
        "best_class": served.header.get("best_class"),
        "loaded_at": datetime.fromtimestamp(served.loaded_at, UTC).isoformat(timespec="seconds"),
        "supported_verbs": [row.verb for row in VERBS if row.verb != USERS_VERB or ranks_users],
    }


def _json(body: object, status: int = 200) -> Response:
    return Response(to_json(body), status=status, content_type="application/json")


async def _keep(error: Exception) -> Response:
    """Store the error in the scope for `Application`, which makes the error answers of all endpoints."""
    request.scope[FAILURE] = error  # type: ignore[literal-required]
    # Nobody sees this answer. It only ends the handler.
    return Response(b"", status=500)


TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # An upgrade changes the files, not their names.
    "Cache-Control": "no-cache",
}
PATHS = {"index.html": "/", "reference.html": "/v1/docs"}
"""Paths of the files that are not at `/console/<name>`."""
STATIC = (*PATHS, *CONSOLE, *REFERENCE, *SHARED)

Handler = Callable[..., Awaitable[Response]]


def page_handlers(state: ServerState) -> dict[str, Handler]:
    """Return the handlers of all files of the web pages and of `server.json`, by path."""
    static = {PATHS.get(name, f"/console/{name}"): _file("static", name) for name in STATIC}
    swagger_ui = {f"/console/{name}": _file("swagger_ui", name) for name in SWAGGER_UI}

    async def server() -> Response:
        """Return facts that the console reads before its first call of the API."""
        facts = {
            "keys": state.auth.required,
            "metrics": state.settings.metrics_enabled,
            "reference": not state.settings.is_closed,
        }
        return Response(to_json(facts), headers=HEADERS, content_type="application/json")

    return {**static, **swagger_ui, "/console/server.json": server}


def _file(folder: str, name: str) -> Handler:
    """Return the handler of a file. It saves memory, because it reads the file for each request."""
    file = resources.files(__package__).joinpath("console", folder, name)
    content_type = TYPES[name.rpartition(".")[2]]

    async def answer() -> Response:
        return Response(await trio.to_thread.run_sync(file.read_bytes), headers=HEADERS, content_type=content_type)

    return answer

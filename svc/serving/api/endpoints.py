"""The table of endpoints, which defines all paths of the API and whether they need a key.

Routing, key checks, the OpenAPI document and the reference page use this table (`ENDPOINTS`). `public` has no default,
so that nobody can forget to decide whether an endpoint needs a key. Each file of the web pages has a row too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import BaseModel

from svc import errors
from svc.asking.page import PageRequest
from svc.asking.requests import (
    ItemSearch,
    PopularQuery,
    RecommendBatch,
    RecommendRequest,
    RelatedBatch,
    RelatedRequest,
    SampleUserQuery,
    UsersRequest,
)
from svc.asking.rerank import RerankRequest
from svc.names import NAME_PATTERN
from svc.serving.api.bodies import responses
from svc.serving.api.endpoint import PARAMETER, Endpoint, Errors, Route
from svc.settings import Settings

SHARED = ("style.css", "icon.svg", "dom.js", "curl.js", "api.js")
CONSOLE = (
    "attempt.js",
    "features.js",
    "figures.js",
    "main.js",
    "narrow.js",
    "picker.js",
    "prometheus.js",
    "ranking.js",
    "recipes.js",
)
REFERENCE = ("reference.css", "reference.js", "snippets.js")
SWAGGER_UI = ("swagger-ui-bundle.js", "swagger-ui.css")
"""Files of Swagger UI, which shows the API reference. swagger_ui/README.md names their origin."""


USERS_VERB = "recommend-users"
BODY: Errors = (errors.BodyTimeout, errors.PayloadTooLargeForRequest, errors.ValidationFailed)
FEATURES: Errors = (errors.FeaturesNotSupported, errors.FeatureValueUnusable, errors.FeatureVectorUnusable)
SHOWN: Errors = (errors.AvailabilityStale, errors.AnswerTooLarge, errors.Overloaded)
USER: Errors = (*SHOWN, *BODY, errors.UnknownUser, errors.NoCandidates, *FEATURES)
SEEDS: Errors = (*SHOWN, *BODY, errors.UnknownSeedItems, errors.NoCandidates, *FEATURES)
AUDIENCE: Errors = (*SHOWN, *BODY, errors.UsersNotServed, errors.UnknownSeedItems, *FEATURES)


def _with_reference(settings: Settings) -> bool:
    return not settings.is_closed


def _with_console(settings: Settings) -> bool:
    return settings.has_console


def _with_pages(settings: Settings) -> bool:
    return _with_console(settings) or _with_reference(settings)


def _verb(verb: str, request: type[BaseModel], response: type[BaseModel], failures: Errors) -> Endpoint:
    return Endpoint(
        name=verb.replace("-", "_"),
        path=f"/v1/recipes/{{name}}:{verb}",
        public=False,
        method="POST",
        summary=request.__doc__ or "",
        request=request,
        response=response,
        errors=failures,
        asks_model=True,
    )


def _page(path: str, is_served: Callable[[Settings], bool]) -> Endpoint:
    """Return the row of a file of the web pages."""
    # Public, because the file contains no data. The page in the browser asks the API, with the user's key.
    return Endpoint(name=f"page {path}", path=path, public=True, is_served=is_served)


def _probe(name: str, path: str, summary: str, response: type[BaseModel] = responses.Status, **more: Any) -> Endpoint:
    path = f"/v1/health{path}"
    return Endpoint(name=name, path=path, public=True, any_host=True, summary=summary, response=response, **more)


def _resource(name: str, path: str, summary: str, response: type[BaseModel], **more: Any) -> Endpoint:
    return Endpoint(name=name, path=f"/v1{path}", public=False, summary=summary, response=response, **more)


PROBES = (
    _probe(
        "health",
        "",
        "The number of loaded recipes. 503 while a recipe has no model.",
        responses.Health,
        unavailable="A recipe has no model.",
    ),
    _probe("live", "/live", "200 while the process answers."),
    _probe(
        "ready",
        "/ready",
        "200 once a recipe is loaded and the server is not draining.",
        unavailable="Nothing is loaded yet, or the server is draining.",
    ),
)
"""Health probes of orchestrators, which the application answers without quart."""

VERBS = (
    _verb("recommend", RecommendRequest, responses.Recommendations, USER),
    _verb("recommend-related", RelatedRequest, responses.Recommendations, SEEDS),
    _verb(USERS_VERB, UsersRequest, responses.Users, AUDIENCE),
    _verb("page", PageRequest, responses.Page, (*SHOWN, *BODY, *FEATURES)),
    _verb("rerank", RerankRequest, responses.Reranked, (*SHOWN, *BODY, *FEATURES)),
    _verb("batch-recommend", RecommendBatch, responses.BatchAnswer, (*SHOWN, *BODY)),
    _verb("batch-recommend-related", RelatedBatch, responses.BatchAnswer, (*SHOWN, *BODY)),
)
"""Recommendation verbs, which `Verbs` answers without quart."""

RESOURCES = (
    _resource(
        "health_details",
        "/health/details",
        "The state of each recipe.",
        responses.HealthDetails,
        unavailable="A recipe has an error, no model, or no current list of available items.",
    ),
    _resource("list_recipes", "/recipes", "All recipes.", responses.RecipeList),
    _resource(
        "describe_recipe",
        "/recipes/{name}",
        "The served model of a recipe: its training, features and filter fields.",
        responses.Recipe,
    ),
    _resource(
        "find_items",
        "/recipes/{name}/items",
        "Search a few items by id or metadata.",
        responses.FoundItems,
        query=ItemSearch,
    ),
    _resource(
        "popular_items",
        "/recipes/{name}/popular",
        "The most chosen items of the training data.",
        responses.PopularItems,
        query=PopularQuery,
        errors=(*SHOWN, errors.NoCandidates),
        under_verb="recommend",
        asks_model=True,
    ),
    _resource(
        "somebody",
        "/recipes/{name}/somebody",
        "A user of the model with a part of their history, to try out a recipe. Needs the console.",
        responses.Somebody,
        query=SampleUserQuery,
        errors=(errors.UnknownUser,),
        is_served=_with_console,
        under_verb="recommend",
    ),
    _resource(
        "versions",
        "/recipes/{name}/versions",
        "The versions of a recipe's model, with training time, score, and the live one. Needs the console.",
        responses.RecipeVersions,
        is_served=_with_console,
    ),
    _resource(
        "metrics",
        "/metrics",
        "Metrics in the Prometheus text format.",
        responses.Status,
        content_type="text/plain",
        is_served=lambda settings: settings.metrics_enabled,
        tells_of_all=True,
    ),
    Endpoint(name="openapi", path="/v1/openapi.json", public=True, is_served=_with_reference),
)

PAGES = (
    _page("/", _with_console),
    _page("/console/server.json", _with_console),
    _page("/v1/docs", _with_reference),
    *(_page(f"/console/{name}", _with_console) for name in CONSOLE),
    *(_page(f"/console/{name}", _with_reference) for name in (*REFERENCE, *SWAGGER_UI)),
    *(_page(f"/console/{name}", _with_pages) for name in SHARED),
)

ENDPOINTS = (*PROBES, *RESOURCES, *VERBS, *PAGES)


class Router:
    """A look-up of paths in the table of endpoints.

    A path must be spelled exactly as in the table. Repeated slashes, dot segments or another case match no endpoint.
    `{name}` matches every valid name of a recipe, even if no such recipe exists.
    """

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._by_path = {row.path: Route(row, "", row.verb) for row in endpoints}
        before = {path.partition(PARAMETER)[0] for path in self._by_path if PARAMETER in path}
        prefixes = "|".join(map(re.escape, sorted(before)))
        self._with_name = re.compile(f"({prefixes})({NAME_PATTERN.strip('^$')})(.*)", re.DOTALL)

    def find(self, path: str) -> Route | None:
        """Return the route of a decoded path, or None if no endpoint has this path."""
        match = self._with_name.fullmatch(path)
        if match is not None:
            route = self._by_path.get(match[1] + PARAMETER + match[3])
            if route is not None:
                return Route(route.row, match[2], route.verb)
        # The mapping has the rows of recipes under `{name}`, which no client may write.
        return None if PARAMETER in path else self._by_path.get(path)


def served_with(settings: Settings) -> list[Endpoint]:
    """Return the rows that a server with these settings routes.

    An endpoint that needs a key is routed even if the settings switch it off. A client without a key then gets the same
    answer in both cases, so it cannot learn the settings.
    """
    return [row for row in ENDPOINTS if not row.public or row.is_served(settings)]

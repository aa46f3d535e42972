"""Serves the files of the web pages, which are public: all data comes over the API, with a key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import resources

import trio
from pydantic_core import to_json
from quart import Response

from svc.serving.api.request.state import ServerState
from svc.serving.api.routing.endpoints import CONSOLE, REFERENCE, SHARED, SWAGGER_UI

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "json": "application/json",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
PATHS = {"index.html": "/", "reference.html": "/v1/docs"}
"""Paths of files that are not served as `/console/<name>`."""

Handler = Callable[..., Awaitable[Response]]


def page_handlers(state: ServerState) -> dict[str, Handler]:
    """Return the handlers by path: one for each file, and one for the facts of this server."""
    answers = {
        PATHS.get(name, f"/console/{name}"): _answer(_read(name), TYPES[name.rpartition(".")[2]])
        for name in (*PATHS, *CONSOLE, *REFERENCE, *SHARED)
    }
    swagger_ui = {f"/console/{name}": _answer_large(name, TYPES[name.rpartition(".")[2]]) for name in SWAGGER_UI}
    return {**answers, **swagger_ui, "/console/server.json": _answer(to_json(_server(state)), TYPES["json"])}


def _server(state: ServerState) -> dict[str, bool]:
    """Return the facts that the console needs before its first API call."""
    return {
        "keys": state.auth.required,
        "metrics": state.settings.metrics_enabled,
        "reference": not state.settings.is_closed,
    }


def _read(name: str) -> bytes:
    return resources.files(__package__).joinpath("static", name).read_bytes()


def _answer_large(name: str, content_type: str) -> Handler:
    """Return the handler of a large file, which is read on each request to save memory."""

    async def answer() -> Response:
        file = resources.files(__package__).joinpath("swagger_ui", name)
        return Response(await trio.to_thread.run_sync(file.read_bytes), headers=HEADERS, content_type=content_type)

    return answer


def _answer(body: bytes, content_type: str) -> Handler:
    async def answer() -> Response:
        return Response(body, headers=HEADERS, content_type=content_type)

    return answer

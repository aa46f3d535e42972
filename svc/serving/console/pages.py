"""Serves the files of the two pages. They are public and hold no data: all data comes over the API, with a key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import resources

from pydantic_core import to_json
from quart import Response
from quart_trio import QuartTrio

from svc.serving.state import ServerState

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
SHARED = ("style.css", "icon.svg", "dom.js")
CONSOLE = (
    "api.js",
    "attempt.js",
    "curl.js",
    "features.js",
    "figures.js",
    "main.js",
    "picker.js",
    "prometheus.js",
    "ranking.js",
    "recipes.js",
)
REFERENCE = ("reference.js",)


def add_pages(app: QuartTrio, state: ServerState) -> None:
    """Add the routes of the console where settings allow it, and of the reference where the OpenAPI document is."""
    has_console, has_reference = state.settings.has_console, not state.settings.is_closed
    if has_console:
        _add(app, "/", "index.html", _read("index.html"))
        _add(app, "/console/server.json", "server.json", to_json(_server(state)))
    if has_reference:
        _add(app, "/v1/docs", "reference.html", _read("reference.html"))
    files = (CONSOLE if has_console else ()) + (REFERENCE if has_reference else ())
    for name in (*files, *SHARED) if files else ():
        _add(app, f"/console/{name}", name, _read(name))


def _server(state: ServerState) -> dict[str, bool]:
    """What the console must know before it may ask for anything."""
    return {
        "keys": state.auth.required,
        "metrics": state.metrics.enabled,
        "reference": not state.settings.is_closed,
    }


def _read(name: str) -> bytes:
    return resources.files(__package__).joinpath("static", name).read_bytes()


def _add(app: QuartTrio, path: str, name: str, body: bytes) -> None:
    app.add_url_rule(path, f"console {name}", _answer(body, TYPES[name.rpartition(".")[2]]), methods=["GET"])


def _answer(body: bytes, content_type: str) -> Callable[[], Awaitable[Response]]:
    async def answer() -> Response:
        return Response(body, headers=HEADERS, content_type=content_type)

    return answer

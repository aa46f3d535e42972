"""The health documents for orchestrators, public and answered without quart.

Quart would add task switches, each of which waits for a turn of the event loop. Turns are longest when the server is
busiest, and then probes must not fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from svc.serving.api.request.state import ServerState

Document = tuple[Mapping[str, Any], int]


def _health(state: ServerState) -> Document:
    return state.registry.health()


def _live(_state: ServerState) -> Document:
    return {"status": "ok"}, 200


def _ready(state: ServerState) -> Document:
    if state.draining:
        return {"status": "draining"}, 503
    return ({"status": "ok"}, 200) if state.registry.ready() else ({"status": "loading"}, 503)


DOCUMENTS: Mapping[str, Callable[[ServerState], Document]] = {"health": _health, "live": _live, "ready": _ready}
"""Functions that return a document and its HTTP status, by the name of the endpoint."""

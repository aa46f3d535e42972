"""The monitoring port (SVC_METRICS_PORT), which serves metrics and health probes without an API key.

Many scrapers of metrics cannot send a key. The metrics contain names of recipes and numbers of requests, so operators
must restrict who can reach the port. The port answers from the start, even while models are still loading.
"""

from __future__ import annotations

import socket

import trio
from pydantic_core import to_json

from svc.errors import ApiError
from svc.serving.api.application import DOCUMENTS
from svc.serving.api.endpoints import PROBES
from svc.serving.api.pages.routes import METRICS_TYPE
from svc.serving.api.request import ServerState
from svc.serving.transport import server
from svc.serving.transport.connection import ConnectionLimits
from svc.serving.transport.messages import Incoming, Opening, Response

TIMEOUT_S = 10.0
LIMITS = ConnectionLimits(idle_s=TIMEOUT_S, unread_s=TIMEOUT_S, drain_s=0)
_PROBES = {row.path: DOCUMENTS[row.name] for row in PROBES}


async def serve_monitoring(state: ServerState, listener: socket.socket) -> None:
    """Answer requests to the monitoring port until cancelled."""
    await server.serve(Monitoring(state), listener, LIMITS, until=trio.sleep_forever)


class Monitoring:
    """The application that answers requests to the monitoring port (`messages.RequestHandler`)."""

    urgent: tuple[bytes, ...] = ()
    is_leaving = True
    """Closes each connection after one request. Scrapes are rare, so idle connections would only use file descriptors.
    """

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self.unsent = state.admission.unsent
        # Scrapers that ask again before an answer wait here instead of taking a thread each.
        self._renderer = trio.CapacityLimiter(1)

    async def __call__(self, incoming: Incoming) -> Response:
        """Return the metrics, or the answer of a health probe. Looks only at method and path.

        Returns status 405 for methods other than GET and HEAD, and 404 for other paths.
        """
        if incoming.head.method not in ("GET", "HEAD"):
            return _text(405, "only GET is answered here")._replace(headers=[(b"allow", b"GET, HEAD")])
        # In Latin-1 each byte is a character, so no target fails.
        path = incoming.head.target.partition(b"?")[0].decode("latin-1")
        if path in ("/v1/metrics", "/metrics"):
            render = self._state.metrics.render
            text = await trio.to_thread.run_sync(render, limiter=self._renderer, abandon_on_cancel=True)
            return Response(200, text, content_type=METRICS_TYPE.encode())
        if path in _PROBES:
            document, status = _PROBES[path](self._state)
            return Response(status, to_json(document))
        return _text(404, "/metrics and the probes are served here")

    def late_s(self, _opening: Opening, _turn_s: float) -> float:
        """Return 0, because this port refuses no request for its wait."""
        return 0.0

    def refuse(self, error: ApiError, _client: str) -> Response:
        """Return the answer to input that is not a valid HTTP request."""
        return _text(error.http_status, error.message)


def _text(status: int, text: str) -> Response:
    return Response(status, f"{text}\n".encode(), content_type=b"text/plain")

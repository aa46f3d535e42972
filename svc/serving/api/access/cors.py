"""Access of web pages of other origins from a browser (CORS)."""

from __future__ import annotations

from svc.serving.transport.messages import Headers
from svc.settings import Settings

PREFLIGHT_AGE_S = 600


class Origins:
    """The origins of web pages that may call from a browser (CORS)."""

    def __init__(self, settings: Settings) -> None:
        self._any = "*" in settings.allowed_origins
        self._allowed = frozenset(origin.encode() for origin in settings.allowed_origins)

    def headers(self, origin: bytes | None) -> Headers:
        """Return the headers that let a page of `origin` read the answer.

        An origin that is not allowed gets none.
        """
        if origin is None or not (self._any or origin in self._allowed):
            return ()
        return [
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", b"Retry-After, traceparent, X-Request-ID, X-Svc-Model-Version"),
            (b"vary", b"Origin"),
        ]


PREFLIGHT_HEADERS: Headers = [
    (b"access-control-allow-methods", b"GET, POST"),
    (
        b"access-control-allow-headers",
        b"Authorization, Content-Type, traceparent, X-API-Key, X-Request-ID, X-Request-Timeout-Ms",
    ),
    (b"access-control-max-age", str(PREFLIGHT_AGE_S).encode()),
]

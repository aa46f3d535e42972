"""Error answers, and the log of unexpected errors."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

from svc import events, logs
from svc.errors import ApiError, InternalError, ValidationFailed, exhaustion
from svc.serving.transport.messages import Headers, Response

TRACEBACKS_A_MINUTE = 10
"""Most tracebacks logged in a minute: without it, many requests with one failure would fill the disk."""

_last_tracebacks: deque[float] = deque(maxlen=TRACEBACKS_A_MINUTE)


def log_failure(error: Exception) -> None:
    """Log an unexpected error.

    The traceback is left out after TRACEBACKS_A_MINUTE. It is also left out if the system cannot start another thread,
    because that may happen to any request.
    """
    now = time.monotonic()
    shown = len(_last_tracebacks) < TRACEBACKS_A_MINUTE or now - _last_tracebacks[0] > 60
    if shown:
        _last_tracebacks.append(now)
    lacks_thread = isinstance(error, RuntimeError) and exhaustion(error) is not None
    traced = error if shown and not lacks_thread else None
    logs.emit(events.REQUEST_FAILED, error=f"{type(error).__name__}: {error}", exc_info=traced)


def failure(request_id: str, error: Exception) -> Response:
    """Return the answer to a failed request. An error other than an ApiError is logged, and its text is not sent."""
    if not isinstance(error, ApiError):
        log_failure(error)
        error = InternalError()
    body: dict[str, Any] = {"request_id": request_id, "detail": error.message, "code": error.code}
    if isinstance(error, ValidationFailed):
        body["errors"] = error.errors
    return Response(error.http_status, to_json(body), _headers(error.fields), ends_connection=error.ends_connection)


def _headers(fields: Mapping[str, Any]) -> Headers:
    """Return the headers of an error: allowed methods, or seconds to wait before the next request."""
    if "allow" in fields:
        return [(b"allow", ", ".join(fields["allow"]).encode())]
    return [(b"retry-after", b"%d" % fields["retry_after"])] if "retry_after" in fields else ()

"""One line for each answer, or for those that are no success: who asked for what, and how it ended."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from svc import events, logs

if TYPE_CHECKING:
    from svc.serving.api.authentication import Authenticator
    from svc.serving.api.endpoints import Route
    from svc.settings import Settings

_SUCCESS = range(200, 300)


class AccessLog:
    """Writes what `SVC_ACCESS_LOG` asks for. Nothing of a path, query or body is written, only what routing made of it.

    Probes that fail are left out: orchestrators repeat them every second, and the events say why.
    """

    def __init__(self, settings: Settings, auth: Authenticator) -> None:
        self.writes = settings.access_log != "off"
        self._all = settings.access_log == "all"
        self._auth = auth

    def note(
        self,
        *,
        began: float,
        method: str,
        status: int,
        client: str,
        route: Route | None,
        key: bytes | None,
        is_summed: bool = False,
    ) -> None:
        """Write the line of one answer. `began` is a value of `time.perf_counter`; the request id is bound already.

        What `is_summed` up by the event `requests_refused` has a line of its own only where all answers have.
        """
        if not self._all and (status in _SUCCESS or is_summed or (route is not None and route.any_host)):
            return
        target = {} if route is None else {"recipe": route.name or None, "verb": route.label(method)}
        logs.emit(
            events.REQUEST_ANSWERED,
            method=method,
            status=status,
            ms=round((time.perf_counter() - began) * 1e3, 2),
            client=client,
            kid=None if key is None else self._auth.kid_of(key),
            **{"recipe": None, "verb": None, **target},
        )

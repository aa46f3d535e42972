"""The access log: one line for each answer, or only for failures.

A line names the client, the recipe, the verb and the status.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from svc import events, logs

if TYPE_CHECKING:
    from svc.serving.api.access.authentication import Authenticator
    from svc.serving.api.routing.endpoint import Route
    from svc.settings import Settings

_SUCCESS = range(200, 300)


class AccessLog:
    """Writer of the lines that `SVC_ACCESS_LOG` asks for.

    Paths, queries and bodies are not written, only the recipe and verb that routing found.

    Failed probes are left out of the log of failures. Orchestrators repeat them every second, and other events say why
    they fail.
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
        """Write the line of one answer.

        `began` is a value of `time.perf_counter`. The request id must be bound already. A refusal that the event
        `requests_refused` sums up (`is_summed`) gets a line only if every answer does.
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

"""The state that all requests of one server process share."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from svc import __version__, events, logs
from svc.errors import ApiError
from svc.metrics import Metrics
from svc.serving.admission import Admission
from svc.serving.api.access.authentication import Authenticator
from svc.serving.api.access.key_policies import KeyPolicies
from svc.serving.api.access.policy_file import PolicyFile
from svc.serving.models.registry import Registry
from svc.serving.models.versions import ReadVersions
from svc.serving.transport.certificate import Tls
from svc.settings import Settings

if TYPE_CHECKING:
    from svc.serving.api.observe.spans import Spans  # needs an extra

REPORT_S = 10.0


class Refusals:
    """Refusals since the last report by code and kid, which is None for refusals without a policy."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str | None]] = Counter()
        self._some = trio.Event()

    def note(self, error: ApiError) -> None:
        """Count one refusal, for the kid in its `fields` if there is one."""
        self._counts[error.code, error.fields.get("kid")] += 1
        self._some.set()

    async def run(self) -> None:
        """Log the totals REPORT_S after the first refusal, again and again until cancelled."""
        while True:
            await self._some.wait()
            began = trio.current_time()
            try:
                await trio.sleep(REPORT_S)
            finally:
                self._report(trio.current_time() - began)

    def _report(self, seconds: float) -> None:
        counts, self._counts = self._counts, Counter()
        self._some = trio.Event()
        for (code, kid), count in counts.items():
            logs.emit(events.REQUESTS_REFUSED, code=code, kid=kid, count=count, seconds=round(seconds, 1))


@dataclass(slots=True)
class ServerState:
    """The shared state of a server process.

    It is created when the server starts, and passed to the application. `draining` is True from the beginning of the
    drain, and `/v1/health/ready` then answers 503.
    """

    registry: Registry
    settings: Settings
    metrics: Metrics
    auth: Authenticator
    draining: bool = False
    spans: Spans | None = None
    policies: KeyPolicies | None = None
    policy_file: PolicyFile | None = None
    refusals: Refusals = field(default_factory=Refusals)
    versions: ReadVersions | None = None
    tls: Tls | None = None
    version: str = __version__
    admission: Admission = field(init=False)

    def __post_init__(self) -> None:
        self.admission = Admission(self.settings.max_queue_s)

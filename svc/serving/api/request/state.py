"""The state that all requests of one server process share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from svc import __version__
from svc.metrics import Metrics
from svc.serving.admission import Admission
from svc.serving.api.access.authentication import Authenticator
from svc.serving.api.access.key_policies import KeyPolicies
from svc.serving.api.access.policy_file import PolicyFile
from svc.serving.api.access.refusals import Refusals
from svc.serving.models.registry import Registry
from svc.serving.models.versions import ReadVersions
from svc.serving.transport.certificate import Tls
from svc.settings import Settings

if TYPE_CHECKING:
    from svc.serving.api.observe.spans import Spans  # needs an extra


@dataclass(slots=True)
class ServerState:
    """The shared state of a server process.

    The server's start makes it once and passes it to the application. `draining` is True from the beginning of the
    drain. From then on `/v1/health/ready` answers 503.
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

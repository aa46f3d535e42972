"""What the connections of one server share, whichever version of HTTP they speak."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import trio

from svc.serving.transport.messages import Application
from svc.serving.transport.pacing import Turnstile


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds: for a head to come, for an answer to be taken (and for each MiB one more), and for a drain."""

    idle_s: float
    unread_s: float
    drain_s: float


@dataclass(slots=True)
class Shared:
    """What the connections of one server share. `ending` is set once the server accepts no more requests."""

    application: Application
    limits: Limits
    turns: Turnstile
    ending: bool = False
    idle: set[trio.CancelScope] = field(default_factory=set)
    """Connections that wait for a request: cancelling one makes it look for what has come a last time, and end."""

    @contextmanager
    def waiting(self, scope: trio.CancelScope) -> Iterator[None]:
        self.idle.add(scope)
        if self.ending:
            scope.cancel()
        try:
            yield
        finally:
            self.idle.discard(scope)

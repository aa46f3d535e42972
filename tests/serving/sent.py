"""A request in memory, in the form that a connection passes to the application."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import trio

from svc.serving.transport.messages import ClientGone, Head, Headers


@dataclass
class Sent:
    """An implementation of `messages.Incoming`. The body comes in `parts`, unless `whole_body` came with the head."""

    method: str
    target: bytes
    headers: Headers = ()
    parts: Iterable[bytes] = ()
    client: str = "127.0.0.1"
    whole_body: bytes | None = None
    arrived_s: float = 0.0
    """Time of arrival in trio's time. Virtual time begins at 0."""

    late_s: float = 0.0
    pause_s: float = 0.0
    """Pause before each part, and before the end of the body."""

    leaves_s: float = math.inf
    """Seconds until `until_gone` returns."""

    breaks_off: bool = False
    """True if the client disconnects before the end of the body."""

    taken: int = field(default=0, init=False)
    """Number of received parts."""

    kids: list[str] = field(default_factory=list, init=False)
    """Ids of accepted keys that the application noted."""

    def __post_init__(self) -> None:
        self.head = Head(self.method, self.target, self.headers)
        self._rest = iter(self.parts)

    def note_kid(self, kid: str) -> None:
        self.kids.append(kid)

    async def receive(self) -> bytes:
        await trio.sleep(self.pause_s)
        part = next(self._rest, None)
        if part is None and self.breaks_off:
            raise ClientGone
        self.taken += part is not None
        return part or b""

    async def until_gone(self) -> None:
        await trio.sleep(self.leaves_s)

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
    """In trio's time; 0 is the beginning of virtual time."""

    late_s: float = 0.0
    pause_s: float = 0.0
    """Before each part, and before the end of the body."""

    leaves_s: float = math.inf
    """After so long the client has left, for whoever waits for that."""

    breaks_off: bool = False
    """Whether the client leaves where the body would end."""

    taken: int = field(default=0, init=False)
    """Parts that have been received."""

    def __post_init__(self) -> None:
        self.head = Head(self.method, self.target, self.headers)
        self._rest = iter(self.parts)

    async def receive(self) -> bytes:
        await trio.sleep(self.pause_s)
        part = next(self._rest, None)
        if part is None and self.breaks_off:
            raise ClientGone
        self.taken += part is not None
        return part or b""

    async def until_gone(self) -> None:
        await trio.sleep(self.leaves_s)

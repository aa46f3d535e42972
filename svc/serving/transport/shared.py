"""State that the connections of one server share."""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile

import trio

from svc.serving.transport.http1 import Heads
from svc.serving.transport.messages import Application
from svc.serving.transport.pacing import TurnScheduler
from svc.serving.transport.spread import Spread

READ_BYTES = 1 << 16
PRECISION_S = 0.1
"""An idle connection may live this much longer."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds: for a head to come, for an answer to be taken (and for each MiB one more), and for a drain."""

    idle_s: float
    unread_s: float
    drain_s: float


@dataclass(slots=True)
class Shared:
    """The state that connections share. `ending` is set once the server accepts no more requests."""

    application: Application
    limits: Limits
    turns: TurnScheduler
    spread: Spread
    ending: bool = False
    heads: Heads = field(default_factory=Heads)
    idle: dict[socket.socket, float] = field(default_factory=dict)
    """Connections that wait for a request, and since when, the longest first.

    One task watches them all: a deadline for each would cost as much as parsing its request. Whose time is over is
    woken from `wait_readable` by ClosedResourceError.
    """

    async def watch(self) -> None:
        """Wake idle connections when their time is over, until cancelled."""
        while True:
            now, idle_s = trio.current_time(), self.limits.idle_s
            for connected in self._waiting_since(now - idle_s):
                trio.lowlevel.notify_closing(connected)
            oldest = next(iter(self.idle.values()), now)
            await trio.sleep_until(max(oldest + idle_s, now + PRECISION_S))

    def _waiting_since(self, time_s: float) -> list[socket.socket]:
        """Return the connections that have waited since then, or for longer."""
        return [connected for connected, _ in takewhile(lambda entry: entry[1] <= time_s, self.idle.items())]


async def next_bytes(connected: socket.socket) -> bytes:
    """Return the next bytes, or no bytes at the end.

    The kernel may announce bytes and then have none, so reading is tried again.
    """
    while True:
        await trio.lowlevel.wait_readable(connected)
        with suppress(BlockingIOError):
            return connected.recv(READ_BYTES)

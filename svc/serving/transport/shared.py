"""State that the connections of one server share, and the balance with other processes on the same listener.

A process with more connections accepts later.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile

import trio

from svc.serving.transport.http1 import Heads
from svc.serving.transport.messages import Application
from svc.serving.transport.pacing import TurnScheduler

PATIENCE_S = 0.002
"""Longest time that a process waits for others to accept first.

It waits in turns of the event loop: a sleep takes at least a millisecond, which costs three quarters of the rate of
short connections."""
VACANT = 1 << 62
"""Count for a slot without a process, so that no process waits for it."""


class Spread:
    """The number of open connections of one process, in its slot of a shared memory. Only this process writes there."""

    def __init__(self, counts: memoryview[int], slot: int = 0) -> None:
        self._counts = counts
        self._slot = slot
        self._n_open = 0

    @classmethod
    def alone(cls) -> Spread:
        """Return the spread of a process that does not share its listener."""
        return cls(memoryview(bytearray(8)).cast("Q"))

    @property
    def is_shared(self) -> bool:
        return len(self._counts) > 1

    def show(self) -> None:
        """Write the count, also over a VACANT that was written while this process looked dead."""
        self._counts[self._slot] = self._n_open

    def count_opened(self) -> None:
        """Count a connection that was accepted."""
        self._n_open += 1
        self.show()

    def count_closed(self) -> None:
        """Count a connection that has ended."""
        self._n_open -= 1
        self.show()

    async def wait_for_others(self) -> None:
        """Return when no other process has fewer connections, or after PATIENCE_S."""
        until_s = time.perf_counter() + PATIENCE_S
        while self._n_open > min(self._counts) and time.perf_counter() < until_s:
            await trio.lowlevel.checkpoint()


READ_BYTES = 1 << 16
PRECISION_S = 0.1
"""An idle connection may stay open this much longer than its limit."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits in seconds: until the next head arrives, until the client reads an answer, and for a drain.

    Large answers get a second more for each MiB.
    """

    idle_s: float
    unread_s: float
    drain_s: float


@dataclass(slots=True)
class Shared:
    """State that connections share. `ending` is set when the server stops taking requests."""

    application: Application
    limits: Limits
    turns: TurnScheduler
    spread: Spread
    ending: bool = False
    heads: Heads = field(default_factory=Heads)
    idle: dict[socket.socket, float] = field(default_factory=dict)
    """Idle connections with the time since when, longest first.

    One task watches them all: a deadline for each would cost as much as parsing its request. A connection that was idle
    too long gets ClosedResourceError from `wait_readable`.
    """

    async def watch(self) -> None:
        """Wake connections that were idle too long, until cancelled."""
        while True:
            now, idle_s = trio.current_time(), self.limits.idle_s
            for connected in self._waiting_since(now - idle_s):
                trio.lowlevel.notify_closing(connected)
            oldest = next(iter(self.idle.values()), now)
            await trio.sleep_until(max(oldest + idle_s, now + PRECISION_S))

    def _waiting_since(self, time_s: float) -> list[socket.socket]:
        """Return the connections that have been idle since `time_s` or longer."""
        return [connected for connected, _ in takewhile(lambda entry: entry[1] <= time_s, self.idle.items())]


async def next_bytes(connected: socket.socket) -> bytes:
    """Return the next bytes, or no bytes at the end.

    Reads again if the kernel announces bytes and then has none.
    """
    while True:
        await trio.lowlevel.wait_readable(connected)
        with suppress(BlockingIOError):
            return connected.recv(READ_BYTES)

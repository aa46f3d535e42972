"""SIGTERM and SIGINT: the first one begins the drain, a second one ends the process at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(slots=True)
class Stop:
    """The stop of the server, which the first signal sets.

    `reason` is the name of that signal, `since` its time on trio's clock.
    """

    event: trio.Event = field(default_factory=trio.Event)
    reason: str = ""
    since: float = 0.0

    def set(self, reason: str) -> None:
        if not self.event.is_set():
            self.reason, self.since = reason, trio.current_time()
            self.event.set()


async def run_until(over: Callable[[], Awaitable[None]], work: Callable[[], Awaitable[None]]) -> None:
    """Run `work()` to its end, or cancel it when `over()` returns first."""
    async with trio.open_nursery() as nursery:

        async def cancel() -> None:
            await over()
            nursery.cancel_scope.cancel()

        nursery.start_soon(cancel)
        await work()
        nursery.cancel_scope.cancel()


async def listen(
    stop: Stop, end_at_once: Callable[[], None], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Set `stop` on the first signal and call `end_at_once()` on the second.

    Reports started once the handlers are set.
    """
    with trio.open_signal_receiver(*SIGNALS) as arriving:
        task_status.started()
        async for number in arriving:
            if stop.event.is_set():
                end_at_once()
            stop.set(signal.Signals(number).name)


async def on_hangup(work: Callable[[], Awaitable[None]]) -> None:
    """Run `work` at every SIGHUP, unless the process was started with that signal ignored, as by nohup."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return
    with trio.open_signal_receiver(signal.SIGHUP) as arriving:
        async for _ in arriving:
            await work()


def exit_now() -> None:
    """End the process without unwinding, since hanging threads would block a regular exit."""
    os._exit(0)

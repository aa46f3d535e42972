"""Setup of every process that answers requests, its signals, and the last steps before it ends.

The first SIGTERM or SIGINT begins the drain. A second one ends the process at once.
"""

from __future__ import annotations

import gc
import math
import os
import resource
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import trio

from svc import install_command
from svc.cores import limit_blas_threads
from svc.errors import ConfigError
from svc.late_imports import import_late
from svc.serving.models.threads import SWITCH_INTERVAL_S
from svc.serving.transport.connection import ConnectionLimits
from svc.settings import Settings

if TYPE_CHECKING:
    from svc.serving.api.spans import Spans


FULL_COLLECTION_EVERY = 100
"""Garbage collections of generation 1 for each collection of generation 2.

Python's default is 10. A collection of generation 2 blocks the event loop for 0.2 s with 10,000 connections."""
LEAVE_TAKING_S = 0.2
"""Time that idle connections stay open in a drain, for requests just sent (`ConnectionLimits.leave_s`)."""
LAST_SPANS_S = 2.0


def tune() -> None:
    """Adapt interpreter, garbage collector, BLAS and the limit of open files to serving.

    BLAS gets one thread for each call, and the process may open as many files as the system permits.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)  # lets the event loop run soon after a scoring thread has taken the GIL
    gc.set_threshold(*gc.get_threshold()[:2], FULL_COLLECTION_EVERY)
    limit_blas_threads(1)
    # Each connection takes a descriptor, and the usual soft limit is 1,024.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def spans() -> Spans:
    """Return the tracer, which makes and exports OpenTelemetry spans. Raises ConfigError without OpenTelemetry."""
    try:
        spans = import_late("svc.serving.api.spans")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise ConfigError(f"SVC_OTEL_ENABLED=1 needs OpenTelemetry's SDK: {install_command('otel')}") from None
    return cast("Spans", spans.create())


def notify_ready(environ: Mapping[str, str]) -> None:
    """Tell systemd that the server answers, if systemd started the server with `Type=notify`."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # systemd's notation for an abstract socket, whose address begins with a zero byte
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:  # systemd may have closed it
        end.sendto(b"READY=1", address)


async def close_spans(spans: Spans) -> None:
    """Send the remaining spans, or give up after LAST_SPANS_S."""
    # A collector that hangs is abandoned, because its thread cannot be cancelled.
    with trio.move_on_after(LAST_SPANS_S), suppress(RuntimeError):  # raised if the system cannot start a thread
        await trio.to_thread.run_sync(spans.close, abandon_on_cancel=True)


def limits(settings: Settings) -> ConnectionLimits:
    """Return the time limits of client connections from the settings."""
    drain_s = settings.drain_s
    refuse_s = settings.max_queue_s / 3 or math.inf  # a request may have waited before its refusal was decided
    leave_s = min(LEAVE_TAKING_S, drain_s)
    return ConnectionLimits(settings.keep_alive_s, settings.client_timeout_s, drain_s, leave_s, refuse_s)


def unwrap_single(error: BaseException) -> BaseException:
    """Return the only error in nested exception groups, or the outermost group that has several errors.

    Any other error is returned unchanged.
    """
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(slots=True)
class Stop:
    """The event that stops the server. The first signal sets it."""

    event: trio.Event = field(default_factory=trio.Event)
    reason: str = ""
    """Name of the first signal."""
    since: float = 0.0
    """Time of the first signal on trio's clock."""

    def set(self, reason: str) -> None:
        """Stop the server. Later calls change neither reason nor time."""
        if not self.event.is_set():
            self.reason, self.since = reason, trio.current_time()
            self.event.set()


async def listen(
    stop: Stop, end_at_once: Callable[[], None], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Set `stop` on the first SIGTERM or SIGINT, and call `end_at_once()` on each further one.

    Calls `task_status.started()` once both kinds of signals are received here.
    """
    with trio.open_signal_receiver(*SIGNALS) as arriving:
        task_status.started()
        async for number in arriving:
            if stop.event.is_set():
                end_at_once()
            stop.set(signal.Signals(number).name)


async def on_hangup(work: Callable[[], Awaitable[None]]) -> None:
    """Run `work` at every SIGHUP, until cancelled. Returns at once if the process ignores SIGHUP.

    Several signals during one `work` count as one.
    """
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup starts processes with SIGHUP ignored
        return
    with trio.open_signal_receiver(signal.SIGHUP) as arriving:
        async for _ in arriving:
            await work()


def exit_now() -> None:
    """End the process at once. A regular exit would wait for threads, which may hang."""
    os._exit(0)

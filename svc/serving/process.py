"""What every process that answers requests does at its start, and how it leaves."""

from __future__ import annotations

import gc
import resource
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from svc import install_command
from svc.errors import ConfigError
from svc.model.threads import limit_blas_threads
from svc.serving.models.threads import SWITCH_INTERVAL_S
from svc.serving.transport.shared import Limits
from svc.settings import Settings

if TYPE_CHECKING:
    from svc.serving.api.observe.spans import Spans

FULL_COLLECTION_EVERY = 100
"""Collections of the middle generation between two full ones: a full one blocks the loop for 0.2 s with 10,000
connections.
"""
LEAVE_TAKING_S = 0.2
LAST_SPANS_S = 2.0


def tune() -> None:
    """Short interpreter switches, rare full collections, one BLAS thread per operation, and all file descriptors."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(*gc.get_threshold()[:2], FULL_COLLECTION_EVERY)
    limit_blas_threads(1)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def spans() -> Spans:
    """Return the maker and exporter of spans. Raises ConfigError."""
    try:
        from svc.serving.api.observe import spans
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise ConfigError(f"SVC_OTEL_ENABLED=1 needs OpenTelemetry's SDK: {install_command('otel')}") from None
    return spans.create()


def notify_ready(environ: Mapping[str, str]) -> None:
    """Tell systemd that the server answers, if it started the server with `Type=notify`."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # a socket without a file
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:  # a shell inherits old addresses
        end.sendto(b"READY=1", address)


async def close_spans(spans: Spans) -> None:
    """Send the spans that are left, or give up after LAST_SPANS_S."""
    with trio.move_on_after(LAST_SPANS_S), suppress(RuntimeError):  # there may be no thread left to send them
        await trio.to_thread.run_sync(spans.close, abandon_on_cancel=True)


def limits(settings: Settings) -> Limits:
    """Return the limits of clients' connections."""
    return Limits(
        idle_s=settings.keep_alive_s,
        unread_s=settings.client_timeout_s,
        drain_s=settings.drain_s,
    )


def leave_s(settings: Settings) -> float:
    """Return the seconds from the signal to the end of idle connections.

    Closing them at once would cut off requests that are on their way.
    """
    return min(LEAVE_TAKING_S, settings.drain_s)


def single(error: BaseException) -> BaseException:
    """The one error that a group of nurseries is about, or the group when it is about several."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error

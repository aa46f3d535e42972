"""A listening socket on which the n-th accept, send or receive fails as in a kernel."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable
from typing import Any

from tests.faults.failing_calls import Failure

SOCKET_KINDS: dict[str, tuple[Failure, ...]] = {
    "accept": (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EAGAIN, errno.ECONNABORTED),
    "receive": (errno.EAGAIN, errno.ECONNRESET, errno.ETIMEDOUT, "short"),
    "send": (errno.EAGAIN, errno.ECONNRESET, errno.EPIPE, errno.ENOBUFS, "short"),
}
"""The errors of each kind of call. EINTR is missing, because Python itself repeats the call."""
PASSING: frozenset[Failure] = frozenset({errno.EAGAIN, "short"})
"""Failures that clients must not notice."""


class FailingListener:
    """A listener whose call `nth` of `kind` fails with `failure`. `open` are the connections that are not closed."""

    def __init__(self, listener: socket.socket, kind: str, failure: Failure, nth: int) -> None:
        self._listener = listener
        self._kind, self._failure, self._nth = kind, failure, nth
        self.counts = True
        self.made = 0
        self.open: set[FailingSocket] = set()

    @property
    def failed(self) -> bool:
        return 0 < self._nth <= self.made

    def count(self, kind: str) -> bool:
        """Count a call. Return True if it must move fewer bytes. Raises the error of the n-th call."""
        if kind != self._kind or not self.counts:
            return False
        self.made += 1
        is_hit = self.made == self._nth
        if is_hit and isinstance(self._failure, int):
            raise OSError(self._failure, os.strerror(self._failure))
        return is_hit

    def __enter__(self) -> object:
        return self._listener.__enter__()

    def __exit__(self, *error: object) -> None:
        self._listener.__exit__(*error)

    def fileno(self) -> int:
        return self._listener.fileno()

    def setblocking(self, flag: bool, /) -> None:
        self._listener.setblocking(flag)

    def accept(self) -> tuple[socket.socket, Any]:
        self.count("accept")
        connected, address = self._listener.accept()
        failing = FailingSocket(fileno=connected.detach())
        failing.calls = self
        self.open.add(failing)
        return failing, address


class FailingSocket(socket.socket):
    """A connection whose calls are counted."""

    calls: FailingListener

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        return super().recv(1 if self.calls.count("receive") else size, flags)

    def send(self, data: Any, flags: int = 0, /) -> int:
        return super().send(data[:1] if self.calls.count("send") else data, flags)

    def sendmsg(self, parts: Iterable[Any], *rest: Any) -> int:
        is_short = self.calls.count("send")
        pieces = list(parts)
        return super().send(pieces[0][:1]) if is_short else super().sendmsg(pieces, *rest)

    def close(self) -> None:
        self.calls.open.discard(self)
        super().close()

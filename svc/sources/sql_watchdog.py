"""Ends a connection if its server stopped sending, because the driver itself would wait forever."""

from __future__ import annotations

import socket
from contextlib import suppress
from os import dup
from threading import Event, Thread


class Watchdog:
    """A watchdog that shuts down the socket given to `over` if `reset` was not called for `limit_s`.

    `ended_it` is then True. The driver, which waits in another thread, then sees a lost connection.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.ended_it = False
        self._activity = Event()
        self._stopped = False
        self._thread: Thread | None = None

    def over(self, descriptor: int) -> None:
        """Start to watch a connected socket. The caller keeps its ownership."""
        self._thread = Thread(target=self._watch, args=(socket.socket(fileno=dup(descriptor)),), daemon=True)
        self._thread.start()

    def reset(self) -> None:
        """Restart the time limit, because rows arrived."""
        self._activity.set()

    def stop(self) -> None:
        """Stop watching without shutting down the socket."""
        self._stopped = True
        self._activity.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self, connection: socket.socket) -> None:
        with connection:
            while self._activity.wait(self.limit_s):
                if self._stopped:
                    return
                self._activity.clear()
            self.ended_it = True
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

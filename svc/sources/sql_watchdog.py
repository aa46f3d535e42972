"""Ends a connection whose server has fallen silent, where the driver itself would wait for ever."""

from __future__ import annotations

import socket
from contextlib import suppress
from os import dup
from threading import Event, Thread


class Watchdog:
    """Shuts the socket that it is set `over` once nothing was `heard` for `limit_s`; `ended_it` says so.

    The driver, waiting in another thread, then sees a lost connection.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.ended_it = False
        self._news = Event()
        self._stopped = False
        self._thread: Thread | None = None

    def over(self, descriptor: int) -> None:
        """Begin to watch a connected socket, which stays its owner's."""
        self._thread = Thread(target=self._watch, args=(socket.socket(fileno=dup(descriptor)),), daemon=True)
        self._thread.start()

    def heard(self) -> None:
        self._news.set()

    def stop(self) -> None:
        """End watching; nothing is shut afterwards."""
        self._stopped = True
        self._news.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self, connection: socket.socket) -> None:
        with connection:
            while self._news.wait(self.limit_s):
                if self._stopped:
                    return
                self._news.clear()
            self.ended_it = True
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

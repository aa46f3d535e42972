"""Where clients come in: a few in each turn of the event loop, who cost a socket and no task until they say something.

Whoever opens thousands of connections keeps nobody waiting that way, neither by opening nor by holding them.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress

import trio

from svc import events, logs
from svc.serving.bind import BACKLOG
from svc.serving.reception import Desk, Reception

ACCEPTED_A_TURN, ACCEPTED_IN_A_CROWD = 8, 1
"""The latter while many newcomers have spoken and wait: who comes faster than that stays in the kernel's queue."""
PAUSE_S = 0.1
"""After a connection could not be accepted, as when there are too many open files."""
CLOSED_A_TURN = 100

Begin = Callable[[trio.SocketStream, Desk], None]


class Entrance:
    """Accepts from `listener`. `begin` is told of each connection with its first bytes, which its desk still has.

    One that says nothing for `silence_s` is closed.
    """

    def __init__(self, listener: socket.socket, reception: Reception, begin: Begin, silence_s: float) -> None:
        self._listener = listener
        self._reception = reception
        self._begin = begin
        self._silence_s = silence_s
        self._silent: dict[Desk, tuple[socket.socket, float]] = {}  # with their deadlines, the first one first
        self._failing = False

    async def run(self) -> None:
        """Accept until cancelled."""
        self._listener.setblocking(False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end_silence)
            while True:
                await trio.lowlevel.wait_readable(self._listener)
                try:
                    self._accept(ACCEPTED_IN_A_CROWD if self._reception.crowded else ACCEPTED_A_TURN)
                    self._failing = False
                except OSError as error:
                    if not self._failing:
                        logs.emit(events.CONNECTION_FAILED, error=f"{type(error).__name__}: {error}")
                    self._failing = True
                    await trio.sleep(PAUSE_S)

    def let_all_in(self) -> None:
        """Accept whoever waits in the kernel's queue, which resets them when the listener is closed."""
        with suppress(OSError):
            self._accept(BACKLOG)

    async def close(self) -> None:
        """Close what has said nothing yet."""
        while self._silent:
            for desk in list(self._silent)[:CLOSED_A_TURN]:
                self._leave(desk)
            await trio.lowlevel.checkpoint()

    def _accept(self, most: int) -> None:
        """Raises OSError when the machine can have no more connections."""
        for _ in range(most):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionError:  # it has left already
                continue
            connection.setblocking(False)
            desk = Desk(self._reception, connection.fileno())
            desk.expect(self._speaks)
            self._silent[desk] = connection, trio.current_time() + self._silence_s

    def _speaks(self, desk: Desk) -> None:
        if isinstance(desk.outcome, bytes) and desk.outcome:
            connection, _ = self._silent.pop(desk)
            self._begin(trio.SocketStream(trio.socket.from_stdlib_socket(connection)), desk)
        else:
            self._leave(desk)

    def _leave(self, desk: Desk) -> None:
        connection, _ = self._silent.pop(desk)
        desk.close()
        connection.close()

    async def _end_silence(self) -> None:
        while True:
            now = trio.current_time()
            first = next(iter(self._silent), None)
            ends = now + self._silence_s if first is None else self._silent[first][1]
            if first is not None and ends <= now:
                self._leave(first)
            else:
                await trio.sleep_until(ends)

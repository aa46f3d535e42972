"""One task reads for all connections and hands over what came: probes first, the rest a few at a time.

Trio lets all tasks go on that can, in any order, before it looks at its sockets again. When many clients speak at one
moment, a health probe would wait for all of them in each turn that its answer takes. So turns are kept short where
work begins: what has come is read early, which is cheap, and parsed in its time, which is not.
"""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Callable

import trio

PROBE = b"GET /v1/health"
PROBES_A_TURN = 2
"""Further ones wait for the next turn: a flood of probes must not keep out those who work with the server."""
FEWEST_A_TURN, MOST_A_TURN = 2, 32
"""Others than probes. After a turn of so many that was shorter than SHORT_TURN_S one more, after a longer one half.
Who has been answered goes before newcomers, and both before who goes on and on; of each that waits at least one."""
SHORT_TURN_S = 0.7e-3
SPOKEN_IN_ONE_GO = 2
"""A head and a body. Who speaks more often before there is an answer sends much, or little by little."""
ANSWERING_TURNS = 5
"""So many from the handing over of a request to its answer, if that is quick. A probe has the fewest others in them."""
READ_BYTES = 1 << 16
READING_S = 1e-3
"""How long one turn may read. Each reading lets go of the interpreter, and a busy thread gives it back late."""
POLLED = 1024
CROWD = 64
_WANTED = select.EPOLLIN | select.EPOLLONESHOT


class Desk:
    """Where one connection waits for its bytes, one reader at a time. Closed before its socket is."""

    __slots__ = ("_closed", "_fd", "_first", "_most", "_reader", "_reception", "_spoken", "outcome")

    def __init__(self, reception: Reception, fd: int) -> None:
        self._reception = reception
        self._fd = fd
        self._closed = False
        self._most = READ_BYTES
        self._spoken = 0
        self._reader: trio.lowlevel.Task | None = None
        self._first: Callable[[Desk], None] | None = None
        self.outcome: bytes | Exception | None = None
        """What was read and not taken yet."""

    @property
    def is_new(self) -> bool:
        """True until its first bytes are handed over."""
        return self._first is not None

    @property
    def goes_on(self) -> bool:
        """True while more has been handed over since the last answer than a request usually takes."""
        return self._spoken >= SPOKEN_IN_ONE_GO

    def answered(self) -> None:
        """Something was sent: the next that comes is taken for a request."""
        self._spoken = 0

    @property
    def awaited(self) -> bool:
        return self._reader is not None or self.is_new

    def expect(self, first: Callable[[Desk], None]) -> None:
        """Call `first` when something has come, which stays here for the first reader: bytes, the end, or an error."""
        self._first = first
        self._reception.watch(self, self._fd)

    async def receive(self, most: int | None = None) -> bytes:
        """The next bytes, at most `most`; none at the end. What was read for a cancelled caller is for the next one.

        Raises BrokenResourceError, ClosedResourceError, BusyResourceError, and OSError when it cannot be watched.
        """
        if self.outcome is None and not self._closed:
            await self._wait(most or READ_BYTES)
        else:
            await trio.lowlevel.checkpoint()
        if self._closed:
            raise trio.ClosedResourceError("this connection was closed")
        outcome, self.outcome = self.outcome, None
        if isinstance(outcome, Exception):
            raise trio.BrokenResourceError(f"the connection broke: {outcome}") from outcome
        assert outcome is not None, "a reader is woken for something"
        return outcome

    async def _wait(self, most: int) -> None:
        if self._reader is not None:
            raise trio.BusyResourceError("another task receives from this connection")
        self._most = most
        self._reception.watch(self, self._fd)
        self._reader = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            self._reader = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def read(self) -> None:
        """Read what is there, if anything is."""
        try:
            self.outcome = os.read(self._fd, self._most)
        except BlockingIOError:
            self._reception.watch(self, self._fd)
        except (OSError, MemoryError) as error:
            self.outcome = error

    def wake(self) -> None:
        """Let the reader take what there is. One that was cancelled may have come back and wait for something else."""
        self._spoken += 1
        if self._first is not None:
            first, self._first = self._first, None
            first(self)
        elif self._reader is not None and (self._closed or self.outcome is not None):
            trio.lowlevel.reschedule(self._reader)
            self._reader = None

    def close(self) -> None:
        """Watch no more, and tell whoever waits."""
        self._closed = True
        self._first = None
        self._reception.forget(self, self._fd)
        self.wake()


class Reception:
    """Reads for all connections of a server while `run()` runs."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._desks: dict[int, Desk] = {}
        self._ready: deque[int] = deque()
        self._probes: deque[Desk] = deque()
        self._known: deque[Desk] = deque()
        self._newcomers: deque[Desk] = deque()
        self._going_on: deque[Desk] = deque()
        self._share = FEWEST_A_TURN
        self._handed = 0
        self._probe_turns = 0

    @property
    def crowded(self) -> bool:
        """True while many newcomers wait to be handed over."""
        return len(self._newcomers) >= CROWD

    @property
    def _waiting(self) -> bool:
        return bool(self._ready or self._probes or self._known or self._newcomers or self._going_on)

    def watch(self, desk: Desk, fd: int) -> None:
        """Read once for `desk`, as soon as there is something to read."""
        if self._desks.get(fd) is desk:
            self._epoll.modify(fd, _WANTED)
        else:
            self._epoll.register(fd, _WANTED)
            self._desks[fd] = desk

    def forget(self, desk: Desk, fd: int) -> None:
        """Read no more for `desk`, whose socket is about to be closed. Later its number may be another one's."""
        if self._desks.get(fd) is not desk:
            return
        del self._desks[fd]
        if not self._epoll.closed:
            self._epoll.unregister(fd)

    async def run(self) -> None:
        """Read and hand over until cancelled."""
        with self._epoll:
            while True:
                if self._waiting:
                    await self._let_others_work()
                else:
                    await trio.lowlevel.wait_readable(self._epoll.fileno())
                self._read()
                self._hand_over()

    async def calm(self) -> None:
        """Return when nothing that has come waits here or is new to its reader."""
        turns = 0
        while turns < ANSWERING_TURNS:
            await trio.lowlevel.checkpoint()
            turns = 0 if self._waiting else turns + 1

    async def _let_others_work(self) -> None:
        """One turn, after which the share of the next one is known."""
        began = time.perf_counter()
        await trio.lowlevel.checkpoint()
        if time.perf_counter() - began >= SHORT_TURN_S:
            self._share = max(self._share // 2, FEWEST_A_TURN)
        elif self._handed >= self._share:
            self._share = min(self._share + 1, MOST_A_TURN)

    def _read(self) -> None:
        """Read from the sockets that have something: from all of them, unless that takes long."""
        self._ready.extend(fd for fd, _ in self._epoll.poll(0, POLLED))
        ends = time.perf_counter() + READING_S
        while self._ready:
            desk = self._desks.get(self._ready.popleft())
            if desk is not None and desk.awaited:
                desk.read()
                self._queue(desk)
            if time.perf_counter() > ends:
                return

    def _queue(self, desk: Desk) -> None:
        if isinstance(desk.outcome, bytes) and desk.outcome.startswith(PROBE):
            self._probes.append(desk)
        elif desk.outcome is not None:
            self._queue_of(desk).append(desk)

    def _queue_of(self, desk: Desk) -> deque[Desk]:
        if desk.is_new:
            return self._newcomers
        return self._going_on if desk.goes_on else self._known

    def _hand_over(self) -> None:
        self._probe_turns = ANSWERING_TURNS if self._probes else max(self._probe_turns - 1, 0)
        share = FEWEST_A_TURN if self._probe_turns else self._share
        _wake(self._probes, PROBES_A_TURN)
        self._handed = 0
        queues = [queue for queue in (self._known, self._newcomers, self._going_on) if queue]
        for behind, queue in zip(reversed(range(len(queues))), queues, strict=True):
            self._handed += _wake(queue, max(share - self._handed - behind, 1))


def _wake(queue: deque[Desk], most: int) -> int:
    """Let the first ones take what they have; how many they were."""
    count = min(most, len(queue))
    for _ in range(count):
        queue.popleft().wake()
    return count

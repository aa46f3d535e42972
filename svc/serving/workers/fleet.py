"""The parent's side: it keeps its workers alive, and tells each what all have to know.

Orders to a worker are numbered, and it says when each is done. A swap is two of them: `model`, which only prepares, and
`entry`, which makes all answer from it; `settled` returns when every worker that answers has done what it was told.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import trio

from svc import events, logs
from svc.processes.lifetime import adopt_orphans
from svc.processes.memory import SealedMemory, SharedPage
from svc.serving.models.lanes import Lane
from svc.serving.models.loader import Loaded
from svc.serving.transport.spread import VACANT
from svc.serving.workers import channel, counters
from svc.serving.workers.counters import PAGE_BYTES, Counts, WorkerPage
from svc.serving.workers.mirror import MirroringRegistry, RemoteLane, WorkersState, orders_of
from svc.serving.workers.package import Package, Shared
from svc.serving.workers.rates import CELLS_BYTES, KeyCells
from svc.serving.workers.restarts import BEAT_S, Pauses, Pulse
from svc.serving.workers.template import KeptTemplate, environment

ASKED_AT_ONCE = 8
"""Questions of one worker that are answered at the same time; further ones wait."""
PAUSE_S = 0.1
Answer = Callable[[str, str], Awaitable[Any]]
"""What the parent knows: `what` is asked about the recipe `name`."""
Order = tuple[int, tuple[Any, ...], tuple[SealedMemory, ...]]
"""Its number, the message, and the files that go along."""


@dataclass(slots=True, eq=False)
class Worker:
    """One running worker, as its parent sees it."""

    slot: int
    pid: int
    handle: int
    control: socket.socket
    page: WorkerPage
    orders: trio.MemorySendChannel[Order]
    told: trio.MemoryReceiveChannel[Order]
    is_ready: bool = False
    ready_at: float = 0.0
    pulse: Pulse = field(default_factory=Pulse)
    pending: set[int] = field(default_factory=set)
    changed: trio.Event = field(default_factory=trio.Event)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)


def _exit_code(pid: int) -> int:
    """How a process that has ended did so: its exit code, or the negative number of a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Fleet:
    """`run` keeps `size` workers alive until `end` was called and all have ended."""

    def __init__(self, size: int, variables: Mapping[str, str], listener: socket.socket) -> None:
        self.size = size
        self._listener = listener
        self.registry = MirroringRegistry(self.tell)
        self.answer: Answer | None = None
        cores = len(os.sched_getaffinity(0))
        self._template = KeptTemplate(environment(variables, max(1, (cores - 1) // size)))
        self._cells = SharedPage.of(CELLS_BYTES)
        self._connections = SharedPage.of(8 * size)
        self._n_open = memoryview(self._connections).cast("Q")
        """The open connections of each place."""
        self._is_accepting = False
        self._key_cells = KeyCells(self._cells)
        self._workers: set[Worker] = set()
        self._packages: dict[int, Package] = {}
        self._kept: dict[str, tuple[Any, ...]] = {}
        """By kind, the last order of those that workers to come need too."""
        self._seqs, self._numbers = itertools.count(1), itertools.count(1)
        self._failing: set[int] = set()
        self._changed = trio.Event()
        self.is_ending = False
        self.ended = trio.Event()
        self._past: Counts = {}

    # Orders

    def tell(self, kind: str, *arguments: Any) -> None:
        """Tell all workers, whether they answer already or not."""
        if kind in ("keys", "policies", "workers", "certificate"):
            self._kept[kind] = arguments
        for worker in self._workers:
            self._order(worker, kind, *arguments)

    def _order(self, worker: Worker, kind: str, *arguments: Any, files: tuple[SealedMemory, ...] = ()) -> None:
        seq = next(self._seqs)
        worker.pending.add(seq)
        worker.orders.send_nowait((seq, (seq, kind, *arguments), files))

    def tell_policies(self, policies: Mapping[str, Any]) -> None:
        """Tell the policies of keys, and where the rates of each key are counted."""
        self.tell("policies", dict(policies), self._key_cells.assign(policies))

    async def settled(self) -> None:
        """Return when every worker that answers has done what it was told until now, or has ended."""
        told = [(worker, frozenset(worker.pending)) for worker in self._workers if worker.is_ready]
        for worker, seqs in told:
            while worker in self._workers and worker.pending & seqs:
                await worker.changed.wait()

    async def prepare(self, loaded: Loaded) -> Lane:
        """Let every worker open a model, so that each can answer from it at once."""
        assert isinstance(loaded, Shared) and loaded.package is not None, "the loader of a fleet made it"
        number = next(self._numbers)
        self._packages[number] = loaded.package
        for worker in self._workers:
            self._give_model(worker, number)
        await self.settled()
        return RemoteLane(number, self._drop)

    def _give_model(self, worker: Worker, number: int) -> None:
        package = self._packages[number]
        self._order(worker, "model", number, package.pickled, package.extents, files=package.files)

    def _drop(self, number: int) -> None:
        del self._packages[number]
        self.tell("drop", number)

    # Workers

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Start the workers, and start them again whenever one ends."""
        adopt_orphans()
        try:
            async with trio.open_nursery() as whole:
                whole.start_soon(self._watch)
                await whole.start(self._template.run)
                task_status.started()
                async with trio.open_nursery() as places:
                    for number in range(self.size):
                        places.start_soon(self._keep, number)
                whole.cancel_scope.cancel()
        finally:
            self.ended.set()

    async def _keep(self, number: int) -> None:
        """One place, with a worker in it for as long as the fleet lives."""
        pauses = Pauses()
        self._n_open[number] = VACANT
        while (worker := await self._started(number)) is not None:
            code = await self._attended(worker)
            if self.is_ending:
                return
            pause_s = pauses.after(trio.current_time() - worker.ready_at if worker.is_ready else 0.0)
            (self._failing.add if pauses.is_failing else self._failing.discard)(number)
            self._say_state()
            why = "silent" if worker.pulse.is_silent else "ended"
            logs.emit(events.WORKER_RESTARTED, pid=worker.pid, exit=code, reason=why, pause_seconds=pause_s)
            await trio.sleep(pause_s)

    async def _started(self, slot: int) -> Worker | None:
        """A new worker that has been told everything; None once no more shall start."""
        while not self.is_ending:
            control, theirs = channel.pair()
            page = SharedPage.of(PAGE_BYTES)
            with theirs:
                try:
                    pages = [shared.descriptor for shared in (page, self._cells, self._connections)]
                    pid = await self._template.copy([theirs.fileno(), self._listener.fileno(), *pages])
                    handle = os.pidfd_open(pid)
                except OSError:  # the template has ended: the next one gets other ends
                    control.close()
                    await trio.sleep(PAUSE_S)
                    continue
            orders, told = trio.open_memory_channel[Order](float("inf"))
            worker = Worker(slot, pid, handle, control, WorkerPage(page), orders, told)
            self._tell_everything(worker)
            self._workers.add(worker)
            return worker
        return None

    def _tell_everything(self, worker: Worker) -> None:
        for kind, arguments in self._kept.items():
            self._order(worker, kind, *arguments)
        for number in self._packages:
            self._give_model(worker, number)
        for entry in self.registry.entries():
            for order in orders_of(entry):
                self._order(worker, *order)
        self._order(worker, "skip", dict(self.registry.skipped_files()))
        self._order(worker, "begin")
        if self._is_accepting:
            self._order(worker, "accept", worker.slot)
        if self.is_ending:
            self._order(worker, "end")

    async def _send(self, worker: Worker) -> None:
        with suppress(OSError):
            async for _, order, files in worker.told:
                await channel.send(worker.control, order, files)

    async def _attended(self, worker: Worker) -> int:
        """Return the exit status of the worker when it has ended; whatever it leaves is cleared up."""
        async with trio.open_nursery() as tasks:
            tasks.start_soon(self._send, worker)
            tasks.start_soon(self._hear, worker)
            await trio.lowlevel.wait_readable(worker.handle)
            tasks.cancel_scope.cancel()
        self._workers.discard(worker)
        self._n_open[worker.slot] = VACANT
        code = _exit_code(worker.pid)
        self._past = counters.added([self._past, worker.page.counts()])
        trio.lowlevel.notify_closing(worker.control)
        worker.control.close()
        os.close(worker.handle)
        worker.orders.close()
        worker.changed.set()
        return code

    async def _hear(self, worker: Worker) -> None:
        """Take what a worker says. One that says anything else, or nothing more, is ended."""
        asked = trio.Semaphore(ASKED_AT_ONCE)
        async with trio.open_nursery() as answers:
            with suppress(ValueError, ConnectionError):
                while (message := await channel.hear(worker.control)) is not None:
                    kind, fields = message
                    if kind == "done":
                        self._done(worker, fields["seq"])
                    else:
                        await asked.acquire()
                        answers.start_soon(self._answer, worker, asked, fields)
            worker.kill()

    def _done(self, worker: Worker, seq: int) -> None:
        worker.pending.discard(seq)
        changed, worker.changed = worker.changed, trio.Event()
        changed.set()
        if not worker.pending and not worker.is_ready:
            worker.is_ready, worker.ready_at = True, trio.current_time()
            self._say_state()

    async def _answer(self, worker: Worker, asked: trio.Semaphore, fields: dict[str, Any]) -> None:
        try:
            assert self.answer is not None, "the server has set it"
            answer = await self.answer(fields["what"], fields["name"])
            with suppress(OSError):
                await channel.send(worker.control, (0, "answer", fields["number"], answer))
        finally:
            asked.release()

    async def _watch(self) -> None:
        """Look at all workers at regular intervals: a silent one is ended, a doubtful one holds nobody up before."""
        while True:
            await trio.sleep(BEAT_S)
            for worker in self._workers:
                worker.pulse.check(worker.page.beats)
                if worker.pulse.is_doubtful:
                    self._n_open[worker.slot] = VACANT
                if worker.pulse.is_silent:
                    worker.kill()

    def _say_state(self) -> None:
        ready = sum(worker.is_ready for worker in self._workers)
        state = WorkersState(self.size, ready, len(self._failing))
        if state != self.registry.workers:
            self.registry.workers = state
            self.tell("workers", state)
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def all_ready(self) -> None:
        """Return when every place has a worker that could answer."""
        while self.registry.workers.ready < self.size:
            await self._changed.wait()

    def accept(self) -> None:
        """Let the workers accept, and those to come: the listener listens."""
        self._is_accepting = True
        for worker in self._workers:
            self._order(worker, "accept", worker.slot)

    def counts(self) -> Counts:
        """What all workers have counted, those that have ended too."""
        return counters.added([self._past, *(worker.page.counts() for worker in self._workers)])

    def pids(self) -> list[int]:
        """The processes that answer."""
        return [worker.pid for worker in self._workers]

    # The end

    def end(self) -> None:
        """Let the workers end once what has come is answered. `ended` is set when all have."""
        self.is_ending = True
        self.tell("end")

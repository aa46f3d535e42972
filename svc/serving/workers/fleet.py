"""Supervision of the worker processes by their parent, which restarts them and sends them keys, models and policies.

The parent sends numbered orders to each worker, and a worker reports the number of each order that it has executed. Two
orders replace a model. After the order `model` a worker has opened the new model, and after the order `entry` it
answers requests from the new model.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import trio

from svc import events, logs
from svc.cores import usable_cores
from svc.errors import ArtifactReadError, InternalError, SvcError
from svc.processes import SealedMemory, SharedPage, adopt_orphans
from svc.serving.api.failures import log_failure
from svc.serving.api.request import ServerState
from svc.serving.models.lanes import Lane
from svc.serving.models.loader import Loaded
from svc.serving.models.registry import Registry
from svc.serving.transport.connection import VACANT
from svc.serving.workers import channel, counters
from svc.serving.workers.counters import BEAT_S, PAGE_BYTES, SILENT_CHECKS, Counts, WorkerPage
from svc.serving.workers.package import Package, WorkerLanes, write_entry
from svc.serving.workers.rates import CELLS, CELLS_BYTES
from svc.serving.workers.template import Pauses, Template, environment

ASKED_AT_ONCE = 8
"""Maximum number of queries of one worker that the parent answers at the same time."""
Answer = Callable[[str, str], Awaitable[Any]]
"""A function that answers a worker's query. It gets the kind of the query and the name of a recipe."""
Order = tuple[tuple[Any, ...], tuple[SealedMemory, ...]]
"""An order: the message, which begins with number and kind, and the memory files that are sent with it."""


@dataclass(slots=True, eq=False)
class WorkerRecord:
    """The parent's record of one running worker."""

    slot: int
    """Index of the worker in the shared memory of open connections. Its successor gets the same index."""
    pid: int
    handle: int
    """A pidfd. Unlike `pid`, it never refers to another process after the worker has ended."""
    control: socket.socket
    page: WorkerPage
    orders: trio.MemorySendChannel[Order]
    """The sending end of the queue of orders. `unsent` is the receiving end."""
    unsent: trio.MemoryReceiveChannel[Order]
    is_ready: bool = False
    """True from the moment at which the worker has first executed all orders sent so far."""
    ready_at: float = 0.0
    """Time on trio's clock at which `is_ready` became True."""
    beats: int = -1
    """Number of heartbeats at the last check."""
    quiet_checks: int = 0
    """Number of checks in a row without a new heartbeat."""
    pending: set[int] = field(default_factory=set)
    """Numbers of orders that the worker has not executed."""

    @property
    def is_silent(self) -> bool:
        """True if the worker hangs, because it has sent no heartbeat for SILENT_CHECKS."""
        return self.quiet_checks >= SILENT_CHECKS

    def check_heartbeat(self) -> None:
        beats = self.page.beats
        self.quiet_checks = self.quiet_checks + 1 if beats == self.beats else 0
        self.beats = beats

    def kill(self) -> None:
        """Kill the worker, unless it has already ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)


class Fleet:
    """The worker processes of one server.

    `run` keeps `size` workers alive until `end` is called, and returns when all workers have ended.
    """

    def __init__(self, size: int, variables: Mapping[str, str], listener: socket.socket) -> None:
        """Prepare `size` workers that accept from `listener` and inherit a part of the environment `variables`."""
        self.size = size
        self._listener = listener
        self.registry = Registry(self._tell_change)
        self.registry.workers = {"total": size, "ready": 0, "failing": 0}
        self.answer: Answer | None = None
        self._template = Template(environment(variables, max(1, (usable_cores() - 1) // size)))
        self._cells = SharedPage.of(CELLS_BYTES)
        self._connections = SharedPage.of(8 * size)
        self._n_open = memoryview(self._connections).cast("Q")
        """Number of open connections in each slot, or VACANT."""
        self._is_accepting = False
        self._key_cells: dict[str, int] = {}
        """The number of the cell of each API key that has, or had, a policy."""
        self._workers: set[WorkerRecord] = set()
        self._packages: dict[int, Package] = {}
        self._kept: dict[str, tuple[Any, ...]] = {}
        """Arguments of the last orders "keys", "policies", "workers" and "certificate", by kind.

        A worker that starts later gets these orders first."""
        self._seqs, self._numbers = itertools.count(1), itertools.count(1)
        self._pauses = [Pauses() for _ in range(size)]
        self._changes = trio.lowlevel.ParkingLot()
        """Tasks that wait until a worker has executed an order or has ended."""
        self.is_ending = False
        self.ended = trio.Event()
        self._past: Counts = {}

    # Orders

    def tell(self, kind: str, *arguments: Any) -> None:
        """Send an order to all workers, including workers that are still starting."""
        if kind in ("keys", "policies", "workers", "certificate"):
            self._kept[kind] = arguments
        for worker in self._workers:
            self._order(worker, kind, *arguments)

    def _tell_change(self, kind: str, *arguments: Any) -> None:
        """Send a change of the registry to all workers."""
        self.tell(kind, *((write_entry(*arguments),) if kind == "entry" else arguments))

    def _order(self, worker: WorkerRecord, kind: str, *arguments: Any, files: tuple[SealedMemory, ...] = ()) -> None:
        seq = next(self._seqs)
        worker.pending.add(seq)
        worker.orders.send_nowait(((seq, kind, *arguments), files))

    def tell_policies(self, policies: Mapping[str, Any]) -> None:
        """Send all workers the policies of API keys, and the number of the cell of each key.

        A key never loses its cell, because a worker that has not yet received new policies may still count its
        requests. After CELLS keys, cells have several keys.
        """
        for kid in policies:
            self._key_cells.setdefault(kid, len(self._key_cells) % CELLS)
        self.tell("policies", dict(policies), {kid: self._key_cells[kid] for kid in policies})

    async def wait_until_executed(self) -> None:
        """Wait until every worker that is ready now has executed all orders that were sent before this call.

        Does not wait for workers that end meanwhile.
        """
        # A worker that starts later gets the newest state first, so a publication need not wait for it.
        waited_for = [(worker, frozenset(worker.pending)) for worker in self._workers if worker.is_ready]
        for worker, seqs in waited_for:
            while worker in self._workers and worker.pending & seqs:
                await self._changes.park()

    async def prepare(self, loaded: Loaded) -> Lane:
        """Send a model to all workers, and return a placeholder for its lanes once every ready worker has opened it."""
        assert loaded.package is not None, "the loader packs models if there are workers"
        number = next(self._numbers)
        self._packages[number] = loaded.package
        for worker in self._workers:
            self._give_model(worker, number)
        await self.wait_until_executed()
        return WorkerLanes(number, self._drop)

    def _give_model(self, worker: WorkerRecord, number: int) -> None:
        package = self._packages[number]
        self._order(worker, "model", number, package.pickled, package.extents, files=package.files)

    def _drop(self, number: int) -> None:
        del self._packages[number]
        self.tell("drop", number)

    # Workers

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Start the workers, and restart each worker that ends, until `end` is called. Then wait for their end."""
        adopt_orphans()  # workers are forked by the template, but this process must be able to wait for their end
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
        """Keep a worker alive in one slot until the fleet ends."""
        pauses = self._pauses[number]
        # No worker waits for a slot that has none yet. A 0 would delay each accept of the others by PATIENCE_S.
        self._n_open[number] = VACANT
        while (worker := await self._start_worker(number)) is not None:
            code = await self._attend(worker)
            if self.is_ending:
                return
            pause_s = pauses.after(trio.current_time() - worker.ready_at if worker.is_ready else 0.0)
            self._say_state()
            why = "silent" if worker.is_silent else "ended"
            logs.emit(events.WORKER_RESTARTED, pid=worker.pid, exit=code, reason=why, pause_seconds=pause_s)
            await trio.sleep(pause_s)

    async def _start_worker(self, slot: int) -> WorkerRecord | None:
        """Fork a worker, queue its first orders and return it. Returns None if `end` was called."""
        while not self.is_ending:
            with suppress(OSError):  # the template has ended, or the system lacks descriptors: retry
                worker = await self._fork_worker(slot)
                self._order_current_state(worker)
                self._workers.add(worker)
                return worker
            await trio.sleep(channel.PAUSE_S)
        return None

    async def _fork_worker(self, slot: int) -> WorkerRecord:
        """Fork a worker. If this raises OSError, no process and no descriptor is left."""
        control, worker_end = channel.pair()
        with worker_end, ExitStack() as unused:
            unused.enter_context(control)
            page = SharedPage.of(PAGE_BYTES)
            pages = [shared.descriptor for shared in (page, self._cells, self._connections)]
            pid = await self._template.copy([worker_end.fileno(), self._listener.fileno(), *pages])
            # Callbacks run in reverse order: the kill comes before the wait, which would otherwise never end.
            unused.callback(os.waitpid, pid, 0)
            unused.callback(os.kill, pid, signal.SIGKILL)
            # Fails if descriptors are lacking, and the fork would then be a worker that no one waits for.
            handle = os.pidfd_open(pid)
            unused.pop_all()
        orders, unsent = trio.open_memory_channel[Order](float("inf"))
        return WorkerRecord(slot, pid, handle, control, WorkerPage(page), orders, unsent)

    def _order_current_state(self, worker: WorkerRecord) -> None:
        """Queue the orders that give a new worker the state of all other workers."""
        for kind, arguments in self._kept.items():
            self._order(worker, kind, *arguments)
        # Models before entries, which refer to them by number. The order to accept comes last.
        for number in self._packages:
            self._give_model(worker, number)
        for entry in self.registry.entries():
            self._order(worker, "entry", write_entry(entry))
        self._order(worker, "skip", dict(self.registry.skipped_files()))
        if self._is_accepting:
            self._order(worker, "accept", worker.slot)
        if self.is_ending:
            self._order(worker, "end")

    async def _send(self, worker: WorkerRecord) -> None:
        """Send orders to a worker as they come. Kills the worker if an order cannot be sent."""
        with suppress(OSError):
            async for order, files in worker.unsent:
                await channel.send(worker.control, order, files)
        # A worker that missed an order would serve an earlier state unnoticed.
        worker.kill()

    async def _attend(self, worker: WorkerRecord) -> int:
        """Exchange messages with the worker until it ends, release its resources, and return its exit code."""
        async with trio.open_nursery() as tasks:
            tasks.start_soon(self._send, worker)
            tasks.start_soon(self._hear, worker)
            await trio.lowlevel.wait_readable(worker.handle)
            tasks.cancel_scope.cancel()
        self._workers.discard(worker)
        self._n_open[worker.slot] = VACANT
        code = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])  # noqa: ASYNC222 - it has ended
        self._past = counters.add_counts([self._past, worker.page.counts()])  # counters must not fall at a restart
        trio.lowlevel.notify_closing(worker.control)
        worker.control.close()
        os.close(worker.handle)
        worker.orders.close()
        self._changes.unpark_all()
        return code

    async def _hear(self, worker: WorkerRecord) -> None:
        """Handle the messages of a worker. Kills the worker if it sends an invalid message or closes its socket."""
        places = trio.Semaphore(ASKED_AT_ONCE)
        async with trio.open_nursery() as answers:
            with suppress(ValueError, ConnectionError):
                while (message := await channel.hear(worker.control)) is not None:
                    if len(message) == 1:
                        self._done(worker, *message)
                    else:
                        # Reads no further message until a place is free, so a worker cannot fill the memory by queries.
                        await places.acquire()
                        answers.start_soon(self._answer, worker, places, *message)
            worker.kill()

    def _done(self, worker: WorkerRecord, seq: int) -> None:
        """Note that the worker has executed an order. The worker becomes ready once no order is pending."""
        worker.pending.discard(seq)
        self._changes.unpark_all()
        if not worker.pending and not worker.is_ready:
            worker.is_ready, worker.ready_at = True, trio.current_time()
            self._say_state()

    async def _answer(self, worker: WorkerRecord, places: trio.Semaphore, number: int, what: str, name: str) -> None:
        try:
            assert self.answer is not None, "the server has set it"
            answer = await self.answer(what, name)
            with suppress(OSError):
                await channel.send(worker.control, (0, "answer", number, answer))
        finally:
            places.release()

    async def _watch(self) -> None:
        """Check the heartbeats of all workers every BEAT_S, and kill workers that hang."""
        while True:
            await trio.sleep(BEAT_S)
            for worker in self._workers:
                worker.check_heartbeat()
                if worker.is_silent:
                    worker.kill()

    def _say_state(self) -> None:
        """Send the numbers of ready and failing workers to all workers, if they have changed."""
        ready = sum(worker.is_ready for worker in self._workers)
        failing = sum(pauses.is_failing for pauses in self._pauses)
        state = {"total": self.size, "ready": ready, "failing": failing}
        if state != self.registry.workers:
            self.registry.workers = state
            self.tell("workers", state)

    async def all_ready(self) -> None:
        """Return when every slot has a ready worker."""
        while sum(worker.is_ready for worker in self._workers) < self.size:
            await self._changes.park()

    def accept(self) -> None:
        """Let all present and later workers accept connections. Call it once the listener listens."""
        self._is_accepting = True
        for worker in self._workers:
            self._order(worker, "accept", worker.slot)

    def collect(self) -> Iterator[Any]:
        """Yield the metrics of all workers, including ended workers, and the `process_*` metrics.

        prometheus-client calls this method in a thread that renders the metrics.
        """
        counts, pids = trio.from_thread.run_sync(self._count)
        yield from counters.as_prometheus(counts)
        yield from counters.sum_processes(pids)

    def _count(self) -> tuple[Counts, list[int]]:
        counts = counters.add_counts([self._past, *(worker.page.counts() for worker in self._workers)])
        return counts, [worker.pid for worker in self._workers]

    # The end

    def end(self) -> None:
        """Let the workers drain their connections and end. `ended` is set when all workers have ended."""
        self.is_ending = True
        self.tell("end")


async def answer(state: ServerState, what: str, name: str) -> Any:
    """Answer the query of a worker: "metrics", or "versions" with the `name` of a recipe.

    Returns the metrics as bytes, or the versions as `read_versions` does. Returns the error that the worker must raise:
    LookupError for an unknown recipe or query, ArtifactReadError if the versions cannot be read, and InternalError for
    an unexpected error, which is logged. Raises nothing, because an exception would end the parent.
    """
    try:
        if what == "metrics":
            return await trio.to_thread.run_sync(state.metrics.render)
        if what == "versions" and state.versions is not None:
            return await trio.to_thread.run_sync(state.versions, name, abandon_on_cancel=True)
    except LookupError:
        pass
    except SvcError as error:
        return ArtifactReadError(logs.redact_text(error.message))
    except Exception as error:
        log_failure(error)
        return InternalError()
    return LookupError(name)

"""The main loop of a worker process, which answers requests beside other workers on the same listening socket.

The parent process sends keys, policies and verified models to each worker as numbered orders. A worker executes the
orders one after the other. It opens no file and no store, and it never has a signing key.
"""

from __future__ import annotations

import gc
import itertools
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import trio

from svc import events, logs
from svc.metrics import Metrics
from svc.processes import SealedMemory, SharedPage
from svc.serving import process
from svc.serving.api.application import Application
from svc.serving.api.authentication import Authenticator
from svc.serving.api.key_policies import KeyPolicies
from svc.serving.api.request import ServerState
from svc.serving.models.lanes import Lane
from svc.serving.models.loader import Loaded
from svc.serving.models.registry import Registry, Served
from svc.serving.models.threads import ScoringThreads
from svc.serving.transport import server
from svc.serving.transport.certificate import Certificate, Tls
from svc.serving.transport.connection import Spread, run_until
from svc.serving.workers import channel, counters
from svc.serving.workers.counters import BEAT_S, WorkerPage
from svc.serving.workers.package import Package, read_entry
from svc.serving.workers.rates import Cell, SharedBucket
from svc.settings import Settings


@dataclass(frozen=True, slots=True)
class Ends:
    """The sockets and shared memory that a worker inherits from its parent."""

    control: socket.socket
    """Connection to the parent."""
    listener: socket.socket
    page: SharedPage
    """Heartbeats and metrics of this worker."""
    cells: SharedPage
    """State of the rate limits, shared by all workers."""
    connections: SharedPage
    """Number of open connections of each worker, shared by all workers."""

    @classmethod
    def of(cls, descriptors: list[int]) -> Self:
        """Open the inherited file descriptors, which are in the order of the fields."""
        control, listener, *pages = descriptors
        page, cells, connections = map(SharedPage.adopt, pages)
        return cls(socket.socket(fileno=control), socket.socket(fileno=listener), page, cells, connections)


def live(ends: Ends) -> None:
    """Run a worker until the parent orders the end or ends itself."""
    settings = Settings.from_env()
    logs.configure(settings)
    process.tune()
    trio.run(Worker(ends, settings).run)


class Worker:
    """A worker process: a server whose state the orders of its parent change."""

    def __init__(self, ends: Ends, settings: Settings) -> None:
        self._ends = ends
        self._page = WorkerPage(ends.page)
        self._spread: Spread | None = None
        self._registry = Registry()
        metrics = Metrics.disabled()
        if settings.metrics_enabled:
            metrics = Metrics(counters.families(self._page), partial(self._ask_parent, "metrics", ""))
        auth = Authenticator({}, log_each_bypass=settings.log_level == "debug")
        self._state = ServerState(
            self._registry,
            settings,
            metrics,
            auth,
            spans=process.spans() if settings.otel_enabled else None,
            versions=partial(self._ask_parent, "versions"),
        )
        self._threads = ScoringThreads.of(settings)
        self._models: dict[int, tuple[Loaded, Lane]] = {}
        """The models that the parent has sent and not dropped, by number."""
        self._answers: dict[int, trio.MemorySendChannel[Any]] = {}
        """Channels for the answers to queries, by the number of the query."""
        self._numbers = itertools.count(1)
        self._end = trio.Event()
        self._orders: dict[str, Callable[..., None]] = {
            "remove": self._registry.remove,
            "skip": self._registry.skip,
            "keys": auth.replace,
            "certificate": self._use_certificate,
            "policies": self._use_policies,
            "workers": self._count_workers,
            "accept": self._accept,
            "drop": self._drop,
            "drain": self._drain,
            "end": self._end.set,
        }
        """Functions that execute an order at once, by the kind of the order."""
        self._may_accept = trio.Event()

    async def run(self) -> None:
        """Execute orders, and answer requests between the orders `accept` and `end`."""
        trio.lowlevel.add_instrument(self._threads)
        async with trio.open_nursery() as whole:
            # Beats until the end of the drain, because the parent kills a silent worker.
            whole.start_soon(self._beat)
            whole.start_soon(self._state.run)
            async with trio.open_nursery() as lanes:
                lanes.start_soon(self._obey, lanes)
                await run_until(self._end.wait, self._may_accept.wait)
                if self._spread is not None:
                    await server.serve(
                        Application(self._state),
                        self._ends.listener,
                        process.limits(self._state.settings),
                        until=self._end.wait,
                        spread=self._spread,
                        tls=self._state.tls,
                    )
                lanes.cancel_scope.cancel()
            if self._state.spans is not None:
                await process.close_spans(self._state.spans)
            whole.cancel_scope.cancel()

    async def _beat(self) -> None:
        """Tell the parent every BEAT_S that the event loop runs."""
        while True:
            self._page.beat()
            await trio.sleep(BEAT_S)

    async def _obey(self, lanes: trio.Nursery) -> None:
        """Receive the parent's messages. Queues orders for `_execute`, and takes answers at once.

        Answers skip the queue, so that a query does not wait until a large model is opened.
        """
        orders, unexecuted = trio.open_memory_channel[channel.Received](float("inf"))
        lanes.start_soon(self._execute, unexecuted, lanes)
        while (received := await channel.receive(self._ends.control)) is not None:
            (_, kind, *arguments), _ = received
            if kind == "answer":
                number, answer = arguments
                if number in self._answers:  # the query may have been cancelled
                    self._answers[number].send_nowait(answer)
            else:
                orders.send_nowait(received)
        os._exit(1)  # the parent has ended, so nothing can be reported any more

    async def _execute(self, orders: trio.MemoryReceiveChannel[channel.Received], lanes: trio.Nursery) -> None:
        """Execute orders one after the other, and report each to the parent when it is done."""
        async for (seq, kind, *arguments), files in orders:
            if kind == "model":
                await self._open(lanes, files, *arguments)
            elif kind == "entry":
                await self._put(*arguments)
            else:
                self._orders[kind](*arguments)
            channel.tell(self._ends.control, seq)
            del files, arguments  # they would keep the memory of a dropped model until the next order arrives

    def _accept(self, slot: int) -> None:
        """Accept connections from now on, and write the number of open connections to this slot."""
        # Objects that are garbage now would never be collected after the freeze.
        gc.collect()
        gc.freeze()  # later collections skip the models and all other present objects, so they are shorter
        self._spread = Spread(memoryview(self._ends.connections).cast("Q"), slot)
        self._spread.show()
        self._may_accept.set()

    def _use_certificate(self, certificate: Certificate) -> None:
        if self._state.tls is None:
            self._state.tls = Tls(certificate)
            return
        try:
            self._state.tls.replace(certificate)
        except OSError as error:  # descriptors are lacking, and the error would end all connections of this worker
            logs.emit(events.KEYS_RELOAD_FAILED, error=str(error))

    def _drain(self) -> None:
        self._state.draining = True

    def _count_workers(self, workers: Mapping[str, int]) -> None:
        self._registry.workers = workers

    async def _open(
        self, lanes: trio.Nursery, files: tuple[SealedMemory, ...], number: int, pickled: bytes, extents: Any
    ) -> None:
        """Open a model from the parent. Requests use it after the next order `entry`."""
        loaded = await trio.to_thread.run_sync(Package(pickled, extents, files).open)
        lane = Lane(loaded.model, self._threads)
        await lanes.start(lane.run)
        self._models[number] = loaded, lane

    def _drop(self, number: int) -> None:
        """Close the lane of a replaced model. Requests that use the model keep it in memory until they end."""
        _, lane = self._models.pop(number)
        lane.close()

    async def _put(self, pickled: bytes) -> None:
        """Replace the entry of a recipe in the registry. Its model has been opened before."""
        # trio starts its clock at a random time, so the parent sends times on the clock of `perf_counter`.
        shift_s = trio.current_time() - time.perf_counter()
        self._registry.put(await trio.to_thread.run_sync(read_entry, pickled, shift_s, self._served))

    def _served(self, number: int, name: str, loaded_at: float) -> Served:
        """Return the model that the recipe `name` serves if it is the one of this number, else the opened model."""
        (loaded, lane), before = self._models[number], self._registry.get(name)
        if before is not None and before.served is not None and before.served.lane is lane:
            return before.served
        return Served.of(name, loaded, lane, loaded_at)

    def _use_policies(self, policies: Any, cells: dict[str, int]) -> None:
        if self._state.policies is None:
            self._state.policies = KeyPolicies(self._state.metrics)
        key_policies = self._state.policies
        key_policies.new_bucket = lambda kid, rate: SharedBucket(rate, Cell(self._ends.cells, cells[kid]))
        key_policies.replace(policies)

    # Queries to the parent

    def _ask_parent(self, what: str, name: str = "") -> Any:
        """Return the parent's answer to a query. Blocks, so call it in a thread, not on the event loop.

        `what` is "metrics", or "versions" with the `name` of a recipe. Raises the error that the parent answers.
        """
        answer = trio.from_thread.run(self._ask, what, name)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _ask(self, what: str, name: str) -> Any:
        number = next(self._numbers)
        self._answers[number], answers = trio.open_memory_channel[Any](1)
        try:
            channel.tell(self._ends.control, number, what, name)
            return await answers.receive()
        finally:
            del self._answers[number]

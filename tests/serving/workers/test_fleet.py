"""The parent's fleet of workers: orders, heartbeats, replacements, sums of counts and queries."""

from __future__ import annotations

import errno
import gc
import json
import os
import random
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from svc.errors import ArtifactReadError, InternalError
from svc.metrics import REQUESTS, Metrics
from svc.processes import SealedMemory, SharedPage
from svc.serving.api.authentication import Authenticator
from svc.serving.api.request import ServerState
from svc.serving.models.loader import Loaded
from svc.serving.models.registry import Registry
from svc.serving.transport.connection import VACANT
from svc.serving.workers import channel
from svc.serving.workers.counters import BEAT_S, WorkerPage
from svc.serving.workers.fleet import Fleet, Order, WorkerRecord, answer
from svc.serving.workers.package import Package
from svc.settings import Settings

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return ("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})


ENDS: list[socket.socket] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Close all sockets of a test at its end."""
    yield
    for end in ENDS:
        end.close()
    ENDS.clear()


def fleet_of(size: int) -> Fleet:
    """Return a fleet that is not running."""
    listener = socket.socket()
    ENDS.append(listener)
    return Fleet(size, {}, listener)


def add_worker(fleet: Fleet, pid: int, slot: int = 0) -> tuple[WorkerRecord, socket.socket]:
    """Return a worker without orders, and the worker's end of the socket to the parent."""
    orders, unsent = trio.open_memory_channel[Order](float("inf"))
    control, theirs = channel.pair()
    ENDS.extend((control, theirs))
    worker = WorkerRecord(slot, pid, -1, control, WorkerPage(SharedPage.of(8192)), orders, unsent)
    fleet._workers.add(worker)
    return worker, theirs


def kinds(worker: WorkerRecord) -> list[str]:
    found = []
    while True:
        try:
            found.append(worker.unsent.receive_nowait()[0][1])
        except trio.WouldBlock:
            return found


def carry_out(fleet: Fleet, worker: WorkerRecord) -> None:
    for seq in sorted(worker.pending):
        fleet._done(worker, seq)


async def test_wait_until_executed_waits_for_every_ready_worker() -> None:
    """Workers that are starting or have ended are not waited for."""
    fleet = fleet_of(3)
    (first, _), (second, _), (starting, _) = (add_worker(fleet, pid) for pid in (1, 2, 3))
    fleet.tell("keys", {})
    for worker in (first, second):
        carry_out(fleet, worker)
    assert first.is_ready and second.is_ready and not starting.is_ready
    fleet.tell("entry", "model A")
    order = []

    async def swap() -> None:
        await fleet.wait_until_executed()
        order.append("settled")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(swap)
        await trio.testing.wait_all_tasks_blocked()
        carry_out(fleet, first)
        await trio.testing.wait_all_tasks_blocked()
        order.append("first is done")
        fleet._workers.discard(second)
        fleet._changes.unpark_all()
    assert order == ["first is done", "settled"]
    assert not starting.is_ready
    carry_out(fleet, starting)
    assert starting.is_ready


async def test_a_new_worker_gets_the_current_state() -> None:
    """The worker gets the current keys and policies once."""
    fleet = fleet_of(1)
    fleet.tell("keys", {"a": b"1"})
    fleet.tell("keys", {"b": b"2"})
    fleet.tell_policies({})
    worker, _ = add_worker(fleet, 1)
    fleet._order_current_state(worker)
    assert kinds(worker) == ["keys", "policies", "skip"]


async def test_every_worker_gets_a_model_with_its_files_until_it_is_dropped() -> None:
    """Workers that are running or start later get the same order."""
    fleet, files = fleet_of(2), (SealedMemory.of([b"arrays"]),)
    first, _ = add_worker(fleet, 1)
    package = Package(b"model", ((0, 0, 6),), files)
    await fleet.prepare(cast(Loaded, SimpleNamespace(package=package)))
    later, _ = add_worker(fleet, 2, slot=1)
    fleet._order_current_state(later)
    for worker in (first, later):
        (_, kind, number, *arguments), sent = worker.unsent.receive_nowait()
        assert (kind, arguments, sent) == ("model", [package.pickled, package.extents], files)
    fleet._drop(number)
    assert kinds(first) == ["drop"]
    assert kinds(later) == ["skip", "drop"]


async def test_a_key_keeps_its_cells_when_policies_change() -> None:
    """The cells hold the used part of the key's rate, so a new policy does not reset it. No other key gets the cell."""
    fleet = fleet_of(1)
    worker, _ = add_worker(fleet, 1)
    for policies in ({"a": 1, "b": 2}, {"b": 3, "c": 4}, {"a": 5}):
        fleet.tell_policies(policies)
    cells = [worker.unsent.receive_nowait()[0][3] for _ in range(3)]
    assert cells == [{"a": 0, "b": 1}, {"b": 1, "c": 2}, {"a": 0}]


def messages(rng: random.Random) -> bytes:
    """Generate bytes that a worker might send: messages, damaged ones, nested lists, nothing, or random bytes."""
    query = [rng.choice([1, 1, -1, 10**300]), rng.choice(["metrics", "\ud800"])]
    message = json.dumps(rng.choice([[*query, "a"], [*query, "[" * 99], [7]]))
    damaged = bytearray(message.encode())
    damaged[rng.randrange(len(damaged))] = rng.randrange(256)
    return rng.choice([message.encode(), bytes(damaged), b"[" * rng.randrange(2000), rng.randbytes(rng.randrange(99))])


@pytest.mark.parametrize("seed", range(20))
async def test_no_message_of_a_worker_ends_the_parent(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An invalid message or a closed socket kills the worker. A repeated number is no error."""
    rng, fleet, killed = random.Random(seed), fleet_of(1), list[int]()
    monkeypatch.setattr(WorkerRecord, "kill", lambda worker: killed.append(worker.pid))

    async def answer(what: str, name: str) -> str:
        await trio.sleep(rng.random())
        return what + name

    fleet.answer = answer
    for number in range(50):
        worker, theirs = add_worker(fleet, number)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fleet._hear, worker)
                with suppress(BlockingIOError, BrokenPipeError):
                    for _ in range(rng.randrange(1, 20)):
                        theirs.send(messages(rng))
                await trio.sleep(10)
                theirs.close()
    assert killed == list(range(50))


async def test_workers_accept_only_after_the_order_to_accept() -> None:
    """A worker that starts later gets the order at its start. Each worker has a slot of its own."""
    fleet = fleet_of(2)
    first, _ = add_worker(fleet, 1)
    fleet.accept()
    assert kinds(first) == ["accept"]
    later, _ = add_worker(fleet, 2, slot=1)
    fleet._order_current_state(later)
    assert kinds(later) == ["skip", "accept"]
    fleet.end()
    fleet._order_current_state(later)
    assert kinds(later)[-2:] == ["accept", "end"]


async def test_a_worker_is_silent_after_five_seconds_without_a_heartbeat() -> None:
    """One heartbeat between two checks is enough, however late the check is."""
    worker, _ = add_worker(fleet_of(1), 1)
    for _ in range(100):
        worker.page.beat()
        worker.check_heartbeat()
        assert not worker.is_silent
    for _ in range(round(5 / BEAT_S)):
        assert not worker.is_silent
        worker.check_heartbeat()
    assert worker.is_silent
    worker.page.beat()
    worker.check_heartbeat()
    assert not worker.is_silent


class Sleepers:
    """A template whose forks are processes that sleep, answer nothing and send no heartbeat."""

    def __init__(self) -> None:
        self.pids: list[int] = []
        self.kept: list[int] = []
        """The workers' ends of the sockets to the parent."""
        self.n_lost = 1

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        await trio.sleep_forever()

    async def copy(self, descriptors: list[int]) -> int:
        assert len(descriptors) == 5
        if self.n_lost:
            self.n_lost -= 1
            raise OSError("the template has ended")
        self.kept.append(os.dup(descriptors[0]))
        self.pids.append(os.posix_spawn("/bin/sleep", ["sleep", "600"], {}))  # noqa: ASYNC221 - takes no time
        return self.pids[-1]


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("is_silent", [False, True], ids=["ended", "silent"])
async def test_an_ended_worker_is_replaced_until_the_fleet_ends(
    is_silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker without heartbeats is killed. Its resources are closed, and its counts are kept."""
    monkeypatch.setattr("svc.serving.workers.fleet.adopt_orphans", lambda: None)
    if not is_silent:
        monkeypatch.setattr("svc.serving.workers.fleet.SILENT_CHECKS", 1 << 62)
    fleet, sleepers = fleet_of(1), Sleepers()
    fleet._template = sleepers  # type: ignore[assignment]
    gc.collect()
    before = open_descriptors()
    with capture_logs() as log:
        async with trio.open_nursery() as nursery:
            await nursery.start(fleet.run)
            for count in range(1, 7):
                while len(sleepers.pids) < count or [worker.pid for worker in fleet._workers] != sleepers.pids[-1:]:  # noqa: ASYNC110
                    await trio.sleep(0.01)  # virtual time, for the pauses of the fleet
                if count == 6:
                    fleet.end()
                if not is_silent or count == 6:
                    os.kill(sleepers.pids[-1], signal.SIGKILL)
            await fleet.ended.wait()
    assert [record["event"] for record in log] == ["worker_restarted"] * 5
    assert [record["pid"] for record in log] == sleepers.pids[:5]
    assert {record["exit"] for record in log} == {-signal.SIGKILL}
    assert {record["reason"] for record in log} == {"silent" if is_silent else "ended"}
    assert [record["pause_seconds"] for record in log] == [0, 0, 0, 0.1, 0.2]
    assert fleet.registry.workers == {"total": 1, "ready": 0, "failing": 1}
    assert fleet._n_open.tolist() == [VACANT]
    for pid in sleepers.pids:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)  # noqa: ASYNC222 - does not wait
    for descriptor in sleepers.kept:
        os.close(descriptor)
    gc.collect()
    assert open_descriptors() == before


@contextmanager
def few_descriptors(free: int) -> Iterator[None]:
    """Let this process open only this many more descriptors in a `with` block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = [int(path.name) for path in Path("/proc/self/fd").iterdir()]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(used) + 1 + free, hard))
    fillers: list[int] = []
    try:
        with suppress(OSError):
            while True:
                fillers.append(os.dup(0))
        for _ in range(free):
            os.close(fillers.pop())
        yield
    finally:
        for filler in fillers:
            os.close(filler)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("free", range(7))
async def test_a_worker_starts_as_soon_as_file_descriptors_are_free(free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fleet retries until then, without leaking a process or a descriptor.

    A long order arrives late, but complete.
    """
    monkeypatch.setattr("svc.serving.workers.fleet.adopt_orphans", lambda: None)
    monkeypatch.setattr("svc.serving.workers.fleet.SILENT_CHECKS", 1 << 62)
    fleet, sleepers = fleet_of(1), Sleepers()
    sleepers.n_lost = 0
    fleet._template = sleepers  # type: ignore[assignment]
    keys = {"k": b"x" * (channel.INLINE_BYTES + 1)}
    fleet.tell("keys", keys)
    gc.collect()
    before = open_descriptors()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(fleet.run)
            with few_descriptors(free):
                await trio.sleep(1)
            await trio.sleep(1)
            (worker,) = fleet._workers
            with socket.socket(fileno=sleepers.kept.pop()) as theirs:
                received = await channel.receive(theirs)
            assert received is not None
            assert received[0][1:] == ("keys", keys)
            fleet.end()
            worker.kill()
            # The deadline is virtual time, which jumps while the kernel still ends the process.
            os.waitid(os.P_PIDFD, worker.handle, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - in real time
            await fleet.ended.wait()
    for pid in sleepers.pids:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)  # noqa: ASYNC222 - does not wait
    for descriptor in sleepers.kept:
        os.close(descriptor)
    del received, worker
    gc.collect()
    assert open_descriptors() == before


async def test_a_worker_that_cannot_be_sent_an_order_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker would otherwise serve an earlier state unnoticed."""
    fleet, killed = fleet_of(1), list[int]()
    monkeypatch.setattr(WorkerRecord, "kill", lambda worker: killed.append(worker.pid))

    async def fail(*_: object) -> None:
        raise OSError(errno.ENOBUFS, "no buffer space is left")

    monkeypatch.setattr(channel, "send", fail)
    worker, _ = add_worker(fleet, 7)
    fleet.tell("keys", {})
    await fleet._send(worker)
    assert killed == [7]


async def test_sums_include_ended_and_running_workers() -> None:
    """Each metric appears once. The counts of an ended worker stay in the sums."""
    fleet = fleet_of(2)
    fleet._past = {(REQUESTS.name, "a", "ok"): (41.0,)}
    text = (await trio.to_thread.run_sync(Metrics.create(fleet).render)).decode()
    assert 'svc_v1_requests_total{recipe="a",status="ok"} 41.0' in text
    assert text.count("# TYPE process_cpu_seconds_total counter") == 1
    assert text.count("# TYPE svc_v1_requests_total counter") == 1


async def test_the_answer_to_a_failed_query_is_its_error() -> None:
    """The error is that of the failed store or of the unknown recipe. A defect is logged and answered as such."""

    def versions(name: str) -> dict[str, Any]:
        if name == "gone":
            raise LookupError(name)
        if name == "broken":
            raise ValueError("Out of range float values are not JSON compliant")
        raise ArtifactReadError("the store is away")

    auth = Authenticator({})
    state = ServerState(Registry(), Settings(), Metrics.disabled(), auth, versions=versions)
    assert isinstance(await answer(state, "versions", "gone"), LookupError)
    away = await answer(state, "versions", "a")
    assert isinstance(away, ArtifactReadError) and away.message == "the store is away"
    with capture_logs() as log:
        assert isinstance(await answer(state, "versions", "broken"), InternalError)
    assert [event["event"] for event in log] == ["request_failed"]
    assert isinstance(await answer(state, "files", "/etc/passwd"), LookupError)
    assert await answer(state, "metrics", "") == b""

"""A worker process: it executes its orders in order, and reports each one when it is done."""

from __future__ import annotations

import itertools
import os
import socket
import weakref
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import structlog
import trio
from structlog.testing import capture_logs

from svc.errors import ArtifactReadError, InternalError
from svc.model.ranking.item_sets import ItemSet
from svc.processes import SharedPage
from svc.recipe.serving_schema import Availability
from svc.serving.api.authentication import hash_api_key, parse_api_keys
from svc.serving.api.key_policies import parse_policies
from svc.serving.models.registry import Entry, ListState, Served
from svc.serving.transport.connection import VACANT
from svc.serving.workers import channel
from svc.serving.workers.counters import WorkerPage
from svc.serving.workers.package import Package, WorkerLanes, pack_loaded, write_entry
from svc.serving.workers.rates import CELLS_BYTES
from svc.serving.workers.worker import Ends, Worker
from svc.settings import Settings
from tests.serving.artifacts import factor_model, served_model
from tests.serving.certificates import Issuer
from tests.serving.freed import freed
from tests.serving.workers.test_package import load, prepare

pytestmark = pytest.mark.anyio


async def test_a_worker_answers_after_its_first_orders_and_ends_on_order(freezes: list[str]) -> None:
    """Health shows the workers. Metrics come from the parent.

    Existing objects are excluded from garbage collection once. At log level debug, each request without a key is
    logged.
    """
    structlog.reset_defaults()  # an earlier test may have configured a level that drops events
    control, theirs = channel.pair()
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    page, connections = WorkerPage(SharedPage.of(1 << 16)), SharedPage.of(16)
    counts = memoryview(connections).cast("Q")
    counts[0] = counts[1] = VACANT
    ends = Ends(theirs, listener, page.memory, SharedPage.of(CELLS_BYTES), connections)
    worker = Worker(ends, Settings(metrics_enabled=True, log_level="debug"))
    orders: list[tuple[Any, ...]] = [
        ("workers", {"total": 2, "ready": 1, "failing": 0}),
        ("entry", write_entry(Entry("a", "a.yaml"))),
        ("skip", {}),
        ("accept", 1),
    ]
    with control, theirs, listener, trio.fail_after(20), capture_logs() as log:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.run)
            for seq, (kind, *arguments) in enumerate(orders):
                await channel.send(control, (seq, kind, *arguments))
            for seq in range(len(orders)):
                assert await channel.hear(control) == [seq]

            async def answer() -> None:
                number, what, _ = await channel.hear(control) or ()
                assert what == "metrics"
                await channel.send(control, (0, "answer", number, b"the sums"))

            nursery.start_soon(answer)
            ours = socket.create_connection(address)
            client = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
            assert b'"workers":{"total":2,"ready":1,"failing":0}' in await ask(client, "/v1/health")
            assert (await ask(client, "/v1/metrics")).endswith(b"the sums")
            assert counts.tolist() == [VACANT, 1]
            await client.aclose()
            assert page.beats > 0
            await channel.send(control, (9, "end"))
            assert await channel.hear(control) == [9]
    assert counts.tolist() == [VACANT, 0]
    assert freezes == ["freeze"]
    assert [record["client"] for record in log if record["event"] == "auth_anonymous_bypass"] == ["127.0.0.1"]


async def ask(client: trio.SocketStream, path: str) -> bytes:
    """Return the answer to one request."""
    await client.send_all(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return await client.receive_some()


async def test_a_worker_that_ends_before_accepting_does_not_use_the_listener() -> None:
    """A signal during the first loads ends a worker before the socket listens."""
    control, theirs = channel.pair()
    page, cells = SharedPage.of(1 << 16), SharedPage.of(CELLS_BYTES)
    with control, theirs, socket.socket() as listener, trio.fail_after(20), capture_logs() as log:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Worker(Ends(theirs, listener, page, cells, SharedPage.of(8)), Settings()).run)
            await channel.send(control, (1, "end"))
    assert log == []


async def test_a_worker_without_a_descriptor_keeps_its_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error would end the worker with all of its connections."""
    structlog.reset_defaults()
    certificate = Issuer(tmp_path).certificate()
    control, theirs = channel.pair()
    page, cells = SharedPage.of(1 << 16), SharedPage.of(CELLS_BYTES)
    with control, theirs, socket.socket() as listener, trio.fail_after(20), capture_logs() as log:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Worker(Ends(theirs, listener, page, cells, SharedPage.of(8)), Settings()).run)
            await channel.send(control, (1, "certificate", certificate))
            assert await channel.hear(control) == [1]
            monkeypatch.setattr(os, "memfd_create", mock.Mock(side_effect=OSError(24, "Too many open files")))
            await channel.send(control, (2, "certificate", certificate))
            assert await channel.hear(control) == [2]
            await channel.send(control, (3, "end"))
    assert [record["error"] for record in log] == ["[Errno 24] Too many open files"]


async def test_a_worker_ends_with_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker exits with 1 at once when the parent's end of the socket is closed."""
    codes: list[int] = []
    control, theirs = channel.pair()
    page, cells = SharedPage.of(1 << 16), SharedPage.of(CELLS_BYTES)
    with theirs, socket.socket() as listener, trio.fail_after(20):
        async with trio.open_nursery() as nursery:

            def leave(code: int) -> None:
                codes.append(code)
                nursery.cancel_scope.cancel()

            monkeypatch.setattr(os, "_exit", leave)
            nursery.start_soon(Worker(Ends(theirs, listener, page, cells, SharedPage.of(8)), Settings()).run)
            control.close()
    assert codes == [1]


KEY = "k" * 43
DECLARED = Availability.model_validate(
    {"source": {"type": "csv", "path": "there.csv"}, "id_column": "item_id", "mode": "deny"}
)


async def asked(address: tuple[str, int], body: bytes = b'{"user_id": "u1", "limit": 5}', key: str = KEY) -> bytes:
    """Return the answer to one request on a new connection."""
    async with await trio.open_tcp_stream(*address) as client:
        head = f"POST /v1/recipes/a:recommend HTTP/1.1\r\nHost: h\r\nX-API-Key: {key}\r\nContent-Length: {len(body)}"
        await client.send_all(f"{head}\r\nContent-Type: application/json\r\n\r\n".encode() + body)
        return await client.receive_some()


def test_inherited_descriptors_are_opened_in_the_order_of_the_fields() -> None:
    """The parent writes to the same memory, and hears the same connection."""
    control, theirs = channel.pair()
    listener, pages = socket.create_server(("127.0.0.1", 0)), [SharedPage.of(1 << 12) for _ in range(3)]
    inherited = [theirs.fileno(), listener.fileno(), *(page.descriptor for page in pages)]
    ends = Ends.of([os.dup(descriptor) for descriptor in inherited])
    with control, theirs, listener, ends.control, ends.listener:
        control.send(b"order")
        assert ends.control.recv(9) == b"order"
        assert ends.listener.getsockname() == listener.getsockname()
        for number, (page, own) in enumerate(zip(pages, (ends.page, ends.cells, ends.connections), strict=True), 1):
            page[0] = number
            assert own[0] == number


async def test_a_worker_follows_orders_about_models_keys_and_drain(tmp_path: Path, freezes: list[str]) -> None:
    """The worker applies new keys, rates and lists. It swaps models, drops the old model, and drains.

    It knows the age of a list.
    """
    models = []
    for dimensions in (4, 5):
        prepare(tmp_path, factor_model(10, 30, dimensions))
        models.append(load(tmp_path, pack_loaded))
    control, theirs = channel.pair()
    listener = socket.create_server(("127.0.0.1", 0))
    pages = [SharedPage.of(size) for size in (1 << 16, CELLS_BYTES, 8)]
    worker = Worker(Ends(theirs, listener, *pages), Settings())
    seqs = itertools.count(1)

    async def tell(kind: str, *arguments: Any, files: Any = ()) -> None:
        seq = next(seqs)
        await channel.send(control, (seq, kind, *arguments), files)
        assert await channel.hear(control) == [seq]

    async def put(number: int, available: ItemSet | None = None) -> Served:
        served = served_model(name="a", lane=WorkerLanes(number, lambda _: None), available=available, loaded_at=7.0)
        listed = ListState(DECLARED, None, trio.current_time() - 100)
        await tell("entry", write_entry(Entry("a", "a.yaml", served, availability=listed)))
        entry = worker._registry.require("a")
        assert entry.availability is not None
        assert 100 <= (entry.availability.age_s() or 0) < 160
        assert entry.served is not None
        assert entry.served.loaded_at == 7.0
        return entry.served

    async def serve(number: int) -> None:
        package: Package = models[number].package
        await tell("model", number, package.pickled, package.extents, files=package.files)
        await put(number)

    with control, theirs, listener, trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.run)
            await serve(0)
            await tell("keys", parse_api_keys(f"k:{hash_api_key(KEY)}"))
            await tell("policies", {}, {})
            await tell("accept", 0)
            address = listener.getsockname()
            answer = await asked(address)
            assert models[0].sha256.encode() in answer
            assert b"connection: close" not in answer.lower()
            assert answer.count(b'"item_id":') == 5
            assert (await asked(address, key="x" * 43)).startswith(b"HTTP/1.1 401 ")
            await serve(1)
            opened = [weakref.ref(worker._models[number][0].model) for number in (0, 1)]
            await tell("drop", 0)
            assert models[1].sha256.encode() in await asked(address)
            await freed(opened[0])
            restricted = await put(1, ItemSet.of_columns(np.arange(20), 30))
            assert await put(1, ItemSet.of_columns(np.arange(20), 30)) is restricted  # so its kept answers stay valid
            assert await put(1, ItemSet.of_columns(np.arange(10), 30)) is not restricted
            del restricted  # a model is freed when nothing refers to it
            await put(1)
            await tell("policies", parse_policies(b"k: {rate: 1/h, burst: 2}", "p"), {"k": 1})
            answers = [await asked(address) for _ in range(3)]
            assert [answer.split()[1] for answer in answers] == [b"200", b"200", b"429"]
            await tell("remove", "a")
            await tell("drop", 1)
            await tell("policies", {}, {})
            assert (await asked(address)).startswith(b"HTTP/1.1 404 ")
            await freed(opened[1])
            for error in (InternalError(), LookupError("a"), ArtifactReadError("broken")):

                async def reply(error: Exception = error) -> None:
                    number, *query = await channel.hear(control) or ()
                    assert query == ["versions", "a"]
                    await channel.send(control, (0, "answer", number, error))

                nursery.start_soon(reply)
                with pytest.raises(type(error), match=str(error)):
                    await trio.to_thread.run_sync(worker._state.versions, "a")
            await tell("drain")
            assert b"connection: close" in (await asked(address)).lower()
            await tell("end")

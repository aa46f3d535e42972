"""The server loop: its addresses, accepting, draining, and a system without free file descriptors."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import AsyncExitStack

import pytest
import trio
from structlog.testing import capture_logs

from svc.errors import ConfigError
from svc.serving.transport import server
from svc.serving.transport.connection import ConnectionLimits, run_until
from svc.serving.transport.server import ENDED_A_TURN, PAUSE_S, bind, check_exposure, listen, stop
from tests.serving.sockets import everything, exchange
from tests.serving.transport.echo import KEPT, LARGE, REQUEST, Echo

pytestmark = pytest.mark.anyio
LIMITS = ConnectionLimits(idle_s=30, unread_s=30, drain_s=5)


class Running:
    """A server whose drain a test begins. `ended` is set when it has returned."""

    def __init__(self, listener: socket.socket | None = None) -> None:
        self.listener = listener or socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = self.listener.getsockname()[1]
        self.drain = trio.Event()
        self.ended = trio.Event()

    async def run(self) -> None:
        await server.serve(Echo(), self.listener, LIMITS, until=self.drain.wait)
        self.ended.set()

    async def connect(self, stack: AsyncExitStack) -> trio.SocketStream:
        return await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", self.port))


async def test_a_drain_ends_idle_connections_and_lets_busy_ones_finish() -> None:
    """Idle connections may be in the middle of a head. `serve` returns after the last answer."""
    running = Running()
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        nursery.start_soon(running.run)
        idle = [await running.connect(stack) for _ in range(2 * ENDED_A_TURN)]
        await idle[0].send_all(b"GET /half")
        await idle[1].send_all(KEPT % b"")
        await idle[1].receive_some()
        busy = await running.connect(stack)
        await busy.send_all(KEPT % b"large")
        await busy.receive_some(1)
        running.drain.set()
        for stream in idle:
            assert await stream.receive_some() == b""
        assert not running.ended.is_set()
        assert len(await everything(busy)) >= len(LARGE)
        await running.ended.wait()
        with pytest.raises(OSError, match="all attempts to connect"):
            await trio.open_tcp_stream("127.0.0.1", running.port)


async def test_a_client_that_never_finishes_its_body_is_cut_off() -> None:
    """The client delays the end of the server by at most `drain_s`."""
    running = Running()
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        nursery.start_soon(running.run)
        stuck = await running.connect(stack)
        await stuck.send_all(b"POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n")
        await trio.sleep(0.1)
        started = trio.current_time()
        running.drain.set()
        await running.ended.wait()
        assert LIMITS.drain_s <= trio.current_time() - started < LIMITS.drain_s + 2


async def test_requests_that_arrived_before_a_drain_are_answered() -> None:
    """The connection may be idle, new, or not accepted yet."""
    running = Running()
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        nursery.start_soon(running.run)
        streams = [await running.connect(stack) for _ in range(300)]
        for stream in streams[::2]:
            await stream.send_all(KEPT % b"")
            assert (await stream.receive_some()).endswith(b"well")
        for stream in streams:  # in one turn, so that none is answered before the drain
            assert os.write(stream.socket.fileno(), KEPT % b"") == len(KEPT % b"")
        for _ in range(100):
            late = socket.create_connection(("127.0.0.1", running.port))
            late.sendall(KEPT % b"")
            streams.append(trio.SocketStream(trio.socket.from_stdlib_socket(late)))
            stack.push_async_callback(streams[-1].aclose)
        running.drain.set()
        for stream in streams:
            assert (await everything(stream)).endswith(b"well")


class Exhausted(socket.socket):
    """A listener whose accept fails a few times, and counts its calls."""

    failures: list[int]
    n_accepts = 0

    def accept(self) -> tuple[socket.socket, object]:
        self.n_accepts += 1
        if self.failures:
            number = self.failures.pop()
            raise OSError(number, "fault")
        return super().accept()


async def test_too_many_open_files_are_logged_once_and_retried() -> None:
    """Connections in the kernel's queue are accepted later. A connection that has ended causes no error."""
    listener = Exhausted()
    listener.failures = [errno.ECONNABORTED, errno.ENFILE, errno.EMFILE, errno.EMFILE]
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    running = Running(listener)
    with capture_logs() as records:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(running.run)
            started = trio.current_time()
            assert (await exchange(running.port, REQUEST % b"")).endswith(b"well")
            assert trio.current_time() - started >= 2 * PAUSE_S
            running.drain.set()
    assert [(record["event"], record["error"]) for record in records] == [
        ("connection_failed", f"OSError: [Errno {errno.EMFILE}] fault")
    ]


async def test_a_listener_that_another_worker_has_stopped_leaves_the_event_loop_idle() -> None:
    """The worker logs nothing, and answers open connections until its own drain."""
    listener = Exhausted()
    listener.failures = []
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    running = Running(listener)
    with capture_logs() as logged:
        async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
            nursery.start_soon(running.run)
            stream = await running.connect(stack)
            await stream.send_all(KEPT % b"")
            assert (await stream.receive_some()).endswith(b"well")
            assert stop(listener) == []
            before = listener.n_accepts
            for _ in range(100):
                await trio.lowlevel.checkpoint()
            assert listener.n_accepts == before + 1
            await stream.send_all(KEPT % b"")
            assert (await stream.receive_some()).endswith(b"well")
            running.drain.set()
            await running.ended.wait()
    assert logged == []


async def test_ended_connections_leave_no_task() -> None:
    running = Running()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(running.run)
        await trio.sleep(0.1)
        before = trio.lowlevel.current_statistics().tasks_living
        for _ in range(100):
            stream = await trio.open_tcp_stream("127.0.0.1", running.port)
            await stream.aclose()
        await trio.sleep(1)
        assert trio.lowlevel.current_statistics().tasks_living == before
        running.drain.set()


def test_other_addresses_than_loopback_need_keys_or_the_flag() -> None:
    """The refusal names the setting of keys and the flag."""
    for host in ("127.0.0.1", "localhost"):
        check_exposure(host, has_api_keys=False, insecure_no_auth=False)
    with pytest.raises(ConfigError, match="SVC_API_KEYS"):
        check_exposure("0.0.0.0", has_api_keys=False, insecure_no_auth=False)
    check_exposure("0.0.0.0", has_api_keys=True, insecure_no_auth=False)
    check_exposure("0.0.0.0", has_api_keys=False, insecure_no_auth=True)


def test_port_zero_binds_any_free_port() -> None:
    """The server has a port before it listens. Until then clients are refused."""
    with bind("127.0.0.1", 0, unread_timeout_s=30) as listener:
        port = listener.getsockname()[1]
        assert port > 0
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
        assert listen(listener) == ("127.0.0.1", port)
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
        assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
        socket.create_connection(("127.0.0.1", port), timeout=5).close()


def test_of_two_servers_that_start_together_only_one_listens() -> None:
    """Both servers can bind while neither listens. The second one to listen raises the error."""
    with bind("127.0.0.1", 0, unread_timeout_s=30) as first:
        port = first.getsockname()[1]
        with bind("127.0.0.1", port, unread_timeout_s=30) as second:
            listen(first)
            with pytest.raises(ConfigError, match="address already in use"):
                listen(second)


@pytest.mark.parametrize("host", ["host.invalid", "host..invalid"])
def test_a_host_that_does_not_exist_is_a_configuration_error(host: str) -> None:
    """The command prints no traceback."""
    with pytest.raises(ConfigError, match="cannot be resolved"):
        bind(host, 0, unread_timeout_s=30)


def test_stop_accepts_connected_clients_and_refuses_later_ones() -> None:
    """Later clients are refused at once."""
    with bind("127.0.0.1", 0, unread_timeout_s=30) as listener:
        address = listen(listener)
        listener.setblocking(False)
        with socket.create_connection(address) as client:
            (accepted,) = stop(listener)
            with accepted:
                accepted.sendall(b"well")
                assert client.recv(4) == b"well"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)


async def test_work_runs_until_it_ends_or_the_event_is_set() -> None:
    """The task that ends first cancels the other one."""
    ended: list[str] = []
    began = trio.current_time()

    async def after(seconds: float, what: str) -> None:
        await trio.sleep(seconds)
        ended.append(what)

    await run_until(lambda: after(2, "over"), lambda: after(1, "work"))
    assert ended == ["work"]
    await run_until(lambda: after(1, "over"), lambda: after(2, "work"))
    assert ended == ["work", "over"]
    assert trio.current_time() - began == pytest.approx(2)

"""The server process that forks worker processes: their state, and their end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from svc.training.search.fork_server import ForkServer

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[4]


def echo(connection: Connection) -> None:
    """Send the process ids of the worker and its server, then echo messages. Exit if a message is an exit code."""
    connection.send((os.getpid(), os.getppid()))
    while True:
        message = connection.recv()
        if isinstance(message, int):
            os._exit(message)
        connection.send(message)


@pytest.fixture
def server() -> Iterator[ForkServer]:
    started = ForkServer.spawn(__name__, echo.__name__)
    yield started
    started.close()


def ends(pid: int) -> bool:
    """Return whether the process ends soon. Its connections close a moment before it ends or is a zombie."""
    for _ in range(1_000):
        try:
            state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def test_each_worker_is_a_process_of_its_own(server: ForkServer) -> None:
    """All come from one server and answer independently. A crash closes only the worker's own connection."""
    first, second = server.fork(), server.fork()
    (pid, parent), (other, same_parent) = first.recv(), second.recv()
    assert parent == same_parent
    assert len({os.getpid(), parent, pid, other}) == 4
    first.send(1)
    with pytest.raises(EOFError):
        first.recv()
    second.send("x")
    assert second.recv() == "x"
    third = server.fork()
    assert third.recv()[1] == parent
    assert ends(pid)
    # Only the workers ignore Ctrl-C.
    assert not {signal.SIGINT, signal.SIGTERM, signal.SIGHUP} & signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_closing_ends_workers_and_server(server: ForkServer) -> None:
    """Workers may work or wait. A second close has no effect."""
    pid, parent = server.fork().recv()
    server.close()
    assert ends(pid)
    assert ends(parent)
    server.close()


def test_a_program_that_ignores_ended_children_can_close_a_server() -> None:
    """The kernel keeps no exit code for such a program. The server waits for its workers as usual."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        server = ForkServer.spawn(__name__, echo.__name__)
        pid, parent = server.fork().recv()
        ignored = int(Path(f"/proc/{parent}/status").read_text("utf-8").split("SigIgn:")[1].split()[0], 16)
        server.close()
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert not ignored >> (signal.SIGCHLD - 1) & 1
    assert ends(pid)
    assert ends(parent)


def test_a_server_can_be_closed_while_it_starts() -> None:
    """Closing ends the worker's connection, whether the server still imports or has just forked the worker."""
    server = ForkServer.spawn(__name__, echo.__name__)
    connection = server.fork()
    server.close()
    with pytest.raises((EOFError, ConnectionError)):
        while True:
            connection.recv()


def test_a_forked_server_has_the_modules_of_the_program() -> None:
    """The server imports no module again. A worker that fails prints its error and does not return into the program.

    Python 3.12 warns of forks in programs with threads. No warning is shown, because the threads of OpenBLAS are safe.
    """
    script = """
import os, warnings
fork, program = os.fork, os.getpid()
def warning_fork():
    if os.getpid() == program:
        warnings.warn("multi-threaded", DeprecationWarning)
    return fork()
os.fork = warning_fork
from svc.training.search.fork_server import ForkServer
known = []
def work(connection):
    connection.send(known)
    raise ValueError("no more")
known.append("seen")
server = ForkServer.from_fork(work)
connection = server.fork()
print(connection.recv())
try:
    connection.recv()
except EOFError:
    server.close()
print("end")
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "always::DeprecationWarning", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=True)
    assert done.stdout == "['seen']\nend\n"
    assert done.stderr.endswith("ValueError: no more\n")
    assert "multi-threaded" not in done.stderr

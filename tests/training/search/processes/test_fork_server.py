"""The process that workers are forked from: what workers have of it, and how all of them end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from svc.training.search.processes.fork_server import ForkServer

ROOT = Path(__file__).parents[4]


def echo(connection: Connection) -> None:
    """Tell the process ids of the worker and its server, then give back what comes; end at a number, with it."""
    connection.send((os.getpid(), os.getppid()))
    while True:
        given = connection.recv()
        if isinstance(given, int):
            os._exit(given)
        connection.send(given)


@pytest.fixture
def server() -> Iterator[ForkServer]:
    started = ForkServer.started(__name__, echo.__name__)
    yield started
    started.close()


def ends(pid: int) -> bool:
    """Whether the process ends soon: its connections close a moment before it is gone, or a zombie."""
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
    """Both come from one server, and answer independently; one that crashes closes its connection alone."""
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


def test_closing_ends_workers_and_server(server: ForkServer) -> None:
    """Whether they work or wait; once more changes nothing."""
    pid, parent = server.fork().recv()
    server.close()
    assert ends(pid)
    assert ends(parent)
    server.close()


def test_a_server_that_starts_need_not_be_waited_for() -> None:
    """It still imports when it shall end, or has just forked a worker, which may have said something already."""
    server = ForkServer.started(__name__, echo.__name__)
    connection = server.fork()
    server.close()
    with pytest.raises((EOFError, ConnectionError)):
        while True:
            connection.recv()


@pytest.mark.system
def test_a_forked_server_has_what_the_program_has() -> None:
    """Nothing is imported again; a worker that fails says why and does not go on with the program."""
    script = """
from svc.training.search.processes.fork_server import ForkServer
known = []
def work(connection):
    connection.send(known)
    raise ValueError("no more")
known.append("seen")
server = ForkServer.forked(work)
connection = server.fork()
print(connection.recv())
try:
    connection.recv()
except EOFError:
    server.close()
print("end")
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=60, check=True
    )
    assert done.stdout == "['seen']\nend\n"
    assert done.stderr.endswith("ValueError: no more\n")

"""Processes forked from a server process: their start, their end and their descriptors."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from svc import fork_server

ECHO = """
import os
from svc.fork_server import fork, requests
for descriptors in requests(end, parent):
    child = fork(lambda: os.write(descriptors[0], b"forked") and 1 / len(descriptors[1:]))
    _, status = os.waitpid(child, 0)
    end.send(b"%d %d" % (os.waitstatus_to_exitcode(status), len(os.listdir("/proc/self/fd"))))
"""


@pytest.mark.system
def test_a_server_forks_a_process_for_each_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that raises exits with 1. The server closes the descriptors, and ends with its socket.

    A file of the working directory replaces no module.
    """
    (tmp_path / "socket.py").write_text("raise SystemExit('the wrong module')")
    monkeypatch.chdir(tmp_path)
    own, of_server = socket.socketpair()
    reading, writing = os.pipe()
    with of_server:
        server = fork_server.spawn(ECHO, of_server, os.environ)
    answers = []
    for descriptors in ([writing, writing], [writing], [writing, writing]):
        socket.send_fds(own, [b"f"], descriptors)
        answers.append(own.recv(100).split())
        assert os.read(reading, 100) == b"forked"
    assert [code for code, _ in answers] == [b"0", b"1", b"0"]
    assert answers[0][1] == answers[2][1]
    own.close()
    assert server.wait(60) == 0
    os.close(reading)
    os.close(writing)


def test_signals_are_blocked_only_inside_the_block() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with fork_server.signals_blocked():
        inside = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert inside >= {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before

"""The fork server: a process that imports the training libraries once and forks the workers of a search.

`svc train` forks the server from itself before it starts any thread, so the server imports nothing again. A program
that uses svc as a library may already have threads, and a fork could copy a lock while another thread holds it. The
server of such a program is a new Python process, which imports the libraries once for all workers.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import warnings
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection

from svc import fork_server
from svc.processes import end_with

_PATIENCE_S = 1.0
"""Seconds to wait until a closed server ends. A server that needs longer is still importing, so it is killed."""

Work = Callable[[Connection], None]
"""The main function of a worker process. It reads from the connection until that raises EOFError."""


class ForkServer:
    """A handle to the process that forks workers, and the way to ask it for a new worker.

    `close` ends the server and its workers. They also end when this process ends, even if it is killed.
    """

    def __init__(self, pid: int, control: socket.socket, wait: Callable[[], object]) -> None:
        self.pid, self._control, self._wait = pid, control, wait

    @classmethod
    def from_fork(cls, work: Work) -> ForkServer:
        """Return a server forked from this process, which must have no other thread."""
        own, of_server = socket.socketpair()
        parent = os.getpid()

        def child() -> None:
            own.close()
            serve(of_server, work, parent)

        with of_server, fork_server.signals_blocked(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of OpenBLAS's fork-safe threads
            pid = fork_server.fork(child)
        return cls(pid, own, partial(os.waitpid, pid, 0))

    @classmethod
    def spawn(cls, module: str, work: str) -> ForkServer:
        """Return a server in a new Python process. Its workers run the function named `work` of `module`."""
        own, of_server = socket.socketpair()
        with of_server:
            statement = f"from {__name__} import serve; from {module} import {work}; serve(end, {work}, parent)"
            process = fork_server.spawn(statement, of_server, os.environ)
        return cls(process.pid, own, process.wait)

    def fork(self) -> Connection:
        """Ask for a new worker and return the connection to it, without waiting for its start."""
        own, of_worker = socket.socketpair()
        with of_worker:
            # The byte has no meaning, but a descriptor cannot be sent without data.
            socket.send_fds(self._control, [b"f"], [of_worker.fileno()])
        return Connection(own.detach())

    def close(self) -> None:
        """End all workers and the server, and wait for them. A second call does nothing.

        The wait adds their processor time to this process's `RUSAGE_CHILDREN`.
        """
        if self._control.fileno() < 0:
            return
        with self._control:
            self._control.shutdown(socket.SHUT_WR)
            self._control.settimeout(_PATIENCE_S)
            try:
                self._control.recv(1)  # returns when the server ends, without data
            except TimeoutError:
                os.kill(self.pid, signal.SIGKILL)
            except ConnectionError:  # the server ended with a request unread
                pass
        with contextlib.suppress(ChildProcessError):  # raised after the wait if this process ignores SIGCHLD
            self._wait()


def serve(control: socket.socket, work: Work, parent: int) -> None:
    """Fork a worker for each socket received over `control`, until the other end of `control` is closed.

    This is the main loop of the server. The server ends when the process `parent` ends.
    """
    server, workers = os.getpid(), set[int]()
    for (descriptor,) in fork_server.requests(control, parent):
        with contextlib.suppress(ChildProcessError):
            # Workers are waited for only when another is requested: until then a zombie keeps only its process id.
            while ended := os.waitpid(-1, os.WNOHANG)[0]:
                workers.discard(ended)
        with contextlib.suppress(OSError):  # without free memory: the closed connection tells that the worker has ended
            workers.add(fork_server.fork(partial(_work, control, descriptor, work, server)))
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _work(control: socket.socket, descriptor: int, work: Work, server: int) -> None:
    # The server's end is inherited. Kept open, it would hide from the search that the server has ended.
    control.close()
    end_with(server)
    # Left open until the process exits, because the search ends workers without a connection before they print errors.
    connection = Connection(descriptor)
    with contextlib.suppress(EOFError, ConnectionError):  # the search has ended and closed the other end
        work(connection)

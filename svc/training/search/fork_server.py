"""The fork server: a process that imports the training libraries once and forks the workers of a search.

`svc train` forks the server from itself before it starts any thread, so the server imports nothing again. A program
that uses svc as a library may already have threads, and a fork could copy a lock while another thread holds it. The
server of such a program is a new Python process, which imports the libraries once for all workers.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import NoReturn

from svc.processes import end_with, reset_sigchld

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PATIENCE_S = 1.0
"""Seconds to wait until a closed server ends. A server that needs longer is still importing, so it is killed."""

Work = Callable[[Connection], None]
"""The main function of a worker process. It reads from the connection until that raises EOFError."""


class ForkServer:
    """A handle to the process that forks workers, and the way to ask it for a new worker.

    `close` ends the server and its workers. They also end when this process ends, even if it is killed.
    """

    def __init__(self, pid: int, control: socket.socket) -> None:
        self._pid = pid
        self._control = control

    @classmethod
    def from_fork(cls, work: Work) -> ForkServer:
        """Return a server forked from this process, which must have no other thread."""
        own, of_server = socket.socketpair()
        parent = os.getpid()
        with of_server, _signals_blocked(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of OpenBLAS's fork-safe threads
            pid = os.fork()
            if not pid:
                own.close()
                _run(lambda: serve(of_server, work, parent))
        return cls(pid, own)

    @classmethod
    def spawn(cls, module: str, work: str) -> ForkServer:
        """Return a server in a new Python process. Its workers run the function named `work` of `module`."""
        own, of_server = socket.socketpair()
        program = (
            f"import socket, sys; sys.path[:] = {sys.path!r}\n"
            f"from {__name__} import serve\n"
            f"from {module} import {work}\n"
            f"serve(socket.socket(fileno={of_server.fileno()}), {work}, {os.getpid()})"
        )
        with of_server:
            of_server.set_inheritable(True)
            # The server inherits blocked signals, so that Ctrl-C in a terminal reaches only this process.
            pid = os.posix_spawn(sys.executable, [sys.executable, "-c", program], os.environ, setsigmask=_SIGNALS)
        return cls(pid, own)

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
                os.kill(self._pid, signal.SIGKILL)
            except ConnectionError:  # the server ended with a request unread
                pass
        with contextlib.suppress(ChildProcessError):  # raised after the wait if this process ignores SIGCHLD
            os.waitpid(self._pid, 0)


def serve(control: socket.socket, work: Work, parent: int) -> None:
    """Fork a worker for each socket received over `control`, until the other end of `control` is closed.

    This is the main loop of the server. The server ends when the process `parent` ends.
    """
    end_with(parent)
    reset_sigchld()
    gc.freeze()  # a worker's garbage collector would write to memory pages shared with the server, and so copy them
    server, workers = os.getpid(), set[int]()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            break
        with contextlib.suppress(ChildProcessError):
            while ended := os.waitpid(-1, os.WNOHANG)[0]:
                workers.discard(ended)
        with Connection(descriptors[0]) as connection, contextlib.suppress(OSError):
            pid = os.fork()  # fails without free memory: the closed connection then tells that the worker has ended
            if not pid:
                control.close()
                _run(lambda: _work(connection, work, server))
            workers.add(pid)
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _work(connection: Connection, work: Work, server: int) -> None:
    end_with(server)
    with contextlib.suppress(EOFError, ConnectionError):  # the search has ended and closed the other end
        work(connection)


def _run(child: Callable[[], None]) -> NoReturn:
    """Run `child` in a forked process, and exit without returning.

    A return would continue the program of the parent in its copy.
    """
    try:
        child()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block SIGINT, SIGTERM and SIGHUP for processes that are started inside the `with` block.

    A terminal sends Ctrl-C to all processes of its group, but only the main process may decide when workers end.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

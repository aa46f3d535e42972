"""The process that forks workers, so that one import of the training libraries serves all of them.

`svc train` forks it from itself before it starts any thread, so nothing is imported a second time. A program that calls
svc may have threads, which must not be forked. Its server is a new Python, which imports the libraries once.
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

from svc.processes import end_with

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PATIENCE_S = 1.0
"""Seconds that a closed server may take to end. Then it is killed, because it is still importing."""

Work = Callable[[Connection], None]
"""The main function of a worker. It serves its connection until that raises EOFError."""


class ForkServer:
    """Forks workers that run `work`.

    Workers and server end with `close`, and with this process.
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
        """Return a server that is a new Python and runs the function `work` of `module` in workers."""
        own, of_server = socket.socketpair()
        program = (
            f"import socket, sys; sys.path[:] = {sys.path!r}\n"
            f"from {__name__} import serve\n"
            f"from {module} import {work}\n"
            f"serve(socket.socket(fileno={of_server.fileno()}), {work}, {os.getpid()})"
        )
        with of_server:
            of_server.set_inheritable(True)
            pid = os.posix_spawn(sys.executable, [sys.executable, "-c", program], os.environ, setsigmask=_SIGNALS)
        return cls(pid, own)

    def fork(self) -> Connection:
        """Return the connection to a new worker, without waiting until it has begun."""
        own, of_worker = socket.socketpair()
        with of_worker:
            socket.send_fds(self._control, [b"f"], [of_worker.fileno()])
        return Connection(own.detach())

    def close(self) -> None:
        """End all workers and the server, and wait for them.

        Only then does their processor time count as that of children.
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
        os.waitpid(self._pid, 0)


def serve(control: socket.socket, work: Work, parent: int) -> None:
    """Fork a worker for each connection received over `control`, until its other end closes.

    Runs in the server.
    """
    end_with(parent)
    gc.freeze()  # collecting would write to pages and so unshare them
    server, workers = os.getpid(), set[int]()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            break
        with contextlib.suppress(ChildProcessError):
            while ended := os.waitpid(-1, os.WNOHANG)[0]:
                workers.discard(ended)
        with Connection(descriptors[0]) as connection, contextlib.suppress(OSError):  # out of memory: only close
            pid = os.fork()
            if not pid:
                control.close()
                _run(lambda: _work(connection, work, server))
            workers.add(pid)
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _work(connection: Connection, work: Work, server: int) -> None:
    end_with(server)
    with contextlib.suppress(EOFError, ConnectionError):  # the parent closed it: the training is over
        work(connection)


def _run(child: Callable[[], None]) -> NoReturn:
    """Run `child` in a forked process and exit.

    The child must not return into the program of which it is a copy.
    """
    try:
        child()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block the signals of a terminal for processes that start within. Ctrl-C would reach them too."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

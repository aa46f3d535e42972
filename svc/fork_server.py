"""Fork servers: processes that import modules once and then fork the processes that use these modules.

A server gets a message with open descriptors for each process that it shall fork. It ends when the other end of its
socket is closed, or when the process that started it ends.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping

from svc.processes import end_with, reset_sigchld

MOST_DESCRIPTORS = 5
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Block SIGINT, SIGTERM and SIGHUP for processes that are started inside the `with` block.

    A terminal sends Ctrl-C to all processes of its group, but only the main process may decide when the others end.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def spawn(serve: str, end: socket.socket, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a Python process that runs the statement `serve`, and return it. Raises OSError.

    The statement has the names `end` and `parent`: a socket made from the descriptor of this `end`, and the id of this
    process. The new process imports modules from where this process does.
    """
    # -P, because a file of the working directory could otherwise replace the modules that set `sys.path`.
    program = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "import socket; end, parent = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])\n"
        f"{serve}"
    )
    command = [sys.executable, "-P", "-c", program, str(end.fileno()), str(os.getpid())]
    with signals_blocked():
        return subprocess.Popen(command, env=dict(environ), pass_fds=[end.fileno()], stdin=subprocess.DEVNULL)


def requests(end: socket.socket, parent: int) -> Iterator[list[int]]:
    """Yield the descriptors of each message on `end`, and close them afterwards. This is the main loop of a server.

    The server ends when the process `parent` ends.
    """
    end_with(parent)
    reset_sigchld()
    gc.freeze()  # the collector of a forked process would write to memory pages that it shares, and so copy them
    while True:
        message, descriptors, _, _ = socket.recv_fds(end, 1, MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        if not message:
            return
        yield descriptors
        for descriptor in descriptors:
            os.close(descriptor)


def fork(child: Callable[[], object]) -> int:
    """Fork a process that calls `child` and exits, and return its id. Raises OSError.

    The process exits here even if `child` raises, because it would otherwise continue the program of its parent.
    """
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        child()
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)

"""The template process, from which all workers are forked.

The template is a fresh interpreter that has imported all modules of a worker. Its forks start in milliseconds and share
its memory. The server itself cannot be forked, because it has threads and holds signing keys. The environment of the
template has no signing key and no API key.

For each worker, the template forks an intermediate process, which forks the worker and ends at once. The worker then
becomes a child of the server (`adopt_orphans`), so it outlives the template.
"""

from __future__ import annotations

import gc
import os
import socket
import struct
import subprocess
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import trio

from svc import events, fork_server, logs, settings
from svc.processes import end_with
from svc.serving.workers import channel
from svc.serving.workers.worker import Ends, live

PID = struct.Struct("=i")
_SERVE = "from svc.serving.workers.template import serve; serve(end, parent)"
_NOT_FOR_WORKERS = (
    "SVC_SIGNING_KEYS", "SVC_VERIFY_KEYS", "SVC_SIGNING_KEYS_FILE", "SVC_API_KEYS", "SVC_API_KEYS_FILE", "SVC_ENV_FILE",
    "SVC_API_KEY_POLICIES", "SVC_STATE_DIR", "SVC_METRICS_PORT", "SVC_WORKERS", "SVC_TLS_CERT_FILE", "SVC_TLS_KEY_FILE",
    "SVC_TLS_CLIENT_CA_FILE", "SVC_ARTIFACT_ROOT", "SVC_LOCK_DIR",
)  # fmt: skip
_OTHERS_FOR_WORKERS = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "NO_COLOR", "TERM", "LD_LIBRARY_PATH")

EARLY_S = 1.0
"""A process that ends sooner than this after it became ready counts as an early death."""
EARLY_DEATHS_ALLOWED = 3
"""Maximum number of early deaths in a row that are each followed by an immediate restart."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 30.0
POLL_S = 0.1
"""Seconds between two checks whether the template has ended."""


@dataclass(slots=True)
class Pauses:
    """The pauses before a process that keeps ending is restarted.

    The first EARLY_DEATHS_ALLOWED early deaths in a row cause no pause. After each further one the pause doubles, from
    FIRST_PAUSE_S to LONGEST_PAUSE_S.
    """

    early_deaths: int = 0

    def after(self, served_s: float) -> float:
        """Return the pause in seconds before the restart of a process that was ready for `served_s` seconds."""
        self.early_deaths = self.early_deaths + 1 if served_s < EARLY_S else 0
        if self.early_deaths <= EARLY_DEATHS_ALLOWED:
            return 0.0
        return float(min(FIRST_PAUSE_S * 2 ** (self.early_deaths - EARLY_DEATHS_ALLOWED - 1), LONGEST_PAUSE_S))

    @property
    def is_failing(self) -> bool:
        """True after more early deaths in a row than allowed."""
        return self.early_deaths > EARLY_DEATHS_ALLOWED


def environment(variables: Mapping[str, str], scoring_threads: int) -> dict[str, str]:
    """Return the environment of workers.

    It has all settings except those in `_NOT_FOR_WORKERS`, which include all keys. It also has variables of the system,
    OpenTelemetry, Python and malloc. `scoring_threads` is the number of scoring threads of each worker, unless
    SVC_SCORING_THREADS is set.
    """
    names = {variable.env for _, _, variable in settings.variables()} - {*_NOT_FOR_WORKERS}
    kept = {
        name: value
        for name, value in variables.items()
        if name in names or name in _OTHERS_FOR_WORKERS or name.startswith(("OTEL_", "PYTHON", "MALLOC_"))
    }
    threads = variables.get("SVC_SCORING_THREADS") or str(scoring_threads)
    return {**kept, "SVC_SCORING_THREADS": threads, "OPENBLAS_NUM_THREADS": "1"}


class Template:
    """The template process. It is restarted when it ends, so that the next worker rarely waits for the imports."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._end: socket.socket
        self._process: subprocess.Popen[bytes]
        self._copying = trio.Lock()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Start the process, and restart it each time it ends, until cancelled. Workers forked from it go on.

        Call it in the main thread, because the kernel ends the process when the thread that started it ends.
        """
        pauses = Pauses()
        self._start()
        task_status.started()
        try:
            while True:
                began = trio.current_time()
                # Not by a pidfd, which cannot be opened while descriptors are lacking.
                while (code := self._process.poll()) is None:  # noqa: ASYNC110 - the process sets no event
                    await trio.sleep(POLL_S)
                async with self._copying:  # a `copy` may still use this process, and fails because it has ended
                    self._end.close()
                logs.emit(events.WORKER_TEMPLATE_RESTARTED, error=f"it ended with exit code {code}")
                await trio.sleep(pauses.after(trio.current_time() - began))
                await channel.retry(self._start, partial(trio.sleep, channel.PAUSE_S), OSError)
        finally:
            self._end.close()
            self._process.kill()
            self._process.wait()

    def _start(self) -> None:
        """Start the process. Raises OSError if the system lacks descriptors, memory or processes."""
        end, template_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with template_end, ExitStack() as unused:
            unused.enter_context(end)
            self._process = fork_server.spawn(_SERVE, template_end, self._environ)
            unused.pop_all()
        end.setblocking(False)
        self._end = end

    async def copy(self, descriptors: list[int]) -> int:
        """Fork a worker with these descriptors, and return its process id. Raises OSError if the template has ended.

        The first call waits until the template has imported all modules. Overlapping calls wait for each other.
        """
        # Two overlapping calls would each take the process id that is meant for the other.
        async with self._copying:
            socket.send_fds(self._end, [b"w"], descriptors)
            receive = partial(self._end.recv, PID.size)
            data = await channel.retry(receive, partial(trio.lowlevel.wait_readable, self._end))
        if not data:
            raise ConnectionResetError("the process that workers are copied from has ended")
        return int(PID.unpack(data)[0])


def serve(end: socket.socket, server: int) -> None:
    """Run the template process: fork a worker for each message on `end`. `server` is the process id of the server."""
    # `requests` freezes all objects that are left, so garbage would stay for ever.
    gc.collect()
    for descriptors in fork_server.requests(end, server):
        pid = _fork_orphan(partial(_work, end, server, descriptors))
        end.send(PID.pack(pid))


def _fork_orphan(child: Callable[[], object]) -> int:
    """Fork a process that calls `child`, and return its process id.

    The fork is made by an intermediate process that has ended when this function returns. So the fork is an orphan,
    which the server adopts.
    """
    reading, writing = os.pipe()

    def orphan(parent: int) -> None:
        os.close(reading)
        os.close(writing)
        while os.getppid() == parent:  # the intermediate process has not ended yet
            os.sched_yield()
        child()

    intermediate = fork_server.fork(lambda: os.write(writing, PID.pack(fork_server.fork(partial(orphan, os.getpid())))))
    # If the intermediate process fails, the read below ends only if no other process can write.
    os.close(writing)
    os.waitpid(intermediate, 0)
    pid = PID.unpack(os.read(reading, PID.size))[0]
    os.close(reading)
    return int(pid)


def _work(end: socket.socket, server: int, descriptors: list[int]) -> None:
    """Run a worker in this process."""
    end.close()
    end_with(server)
    live(Ends.of(descriptors))

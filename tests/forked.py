"""Commands of svc in processes forked from one that has imported the libraries: ready in 20 ms instead of 3 s."""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

_FORKS = multiprocessing.get_context("forkserver")
_PRELOADED = [
    "svc.cli.main",
    "svc.serving.run",
    "prometheus_client",
    "svc.training.run",
    "svc.artifact.store_fsspec",
    "irspack",
    "sqlalchemy.orm",
    "alembic.command",
    "pyarrow.pandas_compat",
]
_FORKS.set_forkserver_preload(_PRELOADED)


class Forked:
    """A process with one command line of svc, whose standard error is a pipe. Used like `subprocess.Popen`."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path | None = None,
        *,
        log: Path | None = None,
    ) -> None:
        """Start the process in `folder`, or in the current one. Its output and errors go to the file `log`, if any."""
        reader, writer = _FORKS.Pipe(duplex=False)
        files = {2: writer}
        if log is not None:
            writer.close()
            files = {number: Connection(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)) for number in (1, 2)}
        self._process = _start(command, environment, folder or Path.cwd(), files)
        self.stderr = os.fdopen(os.dup(reader.fileno()), encoding="utf-8")
        reader.close()
        weakref.finalize(self, self.stderr.close)  # some tests only kill the process
        if log is not None:
            self.stderr.close()
        self.kill, self.terminate = self._process.kill, self._process.terminate
        self.pid = self._process.pid or 0

    @property
    def returncode(self) -> int | None:
        code: int | None = self._process.exitcode
        return code

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit code. Raises subprocess.TimeoutExpired."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("svc", timeout or 0.0)
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):  # it may end meanwhile
                os.kill(self.pid, number)

    def communicate(self, timeout: float | None = None) -> tuple[None, str]:
        """Wait for the end. Returns the rest of standard error in second place."""
        with self.stderr:
            rest = self.stderr.read()
        self.wait(timeout)
        return None, rest


def _start(command: Sequence[str], environment: Mapping[str, str], folder: Path, files: dict[int, Connection]) -> Any:
    """Start a process that has these standard files, and close them here."""
    arguments = (list(command), dict(environment), folder, files)
    process = _FORKS.Process(target=_run, args=arguments, daemon=True)
    process.start()
    for file in files.values():
        file.close()
    return process


def _run(command: list[str], environment: dict[str, str], folder: Path, files: dict[int, Connection]) -> None:
    import fsspec.config

    from svc.cli.main import INTERRUPTED, run

    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup, which svc respects
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    fsspec.config.set_conf_env(fsspec.config.conf)  # fsspec reads its variables when it is imported
    for number, file in files.items():
        os.dup2(file.fileno(), number)
        file.close()
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    if "VIRTUAL_ENV" in environment:  # a shell may have installed plug-ins there
        sys.path.append(sysconfig.get_path("purelib", vars={"base": environment["VIRTUAL_ENV"]}))
    code = run(command)
    sys.stdout.flush()
    if code in INTERRUPTED:
        os._exit(code)  # as svc.cli.main does
    sys.exit(code)


@cache
def program() -> str:
    """Return the path of a program that is used like `svc` and starts its command in a forked process.

    The process has the files, the folder and the environment of the program, gets its signals, and ends with it.
    """
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{folder}/commands")
    listener.listen(64)

    def accept() -> None:
        while True:
            threading.Thread(target=_answer, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    path = folder / "svc"
    path.write_text(f"#!{sys.executable} -IS\nADDRESS = '{folder}/commands'\n{_PROGRAM}")
    path.chmod(0o755)
    return str(path)


_PROGRAM = """
import json, os, signal, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect(ADDRESS)
answers = server.makefile("rw")
socket.send_fds(server, [b"files"], [0, 1, 2])
print(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]), file=answers, flush=True)
child = int(answers.readline())
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda number, _: os.kill(child, number))
code = int(answers.readline())
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


def _answer(client: socket.socket) -> None:
    """Run the command of one program, and tell it the id and the exit code of the process."""
    with client, client.makefile("rw") as lines:
        _, files, *_ = socket.recv_fds(client, 5, 3)
        command, environment, folder = json.loads(lines.readline())
        process = _start(command, environment, Path(folder), dict(enumerate(map(Connection, files))))
        print(process.pid, file=lines, flush=True)
        wait([process.sentinel, client])
        if process.exitcode is None:
            process.kill()
        else:
            print(process.exitcode, file=lines, flush=True)

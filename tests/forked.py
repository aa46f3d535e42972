"""Commands of svc in processes forked from one that has imported the libraries: ready in 20 ms instead of 3 s."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

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

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path | None = None) -> None:
        """Start the process in `folder`, or in the current one."""
        reader, writer = _FORKS.Pipe(duplex=False)
        arguments = (list(command), dict(environment), folder or Path.cwd(), writer)
        self._process = _FORKS.Process(target=_run, args=arguments, daemon=True)
        self._process.start()
        writer.close()
        self.stderr = os.fdopen(os.dup(reader.fileno()), encoding="utf-8")
        reader.close()
        self.kill, self.terminate = self._process.kill, self._process.terminate
        self.pid = self._process.pid or 0

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

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
            os.kill(self.pid, number)

    def communicate(self, timeout: float | None = None) -> tuple[None, str]:
        """Wait for the end. Returns the rest of standard error in second place."""
        with self.stderr:
            rest = self.stderr.read()
        self.wait(timeout)
        return None, rest


def _run(command: list[str], environment: dict[str, str], folder: Path, stderr: Connection) -> None:
    import fsspec.config

    from svc.cli.main import run

    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    fsspec.config.set_conf_env(fsspec.config.conf)  # fsspec reads its variables when it is imported
    os.dup2(stderr.fileno(), 2)
    stderr.close()
    sys.exit(run(command))

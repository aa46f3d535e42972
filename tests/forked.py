"""Commands of svc in processes forked from one that has imported the libraries: ready in 20 ms instead of 3 s."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection

_FORKS = multiprocessing.get_context("forkserver")
_PRELOADED = ["svc.cli.main", "svc.training.run", "svc.artifact.store_fsspec", "irspack", "sqlalchemy"]
_FORKS.set_forkserver_preload(_PRELOADED)


class Forked:
    """One command line of svc in a process of its own, which `stderr` reads. Used like `subprocess.Popen`."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        reader, writer = _FORKS.Pipe(duplex=False)
        self._process = _FORKS.Process(target=_run, args=(list(command), dict(environment), writer))
        self._process.start()
        writer.close()
        self.stderr = os.fdopen(os.dup(reader.fileno()), encoding="utf-8")
        reader.close()
        self.kill = self._process.kill

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def communicate(self, timeout: float | None = None) -> tuple[None, str]:
        """Wait for the end. Returns the rest of standard error in second place."""
        with self.stderr:
            rest = self.stderr.read()
        self._process.join(timeout)
        return None, rest


def _run(command: list[str], environment: dict[str, str], stderr: Connection) -> None:
    import fsspec.config

    from svc.cli.main import run

    os.environ.clear()
    os.environ.update(environment)
    fsspec.config.set_conf_env(fsspec.config.conf)  # fsspec reads its variables when it is imported
    os.dup2(stderr.fileno(), 2)
    stderr.close()
    sys.exit(run(command))

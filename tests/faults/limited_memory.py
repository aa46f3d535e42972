"""Run a command or a load with limited address space, with more memory each time, and print a JSON line for each.

`python -m tests.faults.limited_memory FOLDER STEP_BYTES WHAT`, where WHAT is a command line, or `start` or `swap` for
the loads of a server. FOLDER has the files of `tests.faults.test_serving`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import io
import json
import os
import resource
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import trio

from svc.serving.models.loader import Loader
from tests.faults.books import run, set_environment
from tests.faults.test_serving import TICKS, server

PLENTY = 1 << 40
LIMITS = resource.getrlimit(resource.RLIMIT_AS)
"""The limits to restore. They are read once, because a load during another limited load would read its limit."""
LONGEST_S = 150
SUCCESSES = 2
"""The number of successful attempts in a row after which memory suffices."""


@contextlib.contextmanager
def limited(more_bytes: int) -> Iterator[None]:
    """Limit the address space to its present size plus `more_bytes`."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more_bytes, LIMITS[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, LIMITS)


@contextlib.contextmanager
def loads_limited(more_bytes: int) -> Iterator[None]:
    """Limit the address space during loads only. The event loop waits then, and trio fails without memory."""
    load = Loader.load

    def limited_load(self: Loader, *arguments: Any, **options: Any) -> Any:
        with limited(more_bytes):
            return load(self, *arguments, **options)

    with mock.patch.object(Loader, "load", limited_load):
        yield


def command_ended(command: str, folder: Path, more_bytes: int) -> dict[str, Any]:
    """Return the result of a command with limited memory, and of a repetition without a limit."""
    told = io.StringIO()
    with contextlib.redirect_stderr(told), contextlib.redirect_stdout(io.StringIO()):
        with limited(more_bytes):
            exit_code = run(command, folder)
        lines = told.getvalue().splitlines()
        again = run(command, folder)
        verified = run("history recipes/books.yaml --verify", folder) if command.startswith("train") else 0
    return {
        "is_whole": exit_code == 0,
        "exit_code": exit_code,
        "told": json.loads(lines[-1]) if lines else {},
        "again": again,
        "verified": verified,
        "left": [path.name for path in folder.rglob("*.tmp")],
    }


async def load_ended(moment: str, folder: Path, more_bytes: int) -> dict[str, Any]:
    """Return the model and error of a server after a load with limited memory, and after polls without a limit."""
    async with server(folder) as served:
        with loads_limited(more_bytes if moment == "start" else PLENTY):
            await served.watcher.start()
        before = served.sha8 if moment == "swap" else None
        if moment == "swap":
            served.point_to("second")
            with loads_limited(more_bytes):
                await served.poll()
        wanted = served.named("second" if moment == "swap" else "first")
        result = {
            "is_whole": served.sha8 == wanted,
            "before": before,
            "served": served.sha8,
            "told": {"error": served.entry.faults.load},
            "traceback": any("traceback" in record for record in served.records),
        }
        for _ in range(TICKS):
            await served.poll()
        return {**result, "again": int(served.sha8 != wanted or served.entry.faults.load is not None)}


def ended(what: str, folder: Path, more_bytes: int) -> bool:
    """Make an attempt in a copy of the folder, and print its result. Return True if memory sufficed."""
    copy = folder.with_name(f"copy{os.getpid()}")
    shutil.copytree(folder, copy)
    with pytest.MonkeyPatch.context() as patch:
        set_environment(patch, copy)
        is_load = what in {"start", "swap"}
        result = trio.run(load_ended, what, copy, more_bytes) if is_load else command_ended(what, copy, more_bytes)
    shutil.rmtree(copy)
    print(json.dumps({"more_bytes": more_bytes, **result}), flush=True)  # noqa: T201 - this is its output
    return bool(result["is_whole"])


def main(folder: Path, step_bytes: int, what: str) -> None:
    faulthandler.dump_traceback_later(LONGEST_S, exit=True)  # shows the place if the process hangs
    ended(what, folder, PLENTY)
    successes = more_bytes = 0
    while successes < SUCCESSES:
        successes = successes + 1 if ended(what, folder, more_bytes) else 0
        more_bytes += max(step_bytes, more_bytes * step_bytes // (2 << 20))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])

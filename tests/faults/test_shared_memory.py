"""A load for several workers closes all memory files if any of its calls on them fails."""

from __future__ import annotations

import errno
import fcntl
import gc
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from svc.errors import ArtifactError, exhaustion
from svc.serving.workers.package import pack_loaded
from tests.faults.failing_calls import STRIDE
from tests.serving.artifacts import factor_model
from tests.serving.workers.test_package import load, prepare

FAULTS = [
    ("memfd_create", errno.EMFILE),
    ("memfd_create", errno.ENFILE),
    ("memfd_create", errno.ENOMEM),
    ("write", errno.ENOSPC),
    ("write", "short"),
    ("ftruncate", errno.ENOMEM),
    ("fcntl", errno.EBUSY),
    ("fstat", errno.ENOMEM),
]
"""The calls and their errors. `fstat` stands for the following `mmap`, which Python code cannot replace."""


class FailingMemory:
    """Lets the n-th call of a kind on memory files fail, or write only half."""

    def __init__(self, name: str, failure: int | str, nth: int) -> None:
        self._name, self._failure, self._nth = name, failure, nth
        self.made = 0

    @contextmanager
    def failing(self) -> Iterator[None]:
        module: Any = fcntl if self._name == "fcntl" else os
        call = getattr(module, self._name)

        def counted(*arguments: Any) -> Any:
            if self._name != "memfd_create" and "/memfd:" not in str(Path(f"/proc/self/fd/{arguments[0]}").readlink()):
                return call(*arguments)
            self.made += 1
            if self.made != self._nth:
                return call(*arguments)
            if isinstance(self._failure, int):
                raise OSError(self._failure, os.strerror(self._failure))
            descriptor, content = arguments
            return call(descriptor, content[: max(len(content) // 2, 1)])

        with mock.patch.object(module, self._name, counted):
            yield


def memory_files() -> list[str]:
    """Return the memory files that this process has open."""
    gc.collect()
    paths = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the folder's own descriptor
            paths.append(str(link.readlink()))
    return [path for path in paths if "/memfd:" in path]


@pytest.mark.parametrize(("name", "failure"), FAULTS)
@pytest.mark.system
def test_a_failing_call_on_a_memory_file_leaves_no_open_file(name: str, failure: int | str, tmp_path: Path) -> None:
    """A file that stays open would occupy the memory of a whole model."""
    prepare(tmp_path, factor_model(6, 8, 3))
    assert memory_files() == []
    for nth in itertools.count(1, max(STRIDE // 4, 1) if name == "write" else 1):
        calls = FailingMemory(name, failure, nth)
        try:
            with calls.failing():
                load(tmp_path, pack_loaded)
        except (OSError, ArtifactError) as error:
            assert failure != "short"
            assert failure in {errno.ENOSPC, errno.EBUSY} or exhaustion(error) is not None
        else:
            assert failure == "short" or calls.made < nth
        assert memory_files() == []
        if calls.made < nth:
            break
    print(f"share, {name}: {calls.made} calls")  # noqa: T201 - `-rP` shows how many
    assert nth > 1

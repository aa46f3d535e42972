"""Modules that are imported on first use, by any thread."""

from __future__ import annotations

import os
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from svc.late_imports import LateModule, if_imported, import_late

SLOW = "import threading\nthreading.Event().wait(0.05)\n"


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write two packages whose imports take a moment and then import each other, and return their folder."""
    for own, other in (("slow_a", "slow_b"), ("slow_b", "slow_a")):
        (tmp_path / f"{own}.py").write_text(f"{SLOW}import {other}\nfrom math import pi as value\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("slow_a", "slow_b", "slow_c"):
        sys.modules.pop(name, None)


def test_threads_that_import_modules_of_each_other_get_whole_modules(modules: Path) -> None:
    """Without turns, one thread would read `slow_a` or `slow_b` before it has `value`."""
    for _ in range(20):
        late = [LateModule("slow_a"), LateModule("slow_b")] * 4
        start = threading.Barrier(len(late))

        def read(module: LateModule, start: threading.Barrier = start) -> float:
            start.wait()
            return module.value

        with ThreadPoolExecutor(len(late)) as pool:
            assert len(set(pool.map(read, late))) == 1
        for name in ("slow_a", "slow_b"):
            del sys.modules[name]


def test_a_look_waits_for_the_end_of_an_import(modules: Path) -> None:
    """A module that another thread is importing is returned whole, and an unused one is not imported."""
    assert if_imported("slow_c") is None
    (modules / "slow_c.py").write_text(textwrap.dedent(f"import threading\n{SLOW}value = 1\n"))
    importing = threading.Thread(target=import_late, args=("slow_c",))
    importing.start()
    while "slow_c" not in sys.modules:
        pass
    module = if_imported("slow_c")
    assert module is not None
    assert module.value == 1
    importing.join()


def test_a_missing_module_is_an_import_error() -> None:
    """Each read tries again, because a failed import leaves nothing behind."""
    late = LateModule("no_such_module_here")
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="no_such_module_here"):
            _ = late.value


def test_a_process_forked_during_an_import_can_import(modules: Path) -> None:
    """The fork waits for the end of the import."""
    importing = threading.Thread(target=import_late, args=("slow_a",))
    importing.start()
    while "slow_a" not in sys.modules:
        pass
    child = os.fork()
    if not child:
        os._exit(0 if LateModule("slow_b").value else 1)
    assert os.waitpid(child, 0)[1] == 0
    importing.join()

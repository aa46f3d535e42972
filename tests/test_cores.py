"""The number of cores that the process may use, by affinity and by the quota of every enclosing control group."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import threadpoolctl

from svc.cores import one_blas_thread, usable_cores


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


def groups(root: Path, inner: str, **files: str) -> Path:
    """Write files of control groups, and return the file that names the group of the process.

    The name `<folder>__<file>` in `files` gives the path.
    """
    for name, text in files.items():
        folder, _, file = name.partition("__")
        path = root / folder.replace("_", "/") / file.replace("_us", "_us").replace("cpu_max", "cpu.max")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    own = root / "own"
    own.write_text(f"0::/{inner}\n")
    return own


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("own", "outer", "cores"),
    [
        ("max 100000", "max 100000", 8),
        ("250000 100000", "max 100000", 2),
        ("max 100000", "400000 100000", 4),
        ("50000 100000", "max 100000", 1),
        ("9900000 100000", "max 100000", 8),
        ("nonsense", "max 100000", 8),
    ],
)
def test_the_smallest_quota_counts(tmp_path: Path, own: str, outer: str, cores: int) -> None:
    """A quota of 2.5 cores counts as 2, and a quota below one core as 1. Unreadable quotas are ignored."""
    named = groups(tmp_path, "a/b", a__cpu_max=outer, a_b__cpu_max=own)
    assert usable_cores(tmp_path, named) == cores


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(("quota", "cores"), [("300000", 3), ("-1", 8), ("0", 1), ("nonsense", 8)])
def test_the_first_version_of_control_groups_counts_too(tmp_path: Path, quota: str, cores: int) -> None:
    """Version 1 has quota and period in separate files. A negative or unreadable quota is no limit."""
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert usable_cores(tmp_path, groups(tmp_path, "")) == cores


@pytest.mark.usefixtures("eight_cores")
def test_without_control_groups_affinity_counts(tmp_path: Path) -> None:
    """The machine may not mount control groups. If only the process's own group is unknown, the root's quota counts."""
    assert usable_cores(tmp_path / "none", tmp_path / "none" / "own") == 8
    (tmp_path / "cpu.max").write_text("300000 100000")
    assert usable_cores(tmp_path, tmp_path / "none") == 3


@pytest.mark.parametrize(("count", "cores"), [(6, 6), (1, 1), (None, 1)])
def test_without_affinity_all_cores_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int | None, cores: int
) -> None:
    """macOS has no affinity. A system that does not know its number of cores counts as one core."""
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    assert usable_cores(tmp_path, tmp_path / "own") == cores


def test_contexts_of_one_thread_find_the_libraries_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A context restores the number of threads.

    It searches for BLAS libraries again only after an import.
    """

    def threads() -> list[int]:
        return [pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]

    searches: list[None] = []

    class Counted(threadpoolctl.ThreadpoolController):
        def __init__(self) -> None:
            super().__init__()
            searches.append(None)

    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        before = threads()
        with one_blas_thread():
            assert set(threads()) == {1}
        assert threads() == before
        monkeypatch.setattr(threadpoolctl, "ThreadpoolController", Counted)
        for n_searches in (0, 1):
            with one_blas_thread(), one_blas_thread():
                assert len(searches) == n_searches
            monkeypatch.setitem(sys.modules, "imported", sys)


PROGRAM = """
import sys
{before}
from svc.cores import limit_blas_threads
limit_blas_threads(1)
import numpy
from threadpoolctl import threadpool_info
print([pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"])
"""


@pytest.mark.system
@pytest.mark.parametrize("before", ["assert 'numpy' not in sys.modules", "import numpy"])
def test_the_limit_holds_before_and_after_numpy_is_imported(before: str) -> None:
    """A limit of one BLAS thread, set in a new process, holds in both orders."""
    program = PROGRAM.format(before=before)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert run.stdout.strip() == "[1]"


WAITS = """
import os, sys
assert 'numpy' not in sys.modules
from svc.cores import shorten_blas_waits
shorten_blas_waits()
print(os.environ.get("OPENBLAS_THREAD_TIMEOUT"))
"""


@pytest.mark.system
@pytest.mark.parametrize(("given", "expected"), [(None, "20"), ("26", "26")])
def test_openblas_waits_are_short_unless_the_environment_sets_them(given: str | None, expected: str) -> None:
    """OPENBLAS_THREAD_TIMEOUT becomes 20, or stays as the environment has it."""
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_THREAD_TIMEOUT"}
    environment |= {} if given is None else {"OPENBLAS_THREAD_TIMEOUT": given}
    command = [sys.executable, "-c", WAITS]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=environment)
    assert run.stdout.strip() == expected

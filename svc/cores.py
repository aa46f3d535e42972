"""The number of cores that the process may use, and the threads of its linear algebra library."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from svc.late_imports import LateModule, if_imported

if TYPE_CHECKING:
    import threadpoolctl
else:
    threadpoolctl = LateModule("threadpoolctl")

CGROUPS = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")


def usable_cores(root: Path = CGROUPS, own_group: Path = _OWN_GROUP) -> int:
    """Return the number of cores in this process's affinity, or the processor quota of its control groups if lower.

    The result is at least 1. A fractional quota is rounded down, because one process or thread too many slows down all
    of them.
    """
    try:
        by_affinity = len(os.sched_getaffinity(0))
    # macOS cannot bind processes to cores.
    except AttributeError:
        by_affinity = os.cpu_count() or 1
    quota = min((limit for folder in _groups(root, own_group) if (limit := _quota(folder)) is not None), default=None)
    cores = by_affinity if quota is None else min(by_affinity, int(quota))
    return max(cores, 1)


def _groups(root: Path, own_group: Path) -> list[Path]:
    """Return the folders of the control group of this process and of all groups around it, or `root` if unknown."""
    try:
        lines = own_group.read_text(encoding="utf-8").splitlines()
    except OSError:
        return [root]
    inner = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    path = Path(inner)
    # The quota of any group around this one applies too. `cpu` is the controller of version 1, seen in a container.
    return [root / "cpu", *(root / part for part in (path, *path.parents))]


def _quota(folder: Path) -> float | None:
    """Return the number of cores that a control group may use, or None if it has no limit.

    Reads `cpu.max` of cgroup version 2, or `cpu.cfs_quota_us` of cgroup version 1.
    """
    try:
        quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        quota_us = int((folder / "cpu.cfs_quota_us").read_text(encoding="ascii"))
        return None if quota_us < 0 else quota_us / int((folder / "cpu.cfs_period_us").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")

# A wait of 2^20 cycles. With it, a refit on film ratings takes 6.4 instead of 8.3 s of processor time.
_WAIT_CYCLES_LOG2 = 20


def shorten_blas_waits() -> None:
    """Let the threads of OpenBLAS sleep after a fraction of a millisecond without work, instead of after 25 ms.

    Saves a fifth of the processor time of a training without a search, because a waiting thread keeps its core busy,
    and the work of a single thread between two matrix products mostly takes longer than the wait. OpenBLAS reads the
    variable when numpy is imported, so this has no effect afterwards.
    """
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", str(_WAIT_CYCLES_LOG2))


def limit_blas_threads(count: int) -> None:
    """Let each array operation use at most `count` threads, in the whole process from now on.

    A server runs several scoring threads and the event loop side by side, so it wants one thread per operation. Before
    numpy is imported, this sets the variables that its library reads. Afterwards it calls the library.
    """
    if if_imported("numpy") is None:
        os.environ.update(dict.fromkeys(VARIABLES, str(count)))
        return
    threadpoolctl.threadpool_limits(limits=count, user_api="blas")


def one_blas_thread() -> AbstractContextManager[object]:
    """Let each array operation use one thread while the context lasts, in the whole process.

    Looks for the libraries again only after an import, which may have loaded one. Each look reads the memory map of the
    process, for 4 ms, and a small training uses 18 such contexts.
    """
    context: AbstractContextManager[object] = _blas_libraries(len(sys.modules)).limit(limits=1)
    return context


@lru_cache(maxsize=1)
def _blas_libraries(_n_modules: int) -> Any:
    return threadpoolctl.ThreadpoolController().select(user_api="blas")

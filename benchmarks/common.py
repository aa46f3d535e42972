"""What all benchmarks share: shapes, seeded data, timing, and the lines that say where a result comes from."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sps

N_TASTES = 24
PACKAGES = ("svc-recommender", "numpy", "scipy", "irspack", "implicit", "trio", "hypercorn")


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of a generated data set and of the factor model trained on it."""

    name: str
    n_users: int
    n_items: int
    n_interactions: int
    components: int


SHAPES = {
    "a": Shape("a", 1_000, 1_700, 100_000, 64),
    "b": Shape("b", 30_000, 41_000, 810_000, 128),
    "c": Shape("c", 100_000, 1_000_000, 5_000_000, 128),
    "d": Shape("d", 30_000, 41_000, 810_000, 680),
}


def interactions(shape: Shape, seed: int = 0) -> sps.csr_matrix:
    """A matrix of ones with long-tailed items and users, and tastes that a model can learn.

    Every user likes three of N_TASTES groups of items and takes a quarter of the draws from all. Repeated draws
    count once, so somewhat fewer than `n_interactions` are left.
    """
    rng = np.random.default_rng(seed)
    popularity = rng.permutation(np.arange(1, shape.n_items + 1) ** -0.8)
    taste = rng.integers(0, N_TASTES, shape.n_items)
    activity = rng.lognormal(0, 1, shape.n_users)
    lengths = np.maximum(1, np.round(activity * shape.n_interactions / activity.sum())).astype(np.int64)
    users = np.repeat(np.arange(shape.n_users), lengths)
    liked = rng.integers(0, N_TASTES, (shape.n_users, 3))
    pick = rng.integers(0, 4, len(users))
    group = np.where(pick < 3, liked[users, np.minimum(pick, 2)], N_TASTES)
    items = np.empty(len(users), dtype=np.int64)
    for number in range(N_TASTES + 1):
        members = np.flatnonzero(taste == number) if number < N_TASTES else np.arange(shape.n_items)
        drawn = np.flatnonzero(group == number)
        weights = popularity[members] / popularity[members].sum()
        items[drawn] = rng.choice(members, len(drawn), p=weights)
    matrix = sps.csr_matrix((np.ones(len(users)), (users, items)), shape=(shape.n_users, shape.n_items))
    matrix.data[:] = 1.0
    return matrix


def csv_interactions(path: str, user_column: str, item_column: str) -> tuple[Shape, sps.csr_matrix]:
    """The interactions of a CSV file as a matrix of ones; repeated ones count once."""
    table = pd.read_csv(path, usecols=[user_column, item_column], dtype="category").dropna()
    users, items = (table[column].cat.codes.to_numpy() for column in (user_column, item_column))
    size = (len(table[user_column].cat.categories), len(table[item_column].cat.categories))
    matrix = sps.csr_matrix((np.ones(len(table)), (users, items)), shape=size)
    matrix.data[:] = 1.0
    return Shape(Path(path).name, *size, matrix.nnz, 64), matrix


def processor_s(pid: int) -> float:
    """Processor time of all threads of a process so far."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text(encoding="ascii").split()[0]) for task in tasks) / 1e9


def processes(pid: int) -> list[int]:
    """A process and all that it has started, in the order of their start; those that have ended are left out."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []
    return [pid, *(member for child in sorted(children) for member in processes(child))]


def held_bytes(pid: int) -> int:
    """Memory of one process, its part of what it shares with others (Pss); 0 when it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def status_bytes(pid: int, name: str) -> int:
    """A row of the memory of a process, such as VmRSS, or VmHWM for its peak."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.split(f"{name}:")[1].split()[0]) << 10


def forget_peak(pid: int) -> None:
    """Let the kernel count the peak from now on."""
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")


def ids(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


def side_by_side(
    calls: Mapping[str, Callable[[int], Any]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Median seconds of each call over interleaved rounds, so that a busy neighbour slows all of them alike.

    Each call gets the number of the round; round −1 warms up. `clock` may be that of the thread's processor time.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(-1, rounds):
        for name, call in calls.items():
            start = clock()
            call(number)
            if number >= 0:
                seconds[name].append(clock() - start)
    return {name: median(taken) for name, taken in seconds.items()}


def origin() -> list[str]:
    """Lines that name the machine, the versions and the commit of a result."""
    return [
        f"machine: {_processor()}, {os.cpu_count()} cores, {_memory_gib():.0f} GiB, {platform.platform(terse=True)}",
        f"python {platform.python_version()}, " + ", ".join(f"{name} {_version(name)}" for name in PACKAGES),
        f"linear algebra: {_linear_algebra()}",
        f"commit: {_commit()}",
        f"command: {' '.join([Path(sys.executable).name, *sys.orig_argv[1:]])}",
    ]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def _linear_algebra() -> str:
    """The libraries and the processors whose kernels they take, which `OPENBLAS_CORETYPE` can change."""
    from threadpoolctl import threadpool_info

    libraries = [library for library in threadpool_info() if library["user_api"] == "blas"]
    return ", ".join(
        f"{library['prefix']} {library['version']} for {library.get('architecture')}" for library in libraries
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)


def _commit() -> str:
    root = Path(__file__).resolve().parent
    listing = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True, check=False
    )
    return listing.stdout.strip() or "unknown"

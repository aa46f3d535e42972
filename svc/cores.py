"""The number of cores that the process may use."""

from __future__ import annotations

import os
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")


def usable_cores(root: Path = CGROUPS, own_group: Path = _OWN_GROUP) -> int:
    """Return the cores by affinity, at most the processor quota of the surrounding control groups, and at least 1.

    Fractions are rounded down: one process or thread more than there is time for slows down all of them.
    """
    try:
        by_affinity = len(os.sched_getaffinity(0))
    except AttributeError:
        by_affinity = os.cpu_count() or 1
    quota = min((limit for folder in _groups(root, own_group) if (limit := _quota(folder)) is not None), default=None)
    cores = by_affinity if quota is None else min(by_affinity, int(quota))
    return max(cores, 1)


def _groups(root: Path, own_group: Path) -> list[Path]:
    """Return the folders of the group of this process and of all groups around it."""
    try:
        lines = own_group.read_text(encoding="utf-8").splitlines()
    except OSError:
        return [root]
    inner = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    path = Path(inner)
    return [root / "cpu", *(root / part for part in (path, *path.parents))]


def _quota(folder: Path) -> float | None:
    """Return the cores that a group may use, or None without a bound.

    Reads `cpu.max` of version 2, or `cpu.cfs_quota_us` of version 1.
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

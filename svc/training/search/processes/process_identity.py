"""Identify the process that works on a trial, and find out whether it is alive."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def own_identity() -> str:
    """Return `<host>|<pid>|<start>`, which stays unique when a pid is reused.

    The host part also names the boot and the pid namespace, so that containers of one machine differ.
    """
    return f"{_host()}|{os.getpid()}|{_start_time(os.getpid())}"


def is_dead(identity: str) -> bool:
    """Return True if the process was on this host and is gone.

    Return False for other hosts, because their processes cannot be looked up.
    """
    host, _, process = identity.partition("|")
    pid, _, start = process.partition("|")
    return host == _host() and pid.isdigit() and _start_time(int(pid)) != start


def _host() -> str:
    boot = _read(Path("/proc/sys/kernel/random/boot_id"))
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        namespace = ""
    return "/".join(part for part in (platform.node(), boot, namespace) if part)


def _start_time(pid: int) -> str:
    """Return the clock ticks since boot at which `pid` started, or an empty text for no such process."""
    stat = _read(Path(f"/proc/{pid}/stat"))
    after_name = stat.rpartition(")")[2].split()
    if len(after_name) < 20 or after_name[0] == "Z":
        return ""
    return after_name[19]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""

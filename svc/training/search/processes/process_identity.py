"""Which process works on a trial, and whether it still lives."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def own_identity() -> str:
    """`<host>|<pid>|<start>`: unique to this process, as pids are used again.

    The host part names the boot and the pid namespace too, so that containers of one machine are told apart.
    """
    return f"{_host()}|{os.getpid()}|{_start_time(os.getpid())}"


def is_dead(identity: str) -> bool:
    """True if the process was on this host and is gone. Of other hosts nothing is known: False."""
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
    """Clock ticks since boot at which `pid` started; empty for no such process."""
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

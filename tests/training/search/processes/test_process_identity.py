"""The process of a trial, and whether it is alive."""

from __future__ import annotations

import subprocess
import sys

import pytest

from svc.training.search.processes.process_identity import is_dead, own_identity


@pytest.mark.system
def test_a_process_counts_as_dead_after_its_end() -> None:
    """This includes a zombie. Its id may be used again, with another start time."""
    script = (
        "from svc.training.search.processes.process_identity import own_identity as o; print(o(), flush=True); input()"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        identity = process.stdout.readline().strip()
        assert not is_dead(identity)
        assert identity != own_identity()
    process.wait()
    assert is_dead(identity)


def test_one_process_has_one_identity() -> None:
    """It never changes. Another start time with the same id is another process."""
    own = own_identity()
    assert own == own_identity()
    assert not is_dead(own)
    host, pid, start = own.split("|")
    assert is_dead(f"{host}|{pid}|{int(start) + 1}")


def test_processes_of_other_hosts_never_count_as_dead() -> None:
    """Their trials are not released, and neither is one with an invalid identity."""
    host, pid, start = own_identity().split("|")
    assert not is_dead(f"{host}x|{pid}|{int(start) + 1}")
    assert not is_dead("")
    assert not is_dead(f"{host}|none|")

"""A process ends with its parent, for every end of the parent."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.system
CHILD = "import os, sys, time; from svc.processes.lifetime import end_with; end_with({parent}); print('on', flush=True)"
PARENT = f"""
import os, subprocess, sys, time
child = {CHILD!r}.format(parent=os.getpid()) + "; time.sleep(600)"
subprocess.Popen([sys.executable, "-c", child])
time.sleep(600)
"""


def test_a_process_ends_when_its_parent_is_killed() -> None:
    """Its end of the pipe closes, although it would sleep for minutes."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"on\n"
        parent.kill()
        assert parent.stdout.read() == b""


def test_a_process_whose_parent_has_gone_ends_at_once() -> None:
    """A process forked just before the end of its parent ends at once."""
    code = CHILD.format(parent=os.getpid() + 1)
    ended = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=False)
    assert (ended.returncode, ended.stdout) == (1, b"")

"""Who ends with whom: the kernel ends a process with its parent, and gives orphans to a process that asks for them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PDEATHSIG, _SUBREAPER = 1, 36


def end_with(parent: int) -> None:
    """Let the kernel end this process when `parent` ends, however it ends, and also while this one runs C++ code."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Make this process the parent of processes below it whose maker has ended."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)

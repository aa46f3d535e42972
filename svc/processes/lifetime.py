"""Set the ends of processes, by Linux's prctl.

The kernel can end a process with its parent, and can give orphans to a process that adopts them.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PDEATHSIG, _SUBREAPER = 1, 36


def end_with(parent: int) -> None:
    """Let the kernel end this process when `parent` ends.

    Works for every end of the parent, and while this process runs C++ code.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Make this process the parent of its descendants after their own parents have ended."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)

"""File permissions that also apply if the tests run as root.

Two capabilities let root ignore permissions, so they are dropped.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

_VERSION = 0x20080522
_IGNORING = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


def obeying_command() -> list[str] | None:
    """Return a prefix that makes a command obey file permissions, or None if that is impossible here."""
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    return [setpriv, "--bounding-set=-dac_override,-dac_read_search"] if setpriv else None


@contextmanager
def permissions_hold() -> Iterator[None]:
    """Make this thread, and the threads that it starts, obey file permissions during the block."""
    header = (ctypes.c_uint32 * 2)(_VERSION, 0)
    before = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice
    _call("capget", header, before)
    reduced = (ctypes.c_uint32 * 6)(*before)
    reduced[0] &= ~_IGNORING
    _call("capset", header, reduced)
    try:
        yield
    finally:
        _call("capset", header, before)


def _call(name: str, *arguments: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), name)

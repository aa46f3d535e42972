"""Modules that are imported on first use, by any thread.

Two threads that import modules which import each other would wait for each other. Python then gives one of them a
half-imported module. Late imports therefore take turns, and a module is never read from `sys.modules`, which holds
half-imported modules too.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from threading import RLock
from types import ModuleType
from typing import Any

turn = RLock()
"""Held during a late import. Hold it around a call of a library that imports a module."""
# A process forked during another thread's import would wait for ever for its turn.
os.register_at_fork(before=turn.acquire, after_in_parent=turn.release, after_in_child=turn.release)


def import_late(name: str) -> ModuleType:
    """Return the module, imported completely. Waits while another thread makes a late import."""
    with turn:
        return import_module(name)


def if_imported(name: str) -> ModuleType | None:
    """Return the module if this process has imported it or is importing it, else None.

    Waits for the end of an import in another thread.
    """
    # Not from `sys.modules`. It has half-imported modules, at which 52 of 60 starts with five kinds of recipes failed.
    return import_module(name) if name in sys.modules else None


class LateModule:
    """A stand-in for a module, which is imported when an attribute is first read.

    Read no attribute while a module is imported: its import would wait for a turn while another thread, whose turn it
    is, waits for this module.
    """

    __slots__ = ("_module", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._module: ModuleType | None = None

    def __getattr__(self, attribute: str) -> Any:
        if self._module is None:
            self._module = import_late(self._name)
        return getattr(self._module, attribute)

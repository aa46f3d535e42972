"""A wait for the end of an object that nothing refers to."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import trio


async def freed(reference: weakref.ref[Any]) -> None:
    """Wait until an object is freed without a garbage collection.

    A thread of trio that has used the object keeps it for a moment after its result has arrived, and on a busy machine
    for longer, because the thread has a low priority.
    """
    gc.disable()
    try:
        with trio.fail_after(20):
            while reference() is not None:  # noqa: ASYNC110 (the thread has no event for its last step)
                await trio.sleep(0.001)
    finally:
        gc.enable()

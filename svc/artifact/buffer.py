"""Allocates memory for one artifact: private, page-aligned, and freed with its last view."""

from __future__ import annotations

import mmap


def private_buffer(size: int) -> memoryview:
    """Return `size` writable zero bytes.

    Pages use memory only after they are written. The memory is anonymous, not a mapping of a file, so verified bytes
    cannot change.
    """
    if size == 0:
        return memoryview(bytearray())
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return memoryview(pages)

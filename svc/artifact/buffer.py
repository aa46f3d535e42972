"""Memory that holds one artifact: private to the process and page-aligned, given back as soon as no view is left."""

from __future__ import annotations

import mmap


def private_buffer(size: int) -> memoryview:
    """`size` writable bytes of zeros. Pages cost memory only once they are written to.

    The memory is not a mapping of any file: bytes whose signature has been checked cannot change under us.
    """
    if size == 0:
        return memoryview(bytearray())
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return memoryview(pages)

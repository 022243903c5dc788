"""Memory in exact amounts: pages that no allocator keeps, rounds or hands out again."""

from __future__ import annotations

import mmap

MADV_POPULATE_WRITE = 23  # touches every page and allocates nothing else


def touch(size: int) -> mmap.mmap:
    """``size`` bytes of resident anonymous memory."""
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block.madvise(MADV_POPULATE_WRITE)
    return block

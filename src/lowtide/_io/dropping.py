"""Out of the page cache again: what ``cache="drop"`` does where reads cannot do it by themselves."""

from __future__ import annotations

import os

from lowtide._io.extents import Extents

FAULT_AROUND = 64 * 2**10
"""What one page fault maps of a file's cached neighbours, by Linux's default."""

FOLIO = 2 * 2**20
"""The most that one page fault maps: a huge page."""


def drop_range(fd: int, start: int, stop: int) -> None:
    """Put a range out of the page cache.

    The kernel keeps a folio of which only a part is named, so the range begins a folio early, for the one
    that straddled the end of the last range. It ends where it is said to: behind it lies what was read ahead.
    """
    start = max(0, start - FOLIO)
    os.posix_fadvise(fd, start, stop - start, os.POSIX_FADV_DONTNEED)


def drop(fd: int, extents: Extents) -> None:
    """Put everything between the first and the last extent out of the page cache."""
    stop = int((extents.offsets + extents.lengths).max())
    drop_range(fd, int(extents.offsets.min()), (stop // FAULT_AROUND + 1) * FAULT_AROUND)

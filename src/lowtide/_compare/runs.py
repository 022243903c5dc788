"""One run of a comparison, its file, and the page cache before it."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from lowtide._arrays.formats.layout import Layout
from lowtide._arrays.writer import create
from lowtide._compare.walks import Figures
from lowtide._io import pagecache


@dataclass(frozen=True, slots=True)
class Run:
    """One walk over the file by one method."""

    method: str
    shuffled: bool
    cold: bool
    figures: Figures
    page_cache_left: int | None
    """Bytes of the file in the page cache after a cold run, which starts with none; else None."""

    @property
    def speed(self) -> float:
        """Bytes per second."""
        return self.figures["bytes_read"] / max(1e-9, self.figures["seconds"])


def make_matrix(path: str, size: int) -> None:
    """Create a matrix of random numbers with rows of 1 KiB."""
    random = np.random.default_rng(0)
    with create(path, "float32", row_shape=256) as out:
        for _ in range(max(1, size // 2**22)):
            out.append(random.random((4096, 256), dtype=np.float32))


def make_cold(path: str) -> bool:
    """Drop a file from the page cache; return whether that succeeded."""
    pagecache.drop(path)
    left = pagecache.resident(path)
    return left is not None and left[0] <= max(2**20, os.stat(path).st_size // 100)


def make_warm(layout: Layout, used: int) -> None:
    """Read the file once with large requests, as an earlier program would have."""
    with open(layout.path, "rb", buffering=0) as file:
        buffer = bytearray(4 * 2**20)
        while file.tell() < layout.offset + used and file.readinto(buffer):
            pass

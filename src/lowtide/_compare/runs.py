"""The runs of a comparison: their plan, the page cache before each, and a summary."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lowtide._arrays.formats.layout import Layout
from lowtide._arrays.writer import create
from lowtide._compare.walks import METHODS, REMOTE_METHODS, Figures, Walk, walk_apart
from lowtide._io import pagecache, store
from lowtide._memory.available import available
from lowtide._sizes import format_size
from lowtide.errors import ArgumentError


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


class Passes(NamedTuple):
    """The settings of all runs of a comparison: the first rows of an array, in chunks, for some seconds."""

    layout: Layout
    rows: int  # of a chunk
    limit_rows: int
    seconds: float

    @classmethod
    def over(cls, layout: Layout, rows: int | None, limit: int, seconds: float) -> Passes:
        """Passes over at most ``limit`` bytes of an array, in chunks of ``rows`` rows or about 2 MiB."""
        if not layout.shape or not layout.nbytes:
            raise ArgumentError(f"{layout.path}: has no rows (shape {layout.shape}); pass another array")
        count = layout.shape[0]
        width = layout.nbytes // count
        limit_rows = count if layout.fortran else max(1, min(count, limit // max(1, width)))
        return cls(layout, min(limit_rows, rows or max(1, 2 * 2**20 // width)), limit_rows, seconds)

    @property
    def row_size(self) -> int:
        return self.layout.nbytes // self.layout.shape[0]

    @property
    def size(self) -> int:
        """Bytes of a complete pass."""
        return self.row_size * self.limit_rows

    @property
    def is_remote(self) -> bool:
        """Whether the array is in a bucket, where the page cache has no part."""
        return store.is_address(self.layout.path)

    def plan(self) -> list[tuple[str, bool, bool]]:
        """Method, shuffled and cold of each run; warm ones only if the bytes can stay in the page cache."""
        if self.is_remote:
            return [(method, shuffled, True) for shuffled in (False, True) for method in REMOTE_METHODS]
        warm = self.size < available() // 2
        orders = itertools.product((True, False) if warm else (True,), (False, True), METHODS)
        return [(method, shuffled, cold) for cold, shuffled, method in orders]

    def run(self, method: str, shuffled: bool, cold: bool) -> Run | None:
        """One pass in a separate process; None if it must be cold and the file stays in the page cache."""
        if not cold:
            make_warm(self.layout, self.size)
        elif not self.is_remote and not make_cold(self.layout.path):
            return None
        task = Walk(self.layout, method, shuffled, self.rows, self.limit_rows, self.seconds)
        figures = walk_apart(task)
        left = pagecache.resident(self.layout.path) if cold and not self.is_remote else None
        return Run(method, shuffled, cold, figures, left[0] if left else None)


def peak(runs: Sequence[Run]) -> str:
    """The highest memory of some runs, in words."""
    peaks = [run.figures["peak"] for run in runs]
    known = [peak for peak in peaks if peak is not None]
    return format_size(max(known)) if known else "-"


def summary(runs: Sequence[Run]) -> str | None:
    """The main comparison in one line: shuffled, from the device or else warm."""
    cold = any(run.cold for run in runs)
    chosen = {run.method: run for run in runs if run.shuffled and run.cold == cold}
    ours, theirs = chosen.get("pread"), chosen.get("np.memmap")
    if "remote" in chosen:
        ratio = chosen["remote"].speed / chosen["obstore"].speed
        return (
            f"shuffled: lowtide reads {ratio:.1f} times as fast as obstore.get_ranges for each chunk, with "
            f"{peak([chosen['remote']])} of memory instead of {peak([chosen['obstore']])}"
        )
    if ours is None or theirs is None:
        return None
    return (
        f"shuffled, {'cold' if cold else 'warm'}: lowtide reads {ours.speed / theirs.speed:.1f} times as "
        f"fast as np.memmap, with {peak([ours])} of memory instead of {peak([theirs])}"
    )


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
    """Read the file once with large requests, as an earlier program would have done."""
    with open(layout.path, "rb", buffering=0) as file:
        buffer = bytearray(4 * 2**20)
        while file.tell() < layout.offset + used and file.readinto(buffer):
            pass

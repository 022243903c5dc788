"""Extents: ranges of bytes of a file and their places in a buffer, in an order that suits a disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

AHEAD = 16 * 2**20
"""Bytes of page cache that the hints of one read may request at once."""

LONGEST = 2**20  # bytes per request: enough for full speed, and few enough for several in the queue


@dataclass(slots=True)  # not frozen: that takes as long as a read
class Extents:
    """``lengths[i]`` bytes at ``offsets[i]`` of the file go to ``targets[i]`` of the buffer."""

    offsets: Ints
    targets: Ints
    lengths: Ints
    _nbytes: int | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of_rows(cls, offsets: Ints, width: int) -> Extents:
        """Extents of ``width`` bytes, one after another in the buffer; all but the offsets is cached."""
        return cls(offsets, *_rows(len(offsets), width), len(offsets) * width)

    @classmethod
    def of_range(cls, offset: int, length: int) -> Extents:
        """One extent, to the front of the buffer."""
        return cls(np.array((offset,)), _FRONT, np.array((length,)))

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def nbytes(self) -> int:
        return int(self.lengths.sum()) if self._nbytes is None else self._nbytes

    def __getitem__(self, which: slice | Ints | npt.NDArray[np.bool_]) -> Extents:
        return Extents(self.offsets[which], self.targets[which], self.lengths[which])

    def rows(self) -> Iterator[tuple[int, int, int]]:
        """Offset, target and length of each, as integers."""
        return zip(self.offsets.tolist(), self.targets.tolist(), self.lengths.tolist(), strict=True)

    def first(self, out: Bytes) -> tuple[int, Bytes]:
        """Offset of the first extent, and the part of the buffer that it fills."""
        target = int(self.targets[0])
        return int(self.offsets[0]), out[target : target + int(self.lengths[0])]

    def window(self, first: int, count: int, nbytes: int, overhead: int = 0) -> Extents:
        """From ``first`` on, at most ``count`` extents and ``nbytes`` bytes, but at least one extent.

        ``overhead`` is added to the length of each extent, since reading it touches whole pages.
        """
        if not first and len(self) <= count and self.nbytes + len(self) * overhead <= nbytes:
            return self  # the usual case: a batch, a chunk
        some = self[first : first + count]
        ends = np.cumsum(some.lengths + overhead)
        if ends[-1] <= nbytes:
            return some
        return some[: max(1, int(np.searchsorted(ends, nbytes, side="right")))]

    def cut(self) -> Extents:
        """The same bytes with no extent longer than ``LONGEST``."""
        if not len(self) or int(self.lengths.max()) <= LONGEST:
            return self
        pieces = -(-self.lengths // LONGEST)
        owner = np.repeat(np.arange(len(self)), pieces)
        nth = np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        start = nth * LONGEST
        offsets = self.offsets[owner] + start
        order = np.argsort(offsets, kind="stable")  # pieces of overlapping extents are not in order
        targets, lengths = self.targets[owner] + start, np.minimum(self.lengths[owner] - start, LONGEST)
        return Extents(offsets[order], targets[order], lengths[order])

    def shares(self, parts: int) -> list[Extents]:
        """Shares of about equal numbers of bytes, each of consecutive extents."""
        ends = np.cumsum(self.lengths)
        cuts = np.searchsorted(ends, ends[-1] * np.arange(1, parts) / parts)
        borders = [0, *cuts.tolist(), len(self)]
        shares = [self[a:b] for a, b in pairwise(borders)]
        return [share for share in shares if len(share)]


_FRONT: Ints = np.zeros(1, np.int64)


@lru_cache(8)
def _rows(count: int, width: int) -> tuple[Ints, Ints]:
    """Targets and lengths of ``count`` rows of ``width`` bytes: the same for every batch."""
    targets, lengths = np.arange(count, dtype=np.int64) * width, np.full(count, width, np.int64)
    targets.flags.writeable = lengths.flags.writeable = False
    return targets, lengths


def of_records(offsets: Ints, width: int, *, ordered: bool = True) -> Extents:
    """Extents of records of ``width`` bytes at ``offsets``, one after another in the buffer.

    They are sorted by offset. Records that are neighbours both in the file and in the buffer become one
    extent, and long ones are cut, so that a contiguous block is a few requests in the queue at once. With
    ``ordered=False`` they stay as they are: cached data can be read in any order.

    >>> of_records(np.array([30, 0, 10, 20]), 10)
    Extents(offsets=array([ 0, 30]), targets=array([10,  0]), lengths=array([30, 10]))
    """
    targets = np.arange(len(offsets), dtype=np.int64) * width
    if len(offsets) > 1 and ordered:
        steps = np.diff(offsets)
        if (steps < 0).any():
            order = np.argsort(offsets, kind="stable")
            offsets, targets = offsets[order], targets[order]
            steps = np.diff(offsets)
        joined = (steps == width) & (np.diff(targets) == width)
        if joined.any():
            starts = np.flatnonzero(np.concatenate(([True], ~joined)))
            counts = np.diff(np.concatenate((starts, [len(offsets)])))
            return Extents(offsets[starts], targets[starts], counts * width).cut()
    return Extents(offsets, targets, np.full(len(offsets), width, np.int64)).cut()

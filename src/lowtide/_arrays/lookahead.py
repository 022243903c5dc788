"""Lookahead: the rows of many shuffled chunks, read together in the order of the file.

The rows of the next chunks are known, since an order is computed. A window of them is sorted by place, joined
over gaps that are cheaper to read than to skip, and read in long runs; chunks are then taken from memory, in
the same exact order. On a disk with 3,000 operations per second one read per row is 3 MB/s, whatever its
bandwidth: there memory buys speed.
"""

from __future__ import annotations

import math
import time
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lowtide._io.buffers import Buffers
from lowtide._io.threads import in_threads, workers_for
from lowtide._permutation import Ints, Order

if TYPE_CHECKING:
    from lowtide._arrays.array import Array

_STAGE = 4 * 2**20  # bytes read at once, rows and the gaps between them
_SHORT, _LONG = 2**16, 2**18  # bytes per read
_INDEX = (
    32  # bytes per row of a window while it is loaded: its number, its place in the file and in the window
)
_SORTED = 2**16  # rows whose runs are found at once


class Costs:
    """What reads cost on this device, learned from the reads of a pass: seconds per read and per byte.

    A gap is read through if its bytes take less time than another read.

    >>> costs = Costs()
    >>> for _ in range(8):
    ...     costs.learn(reads=300, nbytes=300_000, seconds=0.1)  # 3,000 short reads per second
    ...     costs.learn(reads=8, nbytes=8 * 2**20, seconds=8 * 2**20 / 125e6)
    >>> 40_000 < costs.gap < 44_000
    True
    """

    def __init__(self) -> None:
        self.per_read = 50e-6
        self.per_byte = 1e-9
        self._unknown = {"per_read", "per_byte"}

    def learn(self, reads: int, nbytes: int, seconds: float) -> None:
        """Take some reads that went to the device into account. Short ones tell what a read costs, long
        ones what a byte costs, and those between nothing certain. A busy moment counts for half.
        """
        if nbytes <= _SHORT * reads:
            self._take("per_read", min(max(seconds / reads, 1e-6), 0.1))
        elif nbytes >= _LONG * reads:
            self._take("per_byte", min(max(seconds / nbytes, 1e-11), 1e-6))

    def _take(self, name: str, value: float) -> None:
        known = value if name in self._unknown else getattr(self, name)
        self._unknown.discard(name)
        setattr(self, name, math.sqrt(known * value))

    @property
    def gap(self) -> int:
        """The longest gap, in bytes, that is worth reading through."""
        return int(self.per_read / self.per_byte)


class _Window(NamedTuple):
    """Rows in the order of the file, and the places ``first`` to ``last`` at which they come."""

    first: int
    last: int
    rows: npt.NDArray[Any]
    picks: npt.NDArray[np.int32] | None
    """Which of the rows comes at each place; None if all rows of the array are here."""


class Lookahead:
    """The rows at a window of places of an order, in memory, in the order of the file.

    Parameters
    ----------
    array
        The array whose rows are read.
    order
        Which row comes when.
    nbytes
        Memory for the window, its index and what is read at once.
    """

    def __init__(self, array: Array, order: Order, nbytes: int) -> None:
        self.array = array
        self._order = order
        self.costs = Costs()
        width = array.row_nbytes
        self._parts = workers_for(_SORTED, nbytes) if array._reader.parallel else 1
        self._stage_rows = max(1, min(_STAGE, nbytes // 8) // self._parts // width)
        self.whole = array.nbytes <= nbytes
        """Whether all rows fit: then the file is read once, in order, and no index is needed."""
        fitting = (nbytes - self._parts * self._stage_rows * width) // (width + _INDEX)
        self.rows = len(array) if self.whole else max(1, fitting)
        self._window: _Window | None = None

    def release(self) -> None:
        """Give the memory back. Whoever reads at this moment has its own reference."""
        self._window = None

    def __getstate__(self) -> dict[str, Any]:
        """Settings alone: what was read can be read again."""
        return {**self.__dict__, "_window": None}

    def holds(self, start: int, stop: int) -> bool:
        """Whether the rows at places ``start`` to ``stop`` are in memory."""
        window = self._window
        return window is not None and window.first <= start and stop <= window.last

    def read(self, start: int, stop: int, out: npt.NDArray[Any]) -> None:
        """Fill ``out`` with the rows at places ``start`` to ``stop``; load the windows that they are in."""
        window = self._window
        while start < stop:
            if window is None or not window.first <= start < window.last:
                memory = None if window is None else window.rows
                self._window = None  # a fork, or a failure, must not leave one that is half overwritten
                self._window = window = self._load(start, memory)
            end = min(stop, window.last)
            within = slice(start - window.first, end - window.first)
            picks = self._order(start, end) if window.picks is None else window.picks[within]
            np.take(window.rows, picks, axis=0, out=out[: end - start], mode="clip")
            out = out[end - start :]
            start = end

    def _load(self, first: int, memory: npt.NDArray[Any] | None) -> _Window:
        """Read the window that starts at place ``first``, each part of the file in its own thread."""
        rows = self._empty(self.rows) if memory is None else memory
        if self.whole:
            borders = np.linspace(0, self.rows, self._parts + 1).astype(int).tolist()
            in_threads([partial(self._read_range, rows, start, stop) for start, stop in pairwise(borders)])
            return _Window(0, self.rows, rows, None)
        last = min(first + self.rows, len(self.array))
        numbers = self._order(first, last)
        places = np.argsort(numbers)
        picks = np.empty(len(numbers), np.int32)
        picks[places] = np.arange(len(numbers), dtype=np.int32)
        numbers = numbers[places]
        borders = np.linspace(0, len(numbers), self._parts + 1).astype(int).tolist()
        in_threads(
            [partial(self._read_part, numbers, rows, start, stop) for start, stop in pairwise(borders)]
        )
        return _Window(first, last, rows, picks)

    def _empty(self, rows: int) -> npt.NDArray[Any]:
        # Once, and not by malloc: it might keep what was freed, and passes would add up.
        return Buffers(rows * self.array.row_nbytes, most=0).empty(
            (rows, *self.array.shape[1:]), self.array.dtype
        )

    def _read_range(self, out: npt.NDArray[Any], start: int, stop: int) -> None:
        for first in range(start, stop, self._stage_rows):
            last = min(stop, first + self._stage_rows)
            self.array._read_rows(first, last, out[first:last])

    def _read_part(self, numbers: Ints, out: npt.NDArray[Any], start: int, stop: int) -> None:
        """Read rows ``start`` to ``stop`` of the window, counted in the order of the file."""
        stage = self._empty(self._stage_rows)
        while start < stop:
            end = min(stop, start + _SORTED)
            start += self._read_runs(numbers[start:end], out[start:end], stage)

    def _read_runs(self, numbers: Ints, out: npt.NDArray[Any], stage: npt.NDArray[Any]) -> int:
        """Read as many of the rows as the stage holds together with the gaps between them."""
        width = self.array.row_nbytes
        steps = np.diff(numbers, prepend=numbers[0] - 1)
        apart = (steps - 1) * width > self.costs.gap
        apart[0] = True
        ends = np.cumsum(np.where(apart, 1, steps))  # rows in the stage, up to and with each of them
        count = max(1, int(np.searchsorted(ends, len(stage), side="right")))
        ends, numbers = ends[:count], numbers[:count]
        runs = np.flatnonzero(apart[:count])
        targets, total = ends[runs] - 1, int(ends[-1])
        straight = total == count  # no gap is read: the rows can go where they belong
        started = time.perf_counter()
        outcome = self.array._submit_runs(
            numbers[runs], targets, np.diff(targets, append=total), out[:count] if straight else stage[:total]
        ).wait()
        if not outcome.cached:
            # As many parts as there are threads share the device.
            self.costs.learn(len(runs), total * width, (time.perf_counter() - started) / self._parts)
        if not straight:
            np.take(stage, ends - 1, axis=0, out=out[:count], mode="clip")
        return count

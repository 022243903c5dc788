"""What every array has: shape and dtype by NumPy's names, and reads of rows by number.

Arrays on disk, views of them and many files as one all implement these reads. Passes, ``take``, indexing and
what is built on them need nothing else.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide._io.buffers import Buffers
from lowtide._io.extents import AHEAD, Ints
from lowtide._io.pending import Outcome, Pending, combined
from lowtide._io.threads import in_threads, workers_for
from lowtide._permutation import Order
from lowtide._readonly import ReadOnly
from lowtide.errors import ClosedError

_FEW = 4096  # rows whose order is computed in one thread, or known already


class Rows(ReadOnly):
    """Rows of one shape and dtype. A subclass has a ``path`` and ``_read_runs``, and may override more."""

    _remedy = "open the file again with other arguments, or load the array first, as in array[:]"

    _closed = False
    _parallel = True
    """Whether several threads may read at once without taking more memory than one."""
    _overlaps = False
    """Whether reads that were submitted one after another are under way at the same time."""
    _in_columns = False
    """Whether the first axis varies fastest on disk: a row then is not one run of bytes."""
    _by_runs = False
    """Whether ``_submit_runs`` is there: rows that are neighbours are one read."""
    _drops = False
    """Whether what was read is to leave the page cache."""

    def _describe(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._shape = shape
        self._dtype = dtype
        self._row_nbytes = math.prod(shape[1:]) * dtype.itemsize

    @property
    def path(self) -> str:
        """The file, as an absolute path."""
        raise NotImplementedError

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._dtype

    @property
    def ndim(self) -> int:
        return len(self._shape)

    @property
    def size(self) -> int:
        return math.prod(self._shape)

    @property
    def itemsize(self) -> int:
        return self._dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    @property
    def row_nbytes(self) -> int:
        """Bytes per row."""
        return self._row_nbytes

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("len() of an array with no dimensions")
        return self._shape[0]

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError(f"{self.path}: the array was closed; open it again with lowtide.open")

    def _check_pickled(self) -> None:
        if self.closed:
            raise ClosedError(f"{self.path}: a closed array cannot be pickled; pickle it before closing")

    def _memory(self, rows: int) -> npt.NDArray[Any]:
        """Memory for rows. Not by malloc, which might keep what was freed, so that passes add up."""
        return Buffers(rows * self._row_nbytes, most=0).empty((rows, *self._shape[1:]), self._dtype)

    def _check_file(self) -> None:
        """Raise if the file was replaced or written to since the array was opened."""
        self._check_open()

    def _inodes(self) -> set[tuple[int, int]]:
        """Device and inode of each file that rows are read from."""
        raise NotImplementedError

    # These check nothing: rows must be in bounds and not negative, and `out` contiguous. Hints to the kernel
    # take at most `ahead` bytes of page cache.

    def _read_runs(
        self, starts: Ints, run: int, out: npt.NDArray[Any], ahead: int = AHEAD, *, ordered: bool = True
    ) -> Outcome:
        """Read ``run`` rows from each of ``starts`` on, one run after another, into ``out``.

        With ``ordered=False`` the file is read in the order of the runs, not in its own.
        """
        raise NotImplementedError

    def _submit_rows(self, start: int, stop: int, out: npt.NDArray[Any]) -> Pending[Outcome]:
        """Start to read rows ``start`` to ``stop`` into ``out``, as one of many such reads in order."""
        return Pending(self._read_runs, np.array([start]), stop - start, out)

    def _read_rows(self, start: int, stop: int, out: npt.NDArray[Any]) -> None:
        """``_submit_rows`` and wait for it."""
        self._submit_rows(start, stop, out).wait()

    def _read_ordered(
        self, order: Order, first: int, last: int, out: npt.NDArray[Any], ahead: int, *, ordered: bool = True
    ) -> Outcome:
        """Read the rows at places ``first`` to ``last`` of an order, as ``_read_runs`` does.

        Each thread computes the order of its part, which takes a good part of the time of reading it.
        """
        count = last - first
        parts = workers_for(count, count * self._row_nbytes) if self._parallel else 1
        rows = order(first, last) if parts == 1 or count <= _FEW else None
        if rows is not None and parts == 1:
            return self._fill(rows, out, ahead, ordered)

        def read(start: int, stop: int) -> Outcome:
            some = order(first + start, first + stop) if rows is None else rows[start:stop]
            return self._fill(some, out[start:stop], ahead // parts, ordered)

        borders = [count * i // parts for i in range(parts + 1)]
        return combined(in_threads([partial(read, start, stop) for start, stop in pairwise(borders)]))

    def _fill(self, rows: Ints, out: npt.NDArray[Any], ahead: int, ordered: bool) -> Outcome:
        """``_read_runs`` of single rows, for one of several threads that share a read."""
        return self._read_runs(rows, 1, out, ahead, ordered=ordered)

    def _submit_runs(
        self, starts: Ints, targets: Ints, rows: Ints, out: npt.NDArray[Any]
    ) -> Pending[Outcome]:
        """Start to read ``rows[i]`` rows from row ``starts[i]`` on to row ``targets[i]`` of ``out``.

        The runs are in the order of the file and do not overlap. Only if ``_by_runs``.
        """
        raise NotImplementedError

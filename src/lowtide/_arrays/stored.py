"""What an array on disk is, as its header reports it, and its rows by number."""

from __future__ import annotations

import math
import weakref
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide._arrays.formats.layout import Layout
from lowtide._arrays.indexing import Selection
from lowtide._io.extents import AHEAD, Extents, Ints, of_records
from lowtide._io.pending import Outcome, Pending, combined
from lowtide._io.reader import Cache, ReaderName, open_reader
from lowtide._io.threads import in_threads, workers_for
from lowtide._permutation import Order
from lowtide._readonly import ReadOnly
from lowtide.errors import ClosedError

_TRANSPOSED_AT_ONCE = 2 * 2**20  # bytes of a Fortran-ordered file


class Stored(ReadOnly):
    """Path, shape and dtype, by NumPy's names, and a reader of the rows."""

    _remedy = "open the file again with other arguments, or load the array first, as in array[:]"

    def __init__(self, layout: Layout, *, reader: ReaderName = "auto", cache: Cache = "keep") -> None:
        self._layout = layout
        self._shape = layout.shape
        self._dtype: np.dtype[Any] = layout.dtype
        self._settings = (reader, cache)
        self._reader = open_reader(layout.path, layout.file_size, reader, cache, layout.identity)
        self._finalizer = weakref.finalize(self, self._reader.close)
        self._finalizer.atexit = False
        self._row_nbytes = math.prod(self.shape[1:]) * self.itemsize
        self._in_columns = layout.fortran and self.ndim > 1  # a row then is not one run of bytes
        steps = [1, *np.cumprod(self.shape[::-1] if not layout.fortran else self.shape, dtype=object)]
        strides = [int(step) * self.itemsize for step in steps[: self.ndim]]
        self._strides = tuple(strides if layout.fortran else strides[::-1])

    @property
    def path(self) -> str:
        """The file, as an absolute path."""
        return self._layout.path

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
        return not self._finalizer.alive

    def close(self) -> None:
        """Release the descriptor; idempotent. Reading after it is an error."""
        self._finalizer()

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError(f"{self.path}: the array was closed; open it again with lowtide.open")

    # For those who have checked what they ask for: rows are in bounds and not negative, `out` is contiguous,
    # and hints to the kernel take at most `ahead` bytes of page cache.

    def _submit_rows(self, start: int, stop: int, out: npt.NDArray[Any]) -> Pending[Outcome]:
        """Start to read rows ``start`` to ``stop`` into ``out``, as one of many such reads in order."""
        self._check_open()
        if not out.nbytes:
            return Pending.of(Outcome())
        if self._in_columns:
            return Pending(self._read_fortran, np.array([start]), stop - start, out)
        extents = Extents.of_range(self._layout.offset + start * self._row_nbytes, out.nbytes)
        return self._reader.submit(extents, out.reshape(-1).view(np.uint8), sequential=True)

    def _read_rows(self, start: int, stop: int, out: npt.NDArray[Any]) -> None:
        """``_submit_rows``, for those who would only wait for it."""
        if self._in_columns or not out.nbytes:
            self._submit_rows(start, stop, out).wait()
            return
        self._check_open()
        offset = self._layout.offset + start * self._row_nbytes
        self._reader.read(offset, out.reshape(-1).view(np.uint8), sequential=True)

    def _read_runs(
        self, starts: Ints, run: int, out: npt.NDArray[Any], ahead: int = AHEAD, *, ordered: bool = True
    ) -> Outcome:
        """Read ``run`` rows from each of ``starts`` on, one run after another, into ``out``.

        With ``ordered=False`` the file is read in the order of the runs, not in its own.
        """
        self._check_open()
        width = self._row_nbytes * run
        if not width or not len(starts):
            return Outcome()
        if self._in_columns:
            return self._read_fortran(starts, run, out)
        extents = of_records(self._layout.offset + starts * self._row_nbytes, width, ordered=ordered)
        return self._reader.submit(extents, out.reshape(-1).view(np.uint8), ahead=ahead).wait()

    def _read_ordered(
        self, order: Order, first: int, last: int, out: npt.NDArray[Any], ahead: int, *, ordered: bool = True
    ) -> Outcome:
        """Read the rows at places ``first`` to ``last`` of an order, as ``_read_runs`` does.

        Each thread computes the order of its part: that takes a good part of the time of reading it.
        """
        count = last - first
        single = self._in_columns or not self._reader.parallel
        parts = 1 if single else workers_for(count, count * self._row_nbytes)

        def read(start: int, stop: int) -> Outcome:
            rows = order(first + start, first + stop)
            return self._read_runs(rows, 1, out[start:stop], ahead // parts, ordered=ordered)

        borders = [count * i // parts for i in range(parts + 1)]
        return combined(in_threads([partial(read, start, stop) for start, stop in pairwise(borders)]))

    def _submit_runs(
        self, starts: Ints, targets: Ints, rows: Ints, out: npt.NDArray[Any]
    ) -> Pending[Outcome]:
        """Start to read ``rows[i]`` rows from row ``starts[i]`` on to row ``targets[i]`` of ``out``.

        The runs are in the order of the file and do not overlap. Not for arrays in columns.
        """
        self._check_open()
        width = self._row_nbytes
        extents = Extents(self._layout.offset + starts * width, targets * width, rows * width).cut()
        return self._reader.submit(extents, out.reshape(-1).view(np.uint8))

    def _check_file(self) -> None:
        """Raise if the file was replaced or written to since the array was opened."""
        self._check_open()
        self._reader.check()

    def _read_fortran(self, starts: Ints, run: int, out: npt.NDArray[Any]) -> Outcome:
        """Piece by piece along the last axis, the slowest on disk: what is transposed at once is small."""
        if run > 1 and len(starts) > 1:  # a run is one read per column, scattered rows one each
            for i in range(len(starts)):
                self._read_fortran(starts[i : i + 1], run, out[i * run : (i + 1) * run])
            return Outcome(1, 1)
        index = slice(int(starts[0]), int(starts[0]) + run) if len(starts) == 1 else starts
        columns = self.shape[-1]
        step = max(1, _TRANSPOSED_AT_ONCE // (len(starts) * run * self.row_nbytes // columns))
        for first in range(0, columns, step):
            place = (index, ..., slice(first, first + step))
            selection = Selection.of(place, self._shape, self._strides, self.itemsize)
            out[..., first : first + step] = selection.read(self._reader, self._layout.offset, self._dtype)
        return Outcome(1, 1)

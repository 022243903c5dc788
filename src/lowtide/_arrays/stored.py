"""An array in one file: the layout that its header gives, and a reader."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide._arrays.array import Array
from lowtide._arrays.conversions import is_names
from lowtide._arrays.formats.layout import Layout
from lowtide._arrays.indexing import Selection, run_of
from lowtide._io.extents import AHEAD, LONGEST, Extents, Ints, of_records
from lowtide._io.pending import Outcome, Pending
from lowtide._io.reader import Cache, ReaderName, open_reader
from lowtide.errors import IndexingError

_TRANSPOSED_AT_ONCE = 2 * 2**20  # bytes of a Fortran-ordered file


class StoredArray(Array):
    """The array that ``lowtide.open`` returns for one file."""

    def __init__(self, layout: Layout, reader: ReaderName = "auto", cache: Cache = "keep") -> None:
        self._layout = layout
        self._describe(layout.shape, layout.dtype)
        self._settings = (reader, cache)
        self._reader = open_reader(layout.path, layout.file_size, reader, cache, layout.identity)
        self._finalizer = weakref.finalize(self, self._reader.close)
        self._finalizer.atexit = False
        self._in_columns = layout.fortran and self.ndim > 1
        self._parallel = self._reader.parallel and not self._in_columns
        self._overlaps = self._reader.overlaps and not self._in_columns
        self._by_runs = not self._in_columns
        self._drops = cache == "drop"
        steps = [1, *np.cumprod(self.shape[::-1] if not layout.fortran else self.shape, dtype=object)]
        strides = [int(step) * self.itemsize for step in steps[: self.ndim]]
        self._strides = tuple(strides if layout.fortran else strides[::-1])
        is_run = bool(self._shape) and not self._in_columns and 0 < self._row_nbytes <= LONGEST
        self._exports = _exports(self._dtype)
        # What reading a single row needs, as one attribute: a class with __getattr__ is slow to find each.
        rows = self._shape[0] if is_run and self._exports else 0
        self._single = (rows, layout.offset, self._row_nbytes, self._shape[1:], self._dtype)
        self._offset = layout.offset

    @property
    def path(self) -> str:
        return self._layout.path

    @property
    def reader(self) -> str:
        return f"{self._reader.name} ({self._reader.how})"

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        order = ", order='F'" if self._layout.fortran else ""
        return (
            f"<lowtide.Array {self.path!r}, shape={self.shape}, dtype={str(self.dtype)!r}{order}, "
            f"reader={self.reader}{state}>"
        )

    def close(self) -> None:
        """Release the descriptor; idempotent. Reading after it is an error."""
        self._closed = True
        self._single = (0, *self._single[1:])
        self._finalizer()

    def _inodes(self) -> set[tuple[int, int]]:
        identity = self._layout.identity
        return set() if identity is None else {(identity.device, identity.inode)}

    def __reduce__(self) -> tuple[Any, ...]:
        self._check_pickled()
        return StoredArray, (self._layout, *self._settings)

    def __getitem__(self, index: Any) -> Any:
        # Loops ask for rows and elements one by one: planning would take longer than reading them.
        if type(index) is not int and isinstance(index, np.integer):
            index = int(index)
        if type(index) is int:
            count, offset, width, shape, dtype = self._single
            number = index if index >= 0 else index + count
            if 0 <= number < count:
                row = np.empty(shape, dtype)
                self._reader.read(offset + number * width, row)
                return row if shape else row[()]
        self._check_open()
        run = run_of(index, self._shape, self._strides, self._in_columns)
        if run is not None and 0 < run[1] <= LONGEST:
            start, nbytes, shape = run
            if self._exports:
                selected = np.empty(shape, self._dtype)
                self._reader.read(self._offset + start, selected)
            else:
                buffer = np.empty(nbytes, np.uint8)
                self._reader.read(self._offset + start, buffer)
                selected = np.ndarray(shape, self._dtype, buffer)
            return selected if shape else selected[()]
        if is_names(index):
            return self._fields(index)
        try:
            selection = Selection.of(index, self.shape, self._strides, self.itemsize)
        except IndexingError as error:
            raise IndexingError(f"{self.path}: {error}") from None
        selected = selection.read(self._reader, self._layout.offset, self.dtype)
        return selected[()] if selection.is_scalar else selected

    def _submit_rows(self, start: int, stop: int, out: npt.NDArray[Any]) -> Pending[Outcome]:
        self._check_open()
        if not out.nbytes:
            return Pending.of(Outcome())
        if self._in_columns:
            return Pending(self._read_fortran, np.array([start]), stop - start, out)
        extents = Extents.of_range(self._layout.offset + start * self._row_nbytes, out.nbytes)
        return self._reader.submit(extents, out.reshape(-1).view(np.uint8), sequential=True)

    def _read_rows(self, start: int, stop: int, out: npt.NDArray[Any]) -> None:
        if self._in_columns or not out.nbytes:
            self._submit_rows(start, stop, out).wait()
            return
        self._check_open()
        offset = self._layout.offset + start * self._row_nbytes
        self._reader.read(offset, out.reshape(-1).view(np.uint8), sequential=True)

    def _read_runs(
        self, starts: Ints, run: int, out: npt.NDArray[Any], ahead: int = AHEAD, *, ordered: bool = True
    ) -> Outcome:
        self._check_open()
        width = self._row_nbytes * run
        if not width or not len(starts):
            return Outcome()
        if self._in_columns:
            return self._read_fortran(starts, run, out)
        extents = of_records(self._layout.offset + starts * self._row_nbytes, width, ordered=ordered)
        return self._reader.submit(extents, out.reshape(-1).view(np.uint8), ahead=ahead).wait()

    def _fill(self, rows: Ints, out: npt.NDArray[Any], ahead: int, ordered: bool) -> Outcome:
        width = self._row_nbytes
        if self._in_columns or not out.nbytes:
            return self._read_runs(rows, 1, out, ahead, ordered=ordered)
        self._check_open()
        extents = of_records(self._offset + rows * width, width, ordered=ordered)
        return self._reader.fill(extents, out.reshape(-1).view(np.uint8), ahead)

    def _submit_runs(
        self, starts: Ints, targets: Ints, rows: Ints, out: npt.NDArray[Any]
    ) -> Pending[Outcome]:
        self._check_open()
        width = self._row_nbytes
        extents = Extents(self._layout.offset + starts * width, targets * width, rows * width).cut()
        return self._reader.submit(extents, out.reshape(-1).view(np.uint8))

    def _check_file(self) -> None:
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


def _exports(dtype: np.dtype[Any]) -> bool:
    """Whether arrays of this dtype are buffers: times are not."""
    try:
        memoryview(np.empty(1, dtype))  # type: ignore[arg-type]  # not for every dtype
    except (ValueError, BufferError):
        return False
    return True

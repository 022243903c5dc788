"""Views: arrays that are parts or conversions of others, and are read on demand.

A view is an ``Array``: it implements the reads of rows by those of its source. Selections of rows stay
outermost, with conversions below them, so that the view of a view is never deeper than needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide._arrays.array import Array
from lowtide._arrays.conversions import Conversion, is_names
from lowtide._arrays.indexing import Axis, as_arrays, items_of, read_in_order, wrap, wrap_array
from lowtide._arrays.selections import Selection, Stride
from lowtide._arrays.stored import StoredArray
from lowtide._io.extents import AHEAD, Ints, of_records
from lowtide._io.pending import Outcome, Pending, combined
from lowtide.errors import IndexingError

_STAGE = 2**20  # bytes of rows that are read to be picked from, or converted
_AT_ONCE = 2**15  # rows whose numbers are computed at once
_SPARSE = 4  # if fewer than one row in so many is wanted, the others are not read


class ByRows(Array):
    """An array that reads whole rows, and takes from them what an index selects."""

    def close(self) -> None:
        """End the use of this view; the array that it is a view of stays open."""
        self._closed = True

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return (
            f"<lowtide.Array {self.path!r}, shape={self.shape}, dtype={str(self.dtype)!r}, "
            f"view: {self._shown}{state}>"
        )

    @property
    def _shown(self) -> str:
        """What it is a view of, for ``repr``."""
        raise NotImplementedError

    def _not_written(self, what: str) -> TypeError:
        return TypeError(
            f"{self.path}: {what} would write to a view ({self._shown}), and views are read-only; assign to "
            f"the array itself, opened with mode='r+', as in array[rows] = values"
        )

    # Indexing, by whole rows: some at a time, of which NumPy takes what the rest of the index selects.

    def __getitem__(self, index: Any) -> Any:
        self._check_open()
        if is_names(index):
            return self._fields(index)
        try:
            items = items_of(index, self.shape)
            parts = index if isinstance(index, tuple) else (index,)
            if not any(part is Ellipsis for part in parts):  # with one NumPy gives no scalars
                items = [item for item in items if item is not Ellipsis]
            return self._take_items(items)
        except IndexError as error:  # NumPy's or ours
            raise IndexingError(f"{self.path}: {error}") from None

    def _take_items(self, items: list[Any]) -> Any:
        at = next(i for i, item in enumerate(items) if item is not None and item is not Ellipsis)
        before, rows, after = items[:at], items[at], items[at + 1 :]
        if isinstance(rows, int):
            if any(isinstance(item, np.ndarray) for item in after):
                return self._take_items([*before, np.array(rows), *after])
            number, row = wrap(rows, 0, len(self)), np.empty((1, *self.shape[1:]), self.dtype)
            self._read_rows(number, number + 1, row)
            return row[(*before, 0, *after)]
        if isinstance(rows, slice):
            return self._take_slice(before, Stride.of(rows, len(self)), after)
        if rows.dtype.kind == "b":
            return self._take_items([*before, *as_arrays(rows, 0, self.shape), *after])
        if all(isinstance(item, slice) and item == slice(None) for item in after) and not before:
            return self.take(rows)
        return self._take_listed(before, rows, after)

    def _take_slice(self, before: list[Any], rows: Stride, after: list[Any]) -> npt.NDArray[Any]:
        # Where the rows are in the result, by NumPy's own rules: the axis that grows with them.
        place = (*before, slice(None), *after)
        shapes = [np.broadcast_to(np.uint8(0), (n, *self.shape[1:]))[place].shape for n in (2, 3)]
        axis = next(i for i, (two, three) in enumerate(zip(*shapes, strict=True)) if two != three)
        shape = (*shapes[0][:axis], rows.n, *shapes[0][axis + 1 :])
        result = np.empty(shape, self.dtype)
        at_once = max(1, _STAGE // max(1, self.row_nbytes))
        for first in range(0, rows.n, at_once):
            last = min(rows.n, first + at_once)
            part = np.empty((last - first, *self.shape[1:]), self.dtype)
            if rows.step == 1:
                self._read_rows(rows.start + first, rows.start + last, part)
            else:
                self._read_runs(rows(np.arange(first, last)), 1, part)
            result[(*[slice(None)] * axis, slice(first, last))] = part[place]
        return result

    def _take_listed(self, before: list[Any], rows: npt.NDArray[Any], after: list[Any]) -> Any:
        """Rows by number along with other lists: each row is read once."""
        numbers, places = np.unique(wrap_array(rows, 0, len(self)), return_inverse=True)
        return self.take(numbers)[(*before, places.reshape(rows.shape), *after)]


class View(ByRows):
    """An array that is made of another one."""

    _source: Array

    @property
    def path(self) -> str:
        return self._source.path

    @property
    def reader(self) -> str:
        return self._source.reader

    @property
    def closed(self) -> bool:
        return self._closed or self._source.closed

    def _check_file(self) -> None:
        self._check_open()
        self._source._check_file()

    def _inodes(self) -> set[tuple[int, int]]:
        return self._source._inodes()


class RowView(View):
    """Some rows of an array."""

    def __init__(self, source: Array, *selections: Selection) -> None:
        """The last of the selections is that of the view; each one selects from what the one before has."""
        self._source = source
        self._selections = selections
        self._describe((selections[-1].n, *source.shape[1:]), source.dtype)
        only = selections[0] if len(selections) == 1 else None
        # Rows that are neighbours here are neighbours in the source: its own reads will do.
        self._offset = only.start if isinstance(only, Stride) and only.step == 1 else None
        self._parallel = source._parallel
        self._drops = source._drops
        self._by_runs = source._by_runs and self._offset is not None

    @classmethod
    def of(cls, source: Array, selection: Selection) -> RowView:
        """A view of rows, also of a view of rows."""
        if not isinstance(source, RowView):
            return cls(source, selection)
        *others, last = source._selections
        if isinstance(last, Stride) and isinstance(selection, Stride):
            return cls(source._source, *others, selection.after(last))
        return cls(source._source, *source._selections, selection)

    def __reduce__(self) -> tuple[Any, ...]:
        self._check_pickled()
        return RowView, (self._source, *self._selections)

    @property
    def _shown(self) -> str:
        return f"{self.shape[0]} of {len(self._source)} rows"

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int | np.integer) and not isinstance(index, bool) and not self._closed:
            number, count = int(index), self._shape[0]
            if -count <= number < count:
                number += count if number < 0 else 0
                for selection in reversed(self._selections):
                    number = selection.at(number)
                return self._source[number]
        return super().__getitem__(index)

    def _numbers(self, numbers: Ints) -> Ints:
        for selection in reversed(self._selections):
            numbers = selection(numbers)
        return numbers

    def _read_runs(
        self, starts: Ints, run: int, out: npt.NDArray[Any], ahead: int = AHEAD, *, ordered: bool = True
    ) -> Outcome:
        self._check_open()
        if self._offset is not None:
            return self._source._read_runs(starts + self._offset, run, out, ahead, ordered=ordered)
        if run > 1:
            return combined(
                self._read_near(start, start + run, out[i * run : (i + 1) * run])
                for i, start in enumerate(starts.tolist())
            )
        return self._source._read_runs(self._numbers(starts), 1, out, ahead, ordered=ordered)

    def _submit_rows(self, start: int, stop: int, out: npt.NDArray[Any]) -> Pending[Outcome]:
        self._check_open()
        if self._offset is not None:
            return self._source._submit_rows(start + self._offset, stop + self._offset, out)
        return Pending(self._read_near, start, stop, out)

    def _submit_runs(
        self, starts: Ints, targets: Ints, rows: Ints, out: npt.NDArray[Any]
    ) -> Pending[Outcome]:
        self._check_open()
        return self._source._submit_runs(starts + (self._offset or 0), targets, rows, out)

    def _read_near(self, start: int, stop: int, out: npt.NDArray[Any]) -> Outcome:
        """Read consecutive rows; where many of the source's rows are wanted, all of them are read."""
        source, outcomes = self._source, []
        width = max(1, self.row_nbytes)
        stage = np.empty((max(1, _STAGE // width), *self.shape[1:]), self.dtype)
        at_once = min(_AT_ONCE, max(1, len(stage) // 2))
        for first in range(start, stop, at_once):
            last = min(stop, first + at_once)
            rows = self._numbers(np.arange(first, last, dtype=np.int64))
            low, high = int(rows.min()), int(rows.max()) + 1
            part = out[first - start : last - start]
            if high - low <= min(len(stage), _SPARSE * len(rows)) and len(rows) > 1:
                source._read_rows(low, high, stage[: high - low])
                np.take(stage, rows - low, axis=0, out=part, mode="clip")
                outcomes.append(Outcome(1, 1))
            else:
                outcomes.append(source._read_runs(rows, 1, part))
        return combined(outcomes)


class ConvertedView(View):
    """The rows of an array, each turned into another row: some columns, a field, another dtype."""

    def __init__(self, source: Array, conversion: Conversion) -> None:
        self._source = source
        self._conversion = conversion
        shape, dtype = conversion.result(source.shape[1:], source.dtype)
        self._describe((len(source), *shape), dtype)
        self._parallel = source._parallel
        self._drops = source._drops
        # Looking ahead counts in rows of this view: those of the source must not be much larger.
        self._by_runs = source._by_runs and source.row_nbytes <= 2 * self.row_nbytes
        self._at_once = max(1, _STAGE // max(1, source.row_nbytes))
        stored = isinstance(source, StoredArray) and not source._in_columns
        self._bytes = conversion.bytes_of(source.shape[1:], source.dtype) if stored else None

    @classmethod
    def of(cls, source: Array, conversion: Conversion) -> Array:
        """A view of converted rows. Of a view of rows it is a view of rows of the converted array."""
        if isinstance(source, RowView):
            return RowView(cls(source._source, conversion), *source._selections)
        return cls(source, conversion)

    def __reduce__(self) -> tuple[Any, ...]:
        self._check_pickled()
        return ConvertedView, (self._source, self._conversion)

    @property
    def _shown(self) -> str:
        return repr(self._conversion)

    def _read_runs(
        self, starts: Ints, run: int, out: npt.NDArray[Any], ahead: int = AHEAD, *, ordered: bool = True
    ) -> Outcome:
        self._check_open()
        source, outcomes = self._source, []
        if run > self._at_once:
            return combined(
                self._read_through(start, start + run, out[i * run : (i + 1) * run])
                for i, start in enumerate(starts.tolist())
            )
        if run == 1 and len(starts) and self._bytes is not None:  # no more than these of each row
            offsets = source._layout.offset + starts * source.row_nbytes + self._bytes[0]
            extents = of_records(offsets, self._bytes[1], ordered=ordered)
            return source._reader.submit(extents, out.reshape(-1).view(np.uint8), ahead=ahead).wait()
        step = max(1, self._at_once // run)
        for first in range(0, len(starts), step):
            some = starts[first : first + step]
            rows = np.empty((len(some) * run, *source.shape[1:]), source.dtype)
            outcomes.append(source._read_runs(some, run, rows, ahead, ordered=ordered))
            self._conversion.convert(rows, out[first * run : first * run + len(rows)])
        return combined(outcomes)

    def _submit_rows(self, start: int, stop: int, out: npt.NDArray[Any]) -> Pending[Outcome]:
        self._check_open()
        return Pending(self._read_through, start, stop, out)

    def _read_through(self, start: int, stop: int, out: npt.NDArray[Any]) -> Outcome:
        source = self._source
        if source.row_nbytes > _SPARSE * self.row_nbytes and source.row_nbytes > 2**16:
            step = _AT_ONCE  # most of what else is in these rows would be read for nothing
            return combined(
                self._read_runs(np.arange(first, min(stop, first + step)), 1, out[first - start :][:step])
                for first in range(start, stop, step)
            )
        if self._bytes is not None and stop > start:
            offset = source._layout.offset + start * source.row_nbytes + self._bytes[0]
            axis = Axis(stop - start, source.row_nbytes)
            read_in_order(source._reader, offset, axis, self._bytes[1], out.reshape(-1).view(np.uint8))
            return Outcome(1, 1)
        rows = np.empty((min(stop - start, self._at_once), *source.shape[1:]), source.dtype)
        for first in range(start, stop, self._at_once):
            last = min(stop, first + self._at_once)
            source._read_rows(first, last, rows[: last - first])
            self._conversion.convert(rows[: last - first], out[first - start : last - start])
        return Outcome(1, 1)

    def _submit_runs(
        self, starts: Ints, targets: Ints, rows: Ints, out: npt.NDArray[Any]
    ) -> Pending[Outcome]:
        self._check_open()
        source = np.empty((int(targets[-1] + rows[-1]), *self._source.shape[1:]), self._source.dtype)

        def convert(outcome: Outcome) -> Outcome:
            self._conversion.convert(source, out[: len(source)])
            return outcome

        return self._source._submit_runs(starts, targets, rows, source).then(convert)

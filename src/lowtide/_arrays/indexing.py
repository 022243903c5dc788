"""NumPy's index expressions, turned into places in a file.

``Selection.of`` understands an index; ``Selection.read`` brings what it selects into a new array, reading
only the records it needs, whatever the order of the axes on disk.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide._arrays.conversions import is_names
from lowtide._io.buffers import Buffers
from lowtide._io.extents import Extents, Ints, of_records
from lowtide._io.reader import Reader
from lowtide._io.threads import in_threads, workers_for
from lowtide.errors import IndexingError

_GAP = 4096  # records closer than this are read through: skipping them would save the disk nothing
_SPAN = 256 * 2**10  # how much is read through at once
_RECORDS = 2**16  # offsets computed at once, so that a huge index needs no huge list of them
_THROUGH = 4 * 2**20  # buffer for reading through
_IN_ORDER = 2**19  # bytes of a long span that are read at once: they stay in the processor's own cache


def run_of(
    index: Any, shape: tuple[int, ...], strides: tuple[int, ...], in_columns: bool
) -> tuple[int, int, tuple[int, ...]] | None:
    """First byte, bytes and shape of what integers select, if it is one run of bytes; else None.

    Loops ask for single rows and elements: for them ``Selection`` takes longer than the read.
    """
    items = index if type(index) is tuple else (index,)
    axes = len(items)
    if not 0 < axes <= len(shape) or (in_columns and axes < len(shape)):
        return None
    start = 0
    for number, size, stride in zip(items, shape, strides, strict=False):
        if type(number) is not int:
            if not isinstance(number, np.integer):
                return None
            number = int(number)
        if number < 0:
            number += size
        if not 0 <= number < size:
            return None  # Selection raises the error
        start += number * stride
    return start, min(strides) if in_columns else strides[axes - 1], shape[axes:]


@dataclass(slots=True)
class Axis:
    """An axis of the result: ``count`` steps of ``stride`` bytes, or bytes given one by one."""

    count: int
    stride: int = 0
    places: Ints | None = None
    shape: tuple[int, ...] | None = None
    """Shape that the axis has in the result, when it stands for several (or for none)."""

    def offsets(self, index: Ints) -> Ints:
        return self.places[index] if self.places is not None else index * self.stride


@dataclass(slots=True)
class Selection:
    """What an index selects: a first byte, and the axes of the result from there."""

    start: int
    axes: list[Axis]
    itemsize: int
    is_scalar: bool
    """Whether NumPy gives a scalar and not an array: all axes are gone, and there is no ``...``."""

    @property
    def shape(self) -> tuple[int, ...]:
        return sum((axis.shape if axis.shape is not None else (axis.count,) for axis in self.axes), ())

    @classmethod
    def of(cls, index: Any, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> Selection:
        """Apply an index to an array of that shape and those strides (in bytes)."""
        items = items_of(index, shape)
        advanced = any(isinstance(item, np.ndarray) for item in items)
        start = 0
        axes: list[Axis] = []
        arrays: list[npt.NDArray[np.intp]] = []  # with the stride already multiplied in
        seat: int | None = None  # where the advanced axes stand in the result
        apart = False  # something stands between two advanced indices: NumPy then puts them first
        last_advanced = -1
        axis = 0
        for place, item in enumerate(items):
            if item is Ellipsis:
                continue
            if item is None:
                axes.append(Axis(1))
            elif isinstance(item, slice):
                first, stop, step = item.indices(shape[axis])
                start += first * strides[axis] if shape[axis] else 0
                axes.append(Axis(len(range(first, stop, step)), step * strides[axis]))
                axis += 1
            elif isinstance(item, int) and not advanced:
                start += wrap(item, axis, shape[axis]) * strides[axis]
                axis += 1
            else:
                if seat is None:
                    seat = len(axes)
                elif last_advanced != place - 1:
                    apart = True
                last_advanced = place
                for array in as_arrays(item, axis, shape):
                    arrays.append(wrap_array(array, axis, shape[axis]) * strides[axis])
                    axis += 1
        if arrays:
            try:
                places = np.asarray(sum(arrays))
            except ValueError:
                shapes = ", ".join(str(array.shape) for array in arrays)
                raise IndexingError(f"index arrays of shapes {shapes} cannot be broadcast together") from None
            gathered = Axis(places.size, places=places.ravel(), shape=places.shape)
            axes.insert(0 if apart or seat is None else seat, gathered)
        dotted = index is Ellipsis or (isinstance(index, tuple) and any(item is Ellipsis for item in index))
        return cls(start, axes, itemsize, is_scalar=not axes and not dotted)

    def read(self, reader: Reader, offset: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """The selection as a new array; the array's first byte is at ``offset`` of the file."""
        shape = self.shape
        if not math.prod(shape) or not self.itemsize:
            return np.zeros(shape, dtype)
        start, on_disk, order, flips = self.on_disk()
        start, moving = start + offset, sorted(order)
        if order == moving and not any(flips):
            result: npt.NDArray[Any] = np.empty(shape, dtype)
            _read_records(reader, start, on_disk, self.itemsize, result.reshape(-1).view(np.uint8))
            return result
        if order == moving[::-1] and not any(flips) and len(shape) == len(self.axes):
            result = np.empty(shape, dtype, order="F")
            _read_records(reader, start, on_disk, self.itemsize, result.T.reshape(-1).view(np.uint8))
            return result
        buffer = np.empty([axis.count for axis in on_disk], dtype)
        _read_records(reader, start, on_disk, self.itemsize, buffer.reshape(-1).view(np.uint8))
        upright = buffer[tuple(slice(None, None, -1 if flip else 1) for flip in flips)]
        return upright.transpose(np.argsort(order)).reshape(shape)

    def on_disk(self) -> tuple[int, list[Axis], list[int], list[bool]]:
        """The axes longer than 1 as they are on disk, slowest first and all of them upwards.

        Returns the first byte, those axes, the numbers that they have in the result, and which of them are
        reversed in the result.
        """
        start = self.start
        order = sorted((i for i, axis in enumerate(self.axes) if axis.count > 1), key=self._disk_order)
        on_disk: list[Axis] = []
        for i, axis in enumerate(self.axes):
            if i not in order:
                start += int(axis.offsets(np.zeros(1, np.int64))[0])
        for axis in (self.axes[i] for i in order):
            if axis.stride < 0:  # read upwards, reverse in memory
                start += (axis.count - 1) * axis.stride
                axis = Axis(axis.count, -axis.stride)
            on_disk.append(axis)
        return start, on_disk, order, [self.axes[i].stride < 0 for i in order]

    def _disk_order(self, i: int) -> tuple[bool, int]:
        axis = self.axes[i]
        return axis.places is None, -abs(axis.stride)


def _read_records(
    reader: Reader, start: int, axes: Sequence[Axis], width: int, out: npt.NDArray[np.uint8]
) -> None:
    """Read the records at ``start`` plus one step of each axis, slowest axis first, into ``out``."""
    outer, width = merged(axes, width)
    inner = outer[-1] if outer and outer[-1].places is None else None
    # Only where several records share a span: else it would be a copy of each record for nothing.
    if inner is not None and inner.stride - width <= _GAP and 2 * inner.stride <= _SPAN:
        if len(outer) == 1 and inner.count * inner.stride >= _THROUGH:
            read_in_order(reader, start, inner, width, out)
            return
        _read_through(reader, start, outer[:-1], inner, width, out)
        return
    total = math.prod(axis.count for axis in outer)
    for first in range(0, total, _RECORDS):
        last = min(total, first + _RECORDS)
        offsets = start + offsets_of(outer, first, last)
        reader.submit(of_records(offsets, width), out[first * width : last * width]).wait()


def merged(axes: Sequence[Axis], width: int) -> tuple[list[Axis], int]:
    """The same records with fewer axes and as wide as possible."""
    outer = list(axes)
    while outer and outer[-1].places is None and outer[-1].stride == width:
        width *= outer.pop().count
    for i in reversed(range(len(outer) - 1)):
        slow, fast = outer[i], outer[i + 1]
        if slow.places is None and fast.places is None and slow.stride == fast.stride * fast.count:
            outer[i : i + 2] = [Axis(slow.count * fast.count, fast.stride)]
    return outer, width


def _read_through(
    reader: Reader, start: int, outer: list[Axis], inner: Axis, width: int, out: npt.NDArray[np.uint8]
) -> None:
    """Read whole spans along ``inner``, gaps included, and pick the records out in memory."""
    records = out.reshape(-1, inner.count, width)
    block = max(1, min(inner.count, _SPAN // inner.stride))
    whole = inner.count // block * block
    for begin, end, step in ((0, whole, block), (whole, inner.count, inner.count - whole)):
        if begin == end:
            continue
        span = (step - 1) * inner.stride + width
        spans = [*outer, Axis((end - begin) // step, step * inner.stride)]
        targets = records[:, begin:end].reshape(len(records), (end - begin) // step, step, width)
        total = math.prod(axis.count for axis in spans)
        at_once = max(1, _THROUGH // span)
        buffer = np.empty((min(at_once, total), span), np.uint8)
        for first in range(0, total, at_once):
            last = min(total, first + at_once)
            offsets = start + begin * inner.stride + offsets_of(spans, first, last)
            read = buffer[: last - first]
            reader.submit(of_records(offsets, span), read.reshape(-1)).wait()
            picked = np.lib.stride_tricks.as_strided(read, (len(read), step, width), (span, inner.stride, 1))
            targets[np.unravel_index(np.arange(first, last), targets.shape[:2])] = picked


def read_in_order(reader: Reader, start: int, axis: Axis, width: int, out: npt.NDArray[np.uint8]) -> None:
    """Read records along one axis, and what is between them, with the kernel's own read-ahead.

    What is cached is copied by several threads: one alone does not use all of the memory's bandwidth.
    """
    stride, block = axis.stride, max(1, min(axis.count, _IN_ORDER // axis.stride))
    kind = np.dtype(f"u{width}" if width in (1, 2, 4, 8) else f"V{width}")  # integers are copied faster
    records = out.view(kind)
    # Not by malloc, whose large blocks start 16 bytes behind the start of a page: some processors copy slowly
    # to there.
    buffers = Buffers(block * stride, most=0)
    buffer = buffers.empty((block * stride,), np.dtype(np.uint8))

    def pick(buffer: npt.NDArray[np.uint8], first: int) -> None:
        some = records[first : first + block]
        some[:] = np.ndarray((len(some),), kind, buffer, 0, (stride,))

    def read(buffer: npt.NDArray[np.uint8]) -> None:
        for first in places:  # shared: each thread takes the next one, so that the file is read in order
            count = min(block, axis.count - first)
            reader.read(start + first * stride, buffer[: (count - 1) * stride + width], sequential=True)
            pick(buffer, first)

    nbytes = (block - 1) * stride + width
    pending = reader.submit(Extents.of_range(start, nbytes), buffer[:nbytes], sequential=True)
    pending.wait()
    pick(buffer, 0)
    places = iter(range(block, axis.count, block))
    # From the device the kernel reads ahead for one reader in order, and one drops what another is at.
    several = pending.done and reader.parallel and not reader.drops
    others = workers_for(len(range(block, axis.count, block)), axis.count * stride) - 1 if several else 0
    more = [buffers.empty(buffer.shape, buffer.dtype) for _ in range(others)]
    in_threads([partial(read, each) for each in (buffer, *more)])


def offsets_of(axes: Sequence[Axis], first: int, last: int) -> Ints:
    """Offsets of records ``first`` to ``last``, counted with the last axis fastest."""
    rest = np.arange(first, last, dtype=np.int64)
    offsets = np.zeros(last - first, np.int64)
    for axis in reversed(axes):
        rest, index = np.divmod(rest, axis.count)
        offsets += axis.offsets(index)
    return offsets


def items_of(index: Any, shape: tuple[int, ...]) -> list[Any]:
    """The index as a list of int, slice, None, arrays and ``...`` (for no axis) that covers every axis."""
    items = [_item(item) for item in (index if isinstance(index, tuple) else (index,))]
    used = sum(_axes_used(item) for item in items)
    dots = sum(item is Ellipsis for item in items)
    if dots > 1:
        raise IndexingError("an index can only have a single ellipsis ('...')")
    if used > len(shape):
        raise IndexingError(
            f"too many indices for array: array is {len(shape)}-dimensional, but {used} were indexed"
        )
    if not dots:
        items.append(Ellipsis)
    at = next(i for i, item in enumerate(items) if item is Ellipsis)
    # Even one that stands for no axis keeps the advanced indices on its two sides apart.
    items[at : at + 1] = [slice(None)] * (len(shape) - used) if used < len(shape) else [Ellipsis]
    return items


def _item(item: Any) -> Any:
    if item is None or item is Ellipsis or isinstance(item, slice):
        return item
    if is_names(item):
        raise IndexingError(f"a field is selected alone, and then its rows: array[{item!r}][...]")
    if not isinstance(item, bool | np.bool_):
        try:
            return operator.index(item)
        except TypeError:
            pass
    array = np.asarray(item)
    if not array.size and not isinstance(item, np.ndarray):
        array = array.astype(np.intp)  # an empty list selects nothing
    if array.dtype.kind not in "iub" or (array.dtype.kind == "b" and not array.ndim):
        raise IndexingError(
            f"indices must be integers, slices, ellipsis, newaxis, or integer or boolean arrays, got {item!r}"
        )
    return array


def _axes_used(item: Any) -> int:
    if item is None or item is Ellipsis:
        return 0
    if isinstance(item, np.ndarray) and item.dtype.kind == "b":
        return item.ndim
    return 1


def as_arrays(item: Any, axis: int, shape: tuple[int, ...]) -> Sequence[npt.NDArray[Any]]:
    """The integer arrays that an int, an integer array or a mask stands for, one per axis."""
    if isinstance(item, int):
        return [np.asarray(item)]
    if item.dtype.kind != "b":
        return [item]
    for i, (length, size) in enumerate(zip(item.shape, shape[axis:], strict=False)):
        if length != size:
            raise IndexingError(
                f"boolean index did not match indexed array along axis {axis + i}; "
                f"size of axis is {size} but size of corresponding boolean axis is {length}"
            )
    places: tuple[npt.NDArray[Any], ...] = item.nonzero()
    return places


def wrap(index: int, axis: int, size: int) -> int:
    """An index of an axis, counted from its start."""
    if not -size <= index < size:
        raise IndexingError(f"index {index} is out of bounds for axis {axis} with size {size}")
    return index + size if index < 0 else index


def wrap_array(index: npt.NDArray[Any], axis: int, size: int) -> Ints:
    """Indices of an axis, counted from its start, as int64."""
    low, high = (int(index.min()), int(index.max())) if index.size else (0, -1)
    if low < -size or high >= size:
        wrap(low if low < -size else high, axis, size)
    index = index.astype(np.int64)
    return np.where(index < 0, index + size, index) if low < 0 else index

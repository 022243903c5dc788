"""``array[index] = values`` on disk: the mirror image of ``Selection.read``, piece by piece."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide._arrays.indexing import Axis, Selection, merged, offsets_of
from lowtide._io.system import write_at

_RECORDS = 1024  # each may make a page dirty


def parts(selection: Selection, nbytes: int) -> Iterator[tuple[Selection, tuple[slice, ...]]]:
    """Cut a selection into pieces of at most ``nbytes``, along the axis that is slowest on disk.

    Each piece comes with its place in the result. They come in the order in which NumPy assigns: where an
    index repeats, the last value counts.
    """
    shape = selection.shape
    if math.prod(shape) * selection.itemsize <= nbytes or max(shape, default=1) <= 1:
        yield selection, (slice(None),) * len(shape)
        return
    slowest = selection.on_disk()[2][0]
    axis = selection.axes[slowest]
    lengths = axis.shape if axis.shape is not None else (axis.count,)
    along = next(i for i, length in enumerate(lengths) if length > 1)  # of those that the axis stands for
    per_step = math.prod(shape) * selection.itemsize // lengths[along]
    step = max(1, nbytes // max(1, per_step))
    before = sum(len(one.shape) if one.shape is not None else 1 for one in selection.axes[:slowest]) + along
    for first in range(0, lengths[along], step):
        some = slice(first, min(first + step, lengths[along]))
        start, piece = _cut(axis, lengths, along, some)
        axes = [*selection.axes[:slowest], piece, *selection.axes[slowest + 1 :]]
        smaller = replace(selection, start=selection.start + start, axes=axes)
        for part, place in parts(smaller, nbytes):
            yield part, (*place[:before], _shifted(place[before], some), *place[before + 1 :])


def _cut(axis: Axis, lengths: tuple[int, ...], along: int, some: slice) -> tuple[int, Axis]:
    """Bytes to add to the start, and the piece of an axis."""
    if axis.places is None:
        count = some.stop - some.start
        return some.start * axis.stride, Axis(count, axis.stride)
    places = axis.places.reshape(lengths)[(slice(None),) * along + (some,)]
    return 0, Axis(places.size, places=places.ravel(), shape=places.shape)


def _shifted(inner: slice, outer: slice) -> slice:
    if inner == slice(None):
        return outer
    return slice(outer.start + inner.start, outer.start + inner.stop)


def write(
    selection: Selection, values: npt.NDArray[Any], fd: int, offset: int
) -> Iterator[tuple[int, int, int, int]]:
    """Write ``values``, of the selection's shape and the file's dtype, to an array at byte ``offset``.

    Yields, for some records at a time, their first byte, their end, the number of bytes and of records.
    """
    if not values.nbytes:
        return
    start, on_disk, order, flips = selection.on_disk()
    outer, width = merged(on_disk, selection.itemsize)
    moving = sorted(order)
    lengths = [selection.axes[i].count for i in moving]
    sorted_by_place = values.reshape(lengths).transpose([moving.index(i) for i in order])
    # Without the dots an array of no dimensions would become a scalar, and lose its byte order.
    turned: tuple[Any, ...] = (..., *(slice(None, None, -1 if flip else 1) for flip in flips))
    data = np.ascontiguousarray(sorted_by_place[turned]).reshape(-1).view(np.uint8).data
    total = math.prod(axis.count for axis in outer)
    for first in range(0, total, _RECORDS):
        last = min(total, first + _RECORDS)
        places = offset + start + offsets_of(outer, first, last)
        for number, place in enumerate(places.tolist(), first):
            write_at(fd, data[number * width : (number + 1) * width], place)
        yield int(places.min()), int(places.max()) + width, (last - first) * width, last - first

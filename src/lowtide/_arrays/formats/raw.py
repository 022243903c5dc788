"""Raw: an array without a header, described by the caller in np.memmap's own words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from lowtide._arrays.formats.format import Format
from lowtide._arrays.formats.layout import Layout, checked_shape, differs, parse_dtype, size_error
from lowtide._io.journal import published_size
from lowtide._io.store import Store
from lowtide._sizes import whole
from lowtide.errors import ArgumentError, FormatError, UnsupportedError

Shape = int | Sequence[int] | None
Order = Literal["C", "F"]


class Raw(Format):
    """An array that the caller describes. Not in ``FORMATS``: nothing in a file tells that it is one.

    ``shape`` may have one -1, as in reshape. Without a shape it is one axis to the end of the file; with one,
    bytes after it are left alone.
    """

    name = "raw"
    grows = True

    def __init__(
        self, dtype: npt.DTypeLike, shape: Shape = None, offset: int = 0, order: Order = "C"
    ) -> None:
        self._dtype = dtype
        self._shape = shape
        self._offset = offset
        self._order = order

    def inspect(self, store: Store, name: str | None = None) -> Layout:
        if self._order not in ("C", "F"):
            raise ArgumentError(f"{store.path}: order must be 'C' or 'F', got {self._order!r}")
        base, inner = _element(self._dtype, store.path)
        offset = whole(f"{store.path}: offset", self._offset, least=0)
        size = published_size(store.path, store.size)
        if offset > size:
            raise ArgumentError(
                f"{store.path}: offset is beyond the end of the file ({offset}, expected at most {size})"
            )
        itemsize = base.itemsize * math.prod(inner)
        outer = _fit(store.path, self._shape, itemsize, size - offset, offset)
        full = checked_shape(outer + inner, base.itemsize, f"{store.path}: the shape")
        if self._order == "F" and inner:
            raise UnsupportedError(
                f"{store.path}: dtype {self._dtype!r} has its own axes, which are in C order whatever order= "
                "is; pass its base dtype and the whole shape"
            )
        fortran = self._order == "F" and differs(full)
        return Layout(store.path, self.name, offset, base, full, fortran, file_size=size)


def _element(dtype: npt.DTypeLike, path: str) -> tuple[np.dtype[np.generic], tuple[int, ...]]:
    """The dtype of one element, and the axes that a dtype such as ``(3,)f4`` brings along."""
    element = parse_dtype(dtype, f"{path}: dtype")
    if element.hasobject:
        raise UnsupportedError(
            f"{path}: dtype {element} holds Python objects, whose bytes on disk are addresses that mean "
            "nothing; pass a numeric or fixed-width dtype"
        )
    if element.itemsize == 0:
        raise ArgumentError(
            f"{path}: dtype {element!r} has elements of 0 bytes; give its width, such as 'S16' or 'V8'"
        )
    if element.subdtype is not None:
        return element.base, element.shape
    return element, ()


def _fit(path: str, shape: Shape, itemsize: int, available: int, offset: int) -> tuple[int, ...]:
    """``shape`` with its -1 worked out, if the bytes are enough for it."""
    given: Sequence[object] = shape if isinstance(shape, (tuple, list)) else (-1 if shape is None else shape,)
    if isinstance(shape, str):
        raise ArgumentError(
            f"{path}: shape must be integers, got {shape!r}; np.memmap takes mode third, and "
            "lowtide.open takes shape third: pass mode= and offset= by name"
        )
    lengths = tuple(whole(f"{path}: each length in shape", length) for length in given)
    if any(length < -1 for length in lengths) or lengths.count(-1) > 1:
        raise ArgumentError(f"{path}: shape may have one -1 and no other negative length, got {lengths}")
    # -1 counts as 1 here, so that `row` is what one step along it takes.
    known = tuple(length for length in lengths if length != -1)
    row = math.prod(checked_shape(known, itemsize, f"{path}: the shape")) * itemsize
    if -1 not in lengths:
        if row > available:
            what = f"shape {lengths} with elements of {itemsize} bytes from byte {offset}"
            remedy = "copy it again, or pass another dtype or shape: shape=None takes what fits"
            raise size_error(path, available, row, what, remedy)
        return lengths
    if available == 0:
        raise FormatError(
            f"{path}: empty or not yet written (0 bytes from byte {offset}, expected 1 or more); pass a "
            "shape with a 0 in it, such as shape=(0,), if it is meant to be empty"
        )
    if row == 0:
        raise ArgumentError(f"{path}: the -1 in shape {lengths} can be anything, since another length is 0")
    complete = tuple(available // row if length == -1 else length for length in lengths)
    if available % row:
        step = f"rows of {row} bytes (shape {lengths})" if len(lengths) > 1 else f"elements of {row} bytes"
        raise FormatError(
            f"{path}: truncated, or of another dtype, shape or offset ({available} bytes from byte {offset}, "
            f"{available % row} left over, expected a multiple of {step}); shape={complete} reads the "
            "complete ones"
        )
    return complete

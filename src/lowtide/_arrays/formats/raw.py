"""Raw: an array without a header, described by the caller in np.memmap's own words."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from lowtide._arrays.formats.layout import Layout, checked_shape
from lowtide._io.journal import published_size
from lowtide._io.store import Store
from lowtide.errors import ArgumentError, FormatError, TruncatedFileError, UnsupportedError

if TYPE_CHECKING:
    import numpy.typing as npt

Shape = int | Sequence[int] | None
Order = Literal["C", "F"]


def locate(
    store: Store,
    dtype: npt.DTypeLike | None = None,
    shape: Shape = None,
    offset: int = 0,
    order: Order = "C",
) -> Layout:
    """The array that a raw file holds from byte ``offset``; ``shape`` may have one -1, as in reshape.

    With ``order="F"`` the first axis varies fastest, as in Fortran and MATLAB.
    Without a shape it is one axis to the end of the file. With one, bytes behind it are left alone.

    >>> import tempfile
    >>> from lowtide._io.store import opened
    >>> with tempfile.NamedTemporaryFile() as f:
    ...     np.arange(12, dtype="<u2").tofile(f); f.flush()
    ...     with opened(f.name) as store:
    ...         locate(store, "<u2").shape, locate(store, "<u2", (-1, 5), offset=4).shape
    ((12,), (2, 5))
    """
    if dtype is None:
        raise ArgumentError(missing_dtype(store.path))
    if order not in ("C", "F"):
        raise ArgumentError(f"{store.path}: order must be 'C' or 'F', got {order!r}")
    base, inner = _element(dtype, store.path)
    offset = _integer(offset, "offset", store.path)
    if offset < 0:
        raise ArgumentError(f"{store.path}: offset must be at least 0, got {offset}")
    size = published_size(store.path, store.size)
    if offset > size:
        raise ArgumentError(
            f"{store.path}: offset {offset} lies beyond the end of the file, which has {size} bytes"
        )
    itemsize = base.itemsize * math.prod(inner)
    outer = _fit(store.path, shape, itemsize, size - offset, offset)
    full = checked_shape(outer + inner, base.itemsize, f"{store.path}: the shape")
    if order == "F" and inner:
        raise UnsupportedError(
            f"{store.path}: dtype {dtype!r} has axes of its own, which are in C order whatever order= says; "
            "pass its base dtype and the whole shape"
        )
    # Both orders are the same bytes unless two axes are longer than 1.
    fortran = order == "F" and 0 not in full and sum(length > 1 for length in full) > 1
    return Layout(store.path, "raw", offset, base, full, fortran, file_size=size)


def missing_dtype(path: str) -> str:
    """The message for a raw file that came without its dtype.

    >>> missing_dtype("train.bin")
    "train.bin: a raw file needs its dtype, ... lowtide.open('train.bin', dtype='uint16')"
    """
    return (
        f"{path}: a raw file needs its dtype, for nothing in it says what the bytes are (np.memmap would "
        f"take uint8 without a word); pass it, as in lowtide.open({path!r}, dtype='uint16')"
    )


def _element(dtype: npt.DTypeLike, path: str) -> tuple[np.dtype[np.generic], tuple[int, ...]]:
    """The dtype of one element, and the axes that a dtype such as ``(3,)f4`` brings along."""
    try:
        made: np.dtype[np.generic] = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError, OverflowError) as error:
        raise ArgumentError(f"{path}: dtype {dtype!r} is not understood by NumPy: {error}") from None
    if made.hasobject:
        raise UnsupportedError(
            f"{path}: dtype {made} holds Python objects, whose bytes on disk are addresses that mean "
            "nothing; pass a numeric or fixed-width dtype"
        )
    if made.itemsize == 0:
        raise ArgumentError(
            f"{path}: dtype {made!r} has elements of 0 bytes; give its width, such as 'S16' or 'V8'"
        )
    if made.subdtype is not None:
        return made.base, made.shape
    return made, ()


def _integer(value: object, what: str, path: str) -> int:
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ArgumentError(f"{path}: {what} must be an integer, got {value!r}") from None


def _fit(path: str, shape: Shape, itemsize: int, available: int, offset: int) -> tuple[int, ...]:
    """``shape`` with its -1 worked out, if the bytes are enough for it."""
    given: Sequence[object] = shape if isinstance(shape, (tuple, list)) else (-1 if shape is None else shape,)
    if isinstance(shape, str):
        raise ArgumentError(
            f"{path}: shape must be integers, got {shape!r}; np.memmap takes mode third, and "
            "lowtide.open takes shape third: pass mode= and offset= by name"
        )
    lengths = tuple(_integer(length, "each length in shape", path) for length in given)
    if any(length < -1 for length in lengths) or lengths.count(-1) > 1:
        raise ArgumentError(f"{path}: shape may have one -1 and no other negative length, got {lengths}")
    # -1 counts as 1 here, so that `row` is what one step along it takes.
    known = tuple(length for length in lengths if length != -1)
    row = math.prod(checked_shape(known, itemsize, f"{path}: the shape")) * itemsize
    if -1 not in lengths:
        if row > available:
            raise TruncatedFileError(
                f"{path}: shape {lengths} with elements of {itemsize} bytes needs {row} bytes from byte "
                f"{offset}, and {available} are there: cut short, or another dtype or shape is meant; "
                "shape=None takes what fits"
            )
        return lengths
    if available == 0:
        raise FormatError(
            f"{path}: there are 0 bytes from byte {offset} on: empty or not yet written; "
            f"pass a shape with a 0 in it, such as shape=(0,), if it is meant to be empty"
        )
    if row == 0:
        raise ArgumentError(f"{path}: the -1 in shape {lengths} can be anything, since another length is 0")
    if available % row:
        whole = tuple(available // row if length == -1 else length for length in lengths)
        step = f"rows of {row} bytes (shape {lengths})" if len(lengths) > 1 else f"elements of {row} bytes"
        raise FormatError(
            f"{path}: {available} bytes from byte {offset} on are no multiple of {step}, {available % row} "
            f"are left over: another dtype, shape or offset, or cut short; shape={whole} reads the whole ones"
        )
    return tuple(available // row if length == -1 else length for length in lengths)

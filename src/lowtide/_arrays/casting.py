"""Conversion of rows to the dtype of a file: values that do not fit raise an error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lowtide._printable import brief
from lowtide.errors import ArgumentError

Casting = Literal["same_kind", "unsafe"]
_FAMILIES = {**dict.fromkeys("biufc", "numbers"), **dict.fromkeys("SUT", "text")}


def check_dtype(path: str, given: np.dtype[Any], dtype: np.dtype[Any]) -> None:
    """Refuse dtypes whose values could fit only by chance, such as floats for a file of integers.

    >>> check_dtype("x.npy", np.dtype("f8"), np.dtype("f4"))
    >>> check_dtype("x.npy", np.dtype("f8"), np.dtype("i4"))
    Traceback (most recent call last):
    lowtide.errors.ArgumentError: x.npy: float64 is not of the same kind as the file's int32; ...
    """
    if not _same_kind(given, dtype):
        raise ArgumentError(
            f"{path}: {given} is not of the same kind as the file's {dtype}; convert the rows yourself, "
            f"create the file with another dtype, or pass casting='unsafe' to convert them as NumPy does"
        )


def convert(
    path: str, rows: npt.NDArray[Any], dtype: np.dtype[Any], casting: Casting, first: int = 0
) -> npt.NDArray[Any]:
    """``rows`` in ``dtype``, C-ordered; an error names the first value that does not fit.

    Precision may be lost (0.1 in float32, 1e-300 as 0). Integers and floats out of range, text that is too
    long and times that the other unit cannot hold are refused. ``first`` is the number of the first row.

    >>> convert("x.npy", np.array([1, 2**40]), np.dtype("i4"), "same_kind", first=10)
    Traceback (most recent call last):
    lowtide.errors.ArgumentError: x.npy: 1099511627776 in row 11 does not fit into int32; ...
    """
    try:
        if casting == "unsafe":  # with NumPy's own warnings
            return np.ascontiguousarray(rows, dtype)
        with np.errstate(all="ignore"):
            converted = np.ascontiguousarray(rows, dtype)
    except (ValueError, TypeError, OverflowError) as error:  # such as text that is not ASCII into bytes
        if len(rows) > 1:
            for number in range(len(rows)):  # the row that fails alone is the one to name
                convert(path, rows[number : number + 1], dtype, casting, first + number)
        raise ArgumentError(f"{path}: row {first} cannot be converted to {dtype}: {error}") from None
    for field, values, lost in _losses(rows, converted):
        first_lost = int(lost.argmax())
        place = np.unravel_index(first_lost, lost.shape)
        text = str(values[place]) if values.dtype.kind in "mM" else brief(values.item(first_lost), 60)
        where = f"field {field!r} of row" if field else "row"
        held = dtype[field] if field else dtype
        raise ArgumentError(
            f"{path}: {text} in {where} {first + int(place[0])} does not fit into {held.base}; create the "
            f"file with a dtype that holds it, or pass casting='unsafe' to convert it as NumPy does"
        )
    return converted


def _same_kind(given: np.dtype[Any], dtype: np.dtype[Any]) -> bool:
    if given == dtype:
        return True
    if given.shape != dtype.shape:  # NumPy would repeat one value for all of a field
        return False
    given, dtype = given.base, dtype.base
    if given.names or dtype.names:
        # NumPy pairs fields by position, and would swap those that are named in another order.
        return given.names == dtype.names and all(
            _same_kind(given[name], dtype[name]) for name in dtype.names or ()
        )
    if given.kind in "iu" and dtype.kind in "iu":  # NumPy takes signed and unsigned for two kinds
        return True
    # Between numbers, text and times NumPy's "same_kind" holds conversions that cut, as of 1.25 to "1.2".
    same = _FAMILIES.get(given.kind, given.kind) == _FAMILIES.get(dtype.kind, dtype.kind)
    return np.can_cast(given, dtype, "same_kind" if same else "safe")


def _losses(
    rows: npt.NDArray[Any], converted: npt.NDArray[Any], field: str = ""
) -> Iterator[tuple[str, npt.NDArray[Any], npt.NDArray[np.bool_]]]:
    """Fields with values that were not kept, the values given, and which of them."""
    if rows.dtype == converted.dtype:
        return
    if converted.dtype.names:
        for name in converted.dtype.names:
            yield from _losses(rows[name], converted[name], field or name)
        return
    lost = _lost(rows, converted)
    if lost is not None and lost.any():
        yield field, rows, lost


def _lost(rows: npt.NDArray[Any], converted: npt.NDArray[Any]) -> npt.NDArray[np.bool_] | None:
    given, kind = rows.dtype, converted.dtype.kind
    if kind not in "mM" and np.can_cast(given, converted.dtype, "safe"):
        return None
    if kind in "iu":  # NumPy would let them wrap round
        bounds = np.iinfo(converted.dtype)
        if not rows.size or (int(rows.min()) >= bounds.min and int(rows.max()) <= bounds.max):
            return None
        return np.asarray((rows < bounds.min) | (rows > bounds.max))
    if given.kind == "c":
        real, imaginary = _lost_range(rows.real, converted.real), _lost_range(rows.imag, converted.imag)
        return real | imaginary
    if kind in "fc":
        return _lost_range(rows, converted)
    # Text that was cut and times in another unit do not come back as they were.
    lost = np.asarray(converted.astype(given) != rows)
    return lost & ~np.isnat(rows) if given.kind in "mM" else lost


def _lost_range(rows: npt.NDArray[Any], converted: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    lost: npt.NDArray[np.bool_] = ~np.isfinite(converted)
    return lost & np.isfinite(rows) if lost.any() else lost

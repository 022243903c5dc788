"""Selections: which rows of an array a view shows, computed where that is possible.

A selection maps the row numbers of a view to those of its source. A slice is three integers, a mask is one
bit per row of the source, and a list is that list.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from lowtide._io.extents import Ints
from lowtide.errors import ArgumentError, IndexingError

Bits = npt.NDArray[np.uint8]

_BLOCK = 64  # bytes of a mask between two counts
_SEARCHED = 2**13  # rows that are looked up in a mask at once
_POSITIONS = np.array(  # of the bits that are set in a byte, first to last
    [([bit for bit in range(8) if byte >> (7 - bit) & 1] + [0] * 8)[:8] for byte in range(256)], np.uint8
)
_COUNTS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1).astype(np.uint8)


class Selection(ABC):
    """Maps ``range(n)`` to row numbers. Equal settings make equal selections, in any process."""

    n: int
    fields: ClassVar[tuple[str, ...]] = ()
    """The attributes that it is pickled, compared and shown by, in the order of ``__init__``."""

    @abstractmethod
    def __call__(self, numbers: Ints, /) -> Ints:
        """The row numbers in the source of rows ``numbers`` of the view."""

    def at(self, number: int, /) -> int:
        """The row number of one row: loops ask for rows one by one, and arrays of one are slow."""
        return int(self(np.array([number]))[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, name) for name in self.fields)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return type(self).__name__, self.__reduce__()[1]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(repr(getattr(self, name)) for name in self.fields)})"


class Stride(Selection):
    """Row ``start`` and every ``step``-th from there.

    >>> Stride(7, -2, 3)(np.arange(3))
    array([7, 5, 3])
    """

    fields = ("start", "step", "n")

    def __init__(self, start: int, step: int, n: int) -> None:
        self.start, self.step, self.n = start, step, n

    @classmethod
    def of(cls, rows: slice, size: int) -> Stride:
        """What a slice selects of ``size`` rows."""
        try:
            start, stop, step = rows.indices(size)
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"start, stop and step must be integers, got {rows} ({error})") from None
        return cls(start, step, len(range(start, stop, step)))

    def __call__(self, numbers: Any) -> Any:
        return self.start + self.step * numbers

    at = __call__

    def after(self, inner: Stride) -> Stride:
        """This selection of the rows that ``inner`` selects, as one."""
        return Stride(inner.start + inner.step * self.start, inner.step * self.step, self.n)


class Listed(Selection):
    """Rows one by one, in any order; they may repeat. In memory, in the smallest dtype that holds them.

    >>> Listed(np.array([5, 5, 1]))(np.array([2, 0]))
    array([1, 5])
    """

    fields = ("rows",)

    def __init__(self, rows: npt.NDArray[Any]) -> None:
        self.rows = rows
        self.n = len(rows)

    def __call__(self, numbers: Ints) -> Ints:
        return self.rows[numbers].astype(np.int64)

    def at(self, number: int) -> int:
        return int(self.rows[number])

    def __repr__(self) -> str:
        return f"Listed({self.n} rows)"


class Masked(Selection):
    """The rows whose bits are set, in order; one bit per row of the source.

    Parameters
    ----------
    bits
        As ``np.packbits`` makes them.
    n
        How many are set.

    >>> Masked(np.packbits([0, 1, 1, 0, 0, 0, 0, 0, 1]), 3)(np.array([2, 0]))
    array([8, 1])
    """

    fields = ("bits", "n")

    def __init__(self, bits: Bits, n: int) -> None:
        self.n = n
        self.bits = np.zeros(-(-len(bits) // _BLOCK) * _BLOCK, np.uint8)
        self.bits[: len(bits)] = bits
        self._blocks = self.bits.reshape(-1, _BLOCK)
        self._before = np.zeros(len(self._blocks) + 1, np.int64)  # bits that are set before each block
        for first in range(0, len(self._blocks), _SEARCHED):
            counts = _COUNTS[self._blocks[first : first + _SEARCHED]].sum(axis=1, dtype=np.int64)
            self._before[first + 1 : first + 1 + len(counts)] = counts
        np.cumsum(self._before, out=self._before)

    def __call__(self, numbers: Ints) -> Ints:
        rows = np.empty(len(numbers), np.int64)
        for first in range(0, len(numbers), _SEARCHED):
            rows[first : first + _SEARCHED] = self._find(numbers[first : first + _SEARCHED])
        return rows

    def _find(self, numbers: Ints) -> Ints:
        blocks = np.searchsorted(self._before, numbers, side="right") - 1
        rest = numbers - self._before[blocks]
        bits = self._blocks[blocks]
        until = np.cumsum(_COUNTS[bits], axis=1, dtype=np.int16)
        places = (until <= rest[:, None]).sum(axis=1)  # the byte of each row
        chosen = bits[np.arange(len(bits)), places]
        rest -= until[np.arange(len(bits)), places] - _COUNTS[chosen].astype(np.int64)
        rows: Ints = (blocks * _BLOCK + places) * 8 + _POSITIONS[chosen, rest]
        return rows

    def __repr__(self) -> str:
        return f"Masked({self.n} rows)"


def selected(rows: Any, size: int, path: str) -> Selection:
    """The selection that a slice, a list of row numbers or a mask makes of ``size`` rows.

    >>> selected([True, False, True], 3, "x.npy"), selected(slice(None, None, 2), 3, "x.npy")
    (Masked(2 rows), Stride(0, 2, 2))
    """
    if isinstance(rows, slice):
        return Stride.of(rows, size)
    if isinstance(rows, range):
        _check_bounds(rows[0], rows[-1], size, path) if len(rows) else None
        first = rows.start + size if rows.start < 0 and len(rows) else rows.start
        if not len(rows) or min(rows[0], rows[-1]) >= 0 or max(rows[0], rows[-1]) < 0:
            return Stride(first, rows.step, len(rows))
    array = np.asarray(rows)
    if array.ndim != 1:
        raise IndexingError(
            f"{path}: rows must be a list of row numbers or a mask of one dimension, got shape {array.shape}"
        )
    if array.dtype == np.bool_:
        if len(array) != size:
            raise IndexingError(
                f"{path}: a mask must have one element per row ({len(array)} elements, expected {size})"
            )
        return Masked(np.packbits(array), int(np.count_nonzero(array)))
    if array.dtype.kind not in "iu":
        if array.size:
            raise IndexingError(f"{path}: rows must be integers or a mask, got {array.dtype}")
        array = array.astype(np.int64)
    if array.size:
        _check_bounds(int(array.min()), int(array.max()), size, path)
        array = np.where(array < 0, array.astype(np.int64) + size, array)
    return Listed(array.astype(np.min_scalar_type(max(0, size - 1))))


def _check_bounds(first: int, last: int, size: int, path: str) -> None:
    for number in (first, last):
        if not -size <= operator.index(number) < size:
            raise IndexingError(f"{path}: row {number} is out of bounds for an array of {size} rows")

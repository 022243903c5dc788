"""Conversions: what a view does to each row of its source, some rows at a time."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide._arrays.formats.layout import parse_dtype
from lowtide._io.extents import Ints
from lowtide._printable import brief
from lowtide.errors import ArgumentError, IndexingError

Shape = tuple[int, ...]


class Conversion(ABC):
    """Turns rows of one shape and dtype into rows of another. It is pickled by its only argument."""

    argument: Any

    @abstractmethod
    def result(self, shape: Shape, dtype: np.dtype[Any]) -> tuple[Shape, np.dtype[Any]]:
        """Shape and dtype that a row of ``shape`` and ``dtype`` becomes; an error if it cannot."""

    @abstractmethod
    def convert(self, rows: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        """Fill ``out`` with the converted rows."""

    def bytes_of(self, shape: Shape, dtype: np.dtype[Any]) -> tuple[int, int] | None:
        """First byte and size of the part of a row that is the converted row; None if there is none."""
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.argument,)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return type(self).__name__, self.argument

    def __repr__(self) -> str:
        return f"{type(self).__name__.lower()} {brief(self.argument)}"


class Astype(Conversion):
    """Rows of another dtype, as ``ndarray.astype`` converts them."""

    def __init__(self, argument: npt.DTypeLike) -> None:
        self.argument = parse_dtype(argument, "dtype")
        if self.argument.hasobject or self.argument.subdtype or not self.argument.itemsize:
            raise ArgumentError(
                f"dtype must be one of numbers, times, records or text of a given length, got {argument!r}"
            )

    def result(self, shape: Shape, dtype: np.dtype[Any]) -> tuple[Shape, np.dtype[Any]]:
        try:
            # Without elements: whether text holds numbers shows when it is read.
            np.zeros(0, dtype).astype(self.argument)
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"{dtype} cannot be converted to {self.argument} ({error})") from None
        return shape, self.argument

    def convert(self, rows: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        out[...] = rows

    def __repr__(self) -> str:
        return f"astype {self.argument}"


class Fields(Conversion):
    """One field of records, or records of some of the fields, without gaps between them."""

    def __init__(self, argument: str | list[str]) -> None:
        self.argument = argument

    def result(self, shape: Shape, dtype: np.dtype[Any]) -> tuple[Shape, np.dtype[Any]]:
        chosen = [self.argument] if isinstance(self.argument, str) else self.argument
        for name in chosen:
            if name not in (dtype.names or ()):
                names = brief(list(dtype.names)) if dtype.names else f"none: its dtype is {dtype}"
                raise IndexingError(f"the array has no field {brief(name)}; its fields are {names}")
        assert dtype.fields is not None
        if isinstance(self.argument, str):
            field = dtype.fields[self.argument][0]
            return (*shape, *field.shape), field.base
        return shape, np.dtype([(name, dtype.fields[name][0]) for name in chosen])

    def convert(self, rows: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        if isinstance(self.argument, str):
            out[...] = rows[self.argument]
            return
        for name in self.argument:
            out[name] = rows[name]

    def bytes_of(self, shape: Shape, dtype: np.dtype[Any]) -> tuple[int, int] | None:
        if math.prod(shape) != 1 or not isinstance(self.argument, str) or dtype.fields is None:
            return None
        field, offset = dtype.fields[self.argument][:2]
        return offset, field.itemsize

    def __repr__(self) -> str:
        return f"field {brief(self.argument)}"


class Columns(Conversion):
    """What an index selects of each row."""

    _places: Ints | None = None

    def __init__(self, argument: Any) -> None:
        self.argument = argument

    def _parts(self) -> tuple[Any, ...]:
        return self.argument if isinstance(self.argument, tuple) else (self.argument,)

    def _basic(self) -> bool:
        return all(
            part is None
            or part is Ellipsis
            or (isinstance(part, slice | int | np.integer) and not isinstance(part, bool))
            for part in self._parts()
        )

    def _index(self, row: npt.NDArray[Any]) -> npt.NDArray[Any]:
        try:
            selected: npt.NDArray[Any] = row[(*self._parts(), ...)]
        except (IndexError, TypeError) as error:
            try:  # the index may have its own ellipsis
                selected = row[self._parts()]
            except (IndexError, TypeError):
                raise IndexingError(
                    f"columns {brief(self.argument)} do not fit rows of shape {row.shape} ({error})"
                ) from None
        return np.asarray(selected)

    def result(self, shape: Shape, dtype: np.dtype[Any]) -> tuple[Shape, np.dtype[Any]]:
        if not shape:
            raise IndexingError("rows are single elements, which have no columns; use the array itself")
        return self._index(_row(shape, np.dtype(np.uint8))).shape, dtype

    def convert(self, rows: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        if self._basic():
            out[...] = rows[(slice(None), *self._parts())]
            return
        if self._places is None:
            numbers = np.arange(math.prod(rows.shape[1:])).reshape(rows.shape[1:])
            self._places = self._index(numbers).reshape(-1)
        flat = rows.reshape(len(rows), math.prod(rows.shape[1:]))
        np.take(flat, self._places, axis=1, out=out.reshape(len(rows), len(self._places)), mode="clip")

    def bytes_of(self, shape: Shape, dtype: np.dtype[Any]) -> tuple[int, int] | None:
        if not self._basic() or not math.prod(shape):
            return None
        row = _row(shape, dtype)
        part = self._index(row)
        if not part.flags.c_contiguous or not part.size:
            return None
        return part.__array_interface__["data"][0] - row.__array_interface__["data"][0], part.nbytes


def _row(shape: Shape, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """An array with the strides of a row but without memory: its elements must not be read."""
    strides = [dtype.itemsize * math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return np.lib.stride_tricks.as_strided(np.empty(1, dtype), shape, strides, writeable=False)


def is_names(index: Any) -> bool:
    """Whether an index is a field or a list of fields."""
    return isinstance(index, str) or (
        isinstance(index, list) and bool(index) and all(isinstance(name, str) for name in index)
    )

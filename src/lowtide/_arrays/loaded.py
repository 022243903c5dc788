"""Arrays in memory among those on disk: labels that were computed, zipped with features in a file."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide._arrays.views import ByRows
from lowtide._io.extents import AHEAD, Ints
from lowtide._io.pending import Outcome
from lowtide.errors import ArgumentError, ClosedError


class LoadedArray(ByRows):
    """An ndarray as an ``Array``. It is not copied, and no budget counts it; pickles carry it."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        if not array.ndim or array.dtype.hasobject:
            raise ArgumentError(
                f"an array in memory must have rows of numbers, times, records or text of a given length "
                f"(shape {array.shape}, dtype {array.dtype}); convert it first"
            )
        self._array = array
        self._describe(array.shape, array.dtype)

    @property
    def path(self) -> str:
        return "an array in memory"

    @property
    def reader(self) -> str:
        return "memory"

    @property
    def _shown(self) -> str:
        return "all rows"

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.path}: it was closed; zip it again")

    def _inodes(self) -> set[tuple[int, int]]:
        return set()

    def __reduce__(self) -> tuple[Any, ...]:
        self._check_pickled()
        return LoadedArray, (self._array,)

    def _read_runs(
        self, starts: Ints, run: int, out: npt.NDArray[Any], ahead: int = AHEAD, *, ordered: bool = True
    ) -> Outcome:
        self._check_open()
        if run == 1:
            np.take(self._array, starts, axis=0, out=out, mode="clip")  # they are in bounds
            return Outcome(0, len(starts))
        for i, start in enumerate(starts.tolist()):
            out[i * run : (i + 1) * run] = self._array[start : start + run]
        return Outcome(0, len(starts))


def as_array(value: Any) -> Any:
    """An ``Array`` of what NumPy takes as an array without copying it element by element; else the value."""
    if isinstance(value, np.ndarray) or (hasattr(value, "__array__") and hasattr(value, "shape")):
        return LoadedArray(np.asarray(value))
    return value

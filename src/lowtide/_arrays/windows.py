"""Windows over the rows of an array, such as those of a time series."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide._arrays.array import Array
from lowtide._arrays.views import View
from lowtide._io.extents import AHEAD, Ints
from lowtide._io.pending import Outcome, combined
from lowtide._sizes import whole

_STAGE = 2**20  # bytes of rows from which overlapping windows are copied
_AT_ONCE = 2**13  # windows that are read at once


class WindowView(View):
    """Runs of consecutive rows, each of them one row of the view."""

    def __init__(self, source: Array, length: int, stride: int) -> None:
        self._source = source
        self._length = length = whole("length", length, least=1)
        self._stride = stride = whole("stride", stride, least=1)
        count = max(0, (len(source) - length) // stride + 1)
        self._describe((count, length, *source.shape[1:]), source.dtype)
        self._parallel = source._parallel

    def __reduce__(self) -> tuple[Any, ...]:
        self._check_pickled()
        return WindowView, (self._source, self._length, self._stride)

    @property
    def _shown(self) -> str:
        return f"windows of {self._length} rows, every {self._stride}"

    def _read_runs(
        self, starts: Ints, run: int, out: npt.NDArray[Any], ahead: int = AHEAD, *, ordered: bool = True
    ) -> Outcome:
        self._check_open()
        if not out.nbytes:
            return Outcome()
        out = out.reshape(len(starts) * run, *self.shape[1:])
        if run > 1:
            return combined(
                self._read_near(start, out[i * run : (i + 1) * run])
                for i, start in enumerate(starts.tolist())
            )
        rows = out.reshape(-1, *self.shape[2:])
        return self._source._read_runs(starts * self._stride, self._length, rows, ahead, ordered=ordered)

    def _read_near(self, start: int, out: npt.NDArray[Any]) -> Outcome:
        """Read windows that follow each other: where they overlap, their rows are read once."""
        length, stride, source = self._length, self._stride, self._source
        held = _STAGE // max(1, source.row_nbytes)
        at_once = (held - length) // stride + 1
        if at_once < 2 or stride >= length:
            return combined(
                self._read_runs(np.arange(start + first, start + min(len(out), first + _AT_ONCE)), 1, part)
                for first in range(0, len(out), _AT_ONCE)
                if len(part := out[first : first + _AT_ONCE])
            )
        for first in range(0, len(out), at_once):
            part = out[first : first + at_once]
            rows = np.empty(((len(part) - 1) * stride + length, *source.shape[1:]), source.dtype)
            begin = (start + first) * stride
            source._read_rows(begin, begin + len(rows), rows)
            shape = (len(part), length, *rows.shape[1:])
            strides = (rows.strides[0] * stride, *rows.strides)
            part[...] = np.lib.stride_tricks.as_strided(rows, shape, strides, writeable=False)
        return Outcome(1, 1)

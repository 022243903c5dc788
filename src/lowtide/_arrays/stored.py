"""What an array on disk is, as its header says."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lowtide._arrays.formats.layout import Layout
from lowtide._readonly import ReadOnly


class Stored(ReadOnly):
    """Path, shape and dtype, by NumPy's names."""

    _remedy = "open the file again with other arguments, or load the array first, as in array[:]"

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._shape = layout.shape
        self._dtype: np.dtype[Any] = layout.dtype

    @property
    def path(self) -> str:
        return self._layout.path

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array with no dimensions")
        return self.shape[0]

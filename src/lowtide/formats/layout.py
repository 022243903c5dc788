"""Where the bytes of an array lie: what every format module returns."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Layout:
    """One array inside one file, readable in place."""

    path: str
    format: str
    offset: int
    """Byte of the file at which the array's first element begins."""
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    fortran: bool = False
    """True when the first axis varies fastest on disk (Fortran order)."""
    file_size: int = 0
    """Size of the whole file when it was inspected, to notice a file that changed since."""

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

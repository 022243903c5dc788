"""Small arrays on disk, for the tests of arrays and of writers."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

import lowtide


def save(
    path: Path, rows: int, width: int = 3, dtype: str = "i4", order: Literal["C", "F"] = "C"
) -> np.ndarray:
    """Save an array whose values count up from zero."""
    array = np.asarray(np.arange(rows * width).reshape(rows, width), dtype, order=order)
    np.save(path, array)
    return array


def write(path: Path, rows: list[list[int]]) -> None:
    """Create an array of two int32 columns."""
    with lowtide.create(path, "i4", 2) as out:
        out.append(rows)


def read(path: Path, dtype: str = "i4", columns: int = 2) -> list[list[int]]:
    """All rows of an array, as lists."""
    raw = {} if path.suffix == ".npy" else {"dtype": dtype, "shape": (-1, columns)}
    with lowtide.open(path, **raw) as array:  # type: ignore[call-overload]
        rows: list[list[int]] = array[:].tolist()
        return rows

"""Layout: where the bytes of an array are. Every format returns one; the checks that formats share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide._io.identity import Identity
from lowtide._printable import brief
from lowtide.errors import ArgumentError, FormatError, LowtideError, TruncatedFileError

MAX_BYTES = 2**63 - 1
"""Largest array that a file offset, and NumPy's own sizes, can address."""
MAX_DIMENSIONS = 64
"""NumPy's own limit since 2.0."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One array inside one file, readable in place."""

    path: str
    format: str
    offset: int
    """Byte of the file at which the array's first element starts."""
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    fortran: bool = False
    """True when the first axis varies fastest on disk (Fortran order)."""
    file_size: int = 0
    """Size of the file when it was inspected, to notice a file that changed since. While an append is under
    way it is the size that was published: the file on disk may be longer, never shorter."""
    name: str | None = None
    """The member of an NPZ, safetensors or HDF5 file; None where a file is a single array."""
    identity: Identity | None = None
    """The file when it was inspected, to notice that it was replaced or written to since."""

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Member:
    """One array that a file lists: where it is, or why it cannot be read in place."""

    name: str | None
    """None where the file is a single array."""
    format: str
    layout: Layout | None = None
    error: LowtideError | None = None
    """What opening this member raises; exactly one of ``layout`` and ``error`` is set."""

    @property
    def reason(self) -> str:
        """Why the member cannot be read in place; empty when it can."""
        return "" if self.error is None else str(self.error)


def checked_shape(shape: Sequence[object], itemsize: int, where: str) -> tuple[int, ...]:
    """``shape`` as a tuple of ints, or a ``FormatError`` that starts with ``where``.

    Zeros are left out of the size, as NumPy does: it refuses ``(2**62, 2**62, 0)`` too.

    >>> checked_shape([3, 4], 8, "x.npy: the shape")
    (3, 4)
    >>> checked_shape([3, -4], 8, "x.npy: the shape")
    Traceback (most recent call last):
    lowtide.errors.FormatError: x.npy: the shape must hold integers of at least 0, found -4 in [3, -4]
    """
    if len(shape) > MAX_DIMENSIONS:
        raise FormatError(f"{where} has {len(shape)} dimensions, and NumPy has at most {MAX_DIMENSIONS}")
    checked: list[int] = []
    nbytes = itemsize
    for length in shape:
        if type(length) is not int or length < 0:  # a bool is an int too, but not a length
            raise FormatError(
                f"{where} must hold integers of at least 0, found {brief(length)} in {brief(shape)}"
            )
        nbytes *= length or 1
        # Stop at once: the product of a hostile shape may take longer than the universe has.
        if nbytes > MAX_BYTES:
            raise FormatError(
                f"{where} {brief(shape)} with elements of {itemsize} bytes needs more than "
                f"{MAX_BYTES} bytes (2**63 - 1), which no file can hold"
            )
        checked.append(length)
    return tuple(checked)


def parse_dtype(dtype: npt.DTypeLike, where: str) -> np.dtype[Any]:
    """``np.dtype(dtype)``, or an ``ArgumentError`` that starts with ``where``."""
    try:
        return np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError, OverflowError) as error:
        raise ArgumentError(f"{where} {dtype!r} is not understood by NumPy: {error}") from None


def differs(shape: tuple[int, ...]) -> bool:
    """Whether C and Fortran order are different bytes: only if two axes are longer than 1."""
    return 0 not in shape and sum(length > 1 for length in shape) > 1


def size_error(
    path: str, size: int, expected: int, what: str, remedy: str = "copy or write it again"
) -> FormatError:
    """The error for a file, or a part of one, whose size is not what its header or index promises.

    >>> print(size_error("x.bin", 10, 12, "6 tokens of uint16"))
    x.bin: truncated or still being written (10 bytes, expected 12 for 6 tokens of uint16); copy or ...
    """
    kind, problem = FormatError, "damaged, or the header or index is of another file"
    if size < expected:
        kind, problem = TruncatedFileError, "truncated or still being written"
    return kind(f"{path}: {problem} ({size} bytes, expected {expected} for {what}); {remedy}")


def shown(dtype: np.dtype[np.generic]) -> str:
    """``str(dtype)``, cut: a stranger may have given it hundreds of fields."""
    text = str(dtype)
    return text if len(text) <= 200 else text[:200] + "…"


def raw_call(path: str, dtype: np.dtype[np.generic] | str, shape: tuple[int, ...], offset: int) -> str:
    """The call that opens these bytes as a raw file, for the remedy of an error.

    >>> raw_call("w.safetensors", "uint16", (2, 3), 72)
    "lowtide.open('w.safetensors', dtype='uint16', shape=(2, 3), offset=72)"
    """
    if not isinstance(dtype, str):
        dtype = dtype.str if dtype.names is None else dtype.descr  # type: ignore[assignment]
        if len(repr(dtype)) > 1000:
            return f"lowtide.open({path!r}, dtype=..., shape={shape}, offset={offset}) with its dtype"
    return f"lowtide.open({path!r}, dtype={dtype!r}, shape={shape}, offset={offset})"

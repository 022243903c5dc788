"""Memory for chunks: the system's own, in large pages, and used again when nobody holds what was in it."""

from __future__ import annotations

import contextlib
import mmap
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

_LARGE = 2 * 2**20  # a large page; smaller blocks malloc hands out just as fast
_LARGE_PAGES = getattr(mmap, "MADV_HUGEPAGE", None)
# Whether the number of references to an object is exact: not without the interpreter lock, nor elsewhere.
_COUNTED = sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()


class Buffers:
    """Arrays of at most ``nbytes`` bytes, each its holder's own for as long as it or a view of it lives.

    Then its memory goes to the next array. At most ``most`` blocks are kept for that; if more are in use they
    are the system's again when they are dropped. malloc would keep what was freed, or give it back and have
    every page of it filled with zeros again; it knows no large pages either, with which the kernel copies up
    to a tenth faster. Nor does it know that some processors copy at half their speed to where the offset
    within a page is 16 bytes higher than in the source.

    For one thread at a time, but for ``clear``, and for the holders, who may be anywhere.

    >>> buffers = Buffers(2**21, most=2)
    >>> first = buffers.empty((2**18,), np.dtype("float64"))
    >>> where, view = first.ctypes.data, first[10:]
    >>> del first
    >>> buffers.empty((2**18,), np.dtype("float64")).ctypes.data == where
    False
    >>> del view
    >>> buffers.empty((2**18,), np.dtype("float64")).ctypes.data == where
    True
    """

    def __init__(self, nbytes: int, most: int) -> None:
        self._nbytes = nbytes
        self._most = most if _COUNTED else 0
        self._blocks: list[mmap.mmap] = []
        self._unheld = 0  # references to a block that only this holds, as they are counted in `empty`
        self._large = nbytes >= _LARGE and hasattr(mmap, "MAP_ANONYMOUS")

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """An array with anything in it, as ``np.empty`` gives it."""
        if not self._large:
            return np.empty(shape, dtype)
        for memory in self._blocks:
            # An array holds its block, and its views hold the array. A lease that ends by a weak reference
            # would say the same, and cost a chunk of 4 MiB two hundredths of its time.
            if sys.getrefcount(memory) == self._unheld:
                return np.ndarray(shape, dtype, memory)
        try:
            memory = _from_the_system(self._nbytes)
        except OSError:
            return np.empty(shape, dtype)  # if there is no room, NumPy says so as everybody expects it
        if len(self._blocks) < self._most:
            self._blocks.append(memory)
            self._unheld = sys.getrefcount(memory)
        return np.ndarray(shape, dtype, memory)

    def clear(self) -> None:
        """Keep nothing: what is spare is the system's at once, and the rest when its holder drops it."""
        self._blocks = []  # a new list: `empty` may be going through the old one, whose references count


def _from_the_system(nbytes: int) -> mmap.mmap:
    # Private: a forked child must not write into its parent's.
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if _LARGE_PAGES is not None:
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(_LARGE_PAGES)
    return memory

"""Memory for chunks: the system's own, in large pages, and used again when nobody holds what was in it."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

_LARGE = 2 * 2**20  # a large page; smaller blocks malloc hands out just as fast
_LARGE_PAGES = getattr(mmap, "MADV_HUGEPAGE", None)


class Buffers:
    """Arrays of at most ``nbytes`` bytes, each its holder's own for as long as it or a view of it lives.

    Then its memory waits for the next array, unless ``most`` blocks are there without it, in use or waiting:
    then it is the system's again at once. malloc would keep what was freed, or give it back and have every
    page of it filled with zeros again; it knows no large pages either, with which the kernel copies up to a
    tenth faster. Nor does it know that some processors copy at half their speed to where the offset within a
    page is 16 bytes higher than in the source.

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
        self._spare: list[mmap.mmap] = []
        self._leases: dict[int, tuple[weakref.ref[Any], mmap.mmap]] = {}
        large = nbytes >= _LARGE and hasattr(mmap, "MAP_ANONYMOUS")
        self._lease = ctypes.c_ubyte * nbytes if large else None
        here = weakref.ref(self)  # the leases are not to hold their lender

        def returned(lease: weakref.ref[Any]) -> None:
            buffers = here()
            if buffers is None:
                return
            ended = buffers._leases.pop(id(lease), None)  # none: forgotten at this very moment
            if ended is not None and len(buffers._leases) + len(buffers._spare) < most:
                buffers._spare.append(ended[1])

        self._returned = returned

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """An array with anything in it, as ``np.empty`` gives it."""
        if self._lease is None:
            return np.empty(shape, dtype)
        try:
            memory = self._spare.pop()
        except IndexError:
            try:
                memory = mapped(self._nbytes)
            except OSError:
                return np.empty(shape, dtype)  # if there is no room, NumPy says so as everybody expects it
        # The array and its views hold the lease, and the lease the memory: when it goes, they all have gone.
        lease = self._lease.from_buffer(memory)
        ends = weakref.ref(lease, self._returned)
        self._leases[id(ends)] = ends, memory
        return np.ndarray(shape, dtype, lease)  # type: ignore[arg-type]  # any buffer will do

    def clear(self) -> None:
        """Keep nothing: what is spare is the system's at once, and the rest when its holder drops it."""
        self._leases.clear()
        self._spare.clear()


def mapped(nbytes: int) -> mmap.mmap:
    """Memory that is the system's again when it is dropped, in large pages where there are some."""
    # Private: a forked child must not write into its parent's.
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if _LARGE_PAGES is not None:
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(_LARGE_PAGES)
    return memory

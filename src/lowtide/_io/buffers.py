"""Memory for chunks: mapped from the system, in large pages, and reused when its last holder drops it."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import weakref
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

_LARGE = 2 * 2**20  # bytes of a large page
_SMALL = 2**16  # bytes; malloc is as fast for smaller blocks: beyond 128 KiB it may map memory too
_LARGE_PAGES = getattr(mmap, "MADV_HUGEPAGE", None)


class Buffers:
    """Arrays of at most ``nbytes`` bytes, each of which belongs to its holder while it or a view of it lives.

    Then its memory goes to the next array. At most ``most`` blocks are reused; further ones are returned to
    the system when they are dropped. malloc would keep freed memory, or return it and have every page filled
    with zeros again. It does not use large pages, to which the kernel copies up to 10 % faster, and does not
    avoid offsets within a page that are 16 bytes above those of the source, at which some processors copy at
    half their speed.

    Between a block and the array on it is a lease, which every view, tensor and memoryview keeps alive. The
    block is free when the lease is dead, as a weak reference tells, however many objects refer to the array.
    Any number of threads may take and hold arrays.

    >>> buffers = Buffers(2**21, most=2)
    >>> first = buffers.empty((2**18,), np.dtype("float64"))
    >>> where, view = first.ctypes.data, first[10:]
    >>> del first
    >>> buffers.empty((2**18,), np.dtype("float64")).ctypes.data == where
    False
    >>> del view
    >>> where in [buffers.empty((2**18,), np.dtype("float64")).ctypes.data for _ in range(2)]
    True
    """

    def __init__(self, nbytes: int, most: int) -> None:
        self._nbytes = nbytes
        self._most = most
        is_lent = nbytes >= _SMALL and hasattr(mmap, "MAP_ANONYMOUS")
        self._lease_type = ctypes.c_char * nbytes if is_lent else None
        self.clear()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """An uninitialised array, like ``np.empty``."""
        if self._lease_type is None:
            return np.empty(shape, dtype)
        leases, ended = self._leases, self._ended
        try:
            last = ended.pop()  # the one that is most likely in the processor's cache
        except IndexError:
            try:
                block = _from_the_system(self._nbytes)
            except OSError:
                return np.empty(shape, dtype)  # out of memory: NumPy raises the usual error
        else:
            leases.discard(last)
            block = last.block
        lease = self._lease_type.from_buffer(block)
        if len(leases) < self._most:
            remembered = _Lease(lease, ended.append)
            remembered.block = block
            leases.add(remembered)
        return np.ndarray(shape, dtype, lease)  # type: ignore[arg-type]  # any buffer will do

    def clear(self) -> None:
        """Return free blocks to the system now, and the others when their holders drop them."""
        self._leases: set[_Lease] = set()
        self._ended: deque[_Lease] = deque()

    def __reduce__(self) -> tuple[Any, ...]:
        return Buffers, (self._nbytes, self._most)


class _Lease(weakref.ref[Any]):
    """Remembers the block that is free when its referent is dead. Compared and hashed by identity."""

    __slots__ = ("block",)
    block: mmap.mmap
    __hash__ = object.__hash__
    __eq__ = object.__eq__


def _from_the_system(nbytes: int) -> mmap.mmap:
    # Private: a forked child must not write into the memory of its parent.
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if nbytes >= _LARGE and _LARGE_PAGES is not None:
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(_LARGE_PAGES)
    return memory

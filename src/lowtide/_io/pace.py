"""Bounds on dirty pages: they are written to disk while more is written."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
import weakref

from lowtide._io.pagecache import evict
from lowtide._io.system import after_fork

_PACE = 8 * 2**20  # bytes written before the kernel starts to write them out
_WAIT_WRITE_WAIT = 7  # SYNC_FILE_RANGE_WAIT_BEFORE | _WRITE | _WAIT_AFTER
_WRITE = 2


class Pace:
    """Keeps few bytes dirty, however many are written.

    Without it the kernel lets dirty pages grow to a fifth of memory, all charged to the container.
    """

    def __init__(self, fd: int, start: int = 0) -> None:
        self._fd = fd
        self._started = start  # the kernel writes out up to here
        self._done = start  # on disk up to here

    def wrote(self, end: int) -> None:
        """Everything before ``end`` has been written."""
        while end - self._started >= _PACE:
            _sync_range(self._fd, self._started, _PACE, _WRITE)
            if self._started > self._done:
                self._settle(self._started)
            self._started += _PACE

    def _settle(self, end: int) -> None:
        _sync_range(self._fd, self._done, end - self._done, _WAIT_WRITE_WAIT)
        evict(self._fd, self._done, end - self._done)
        self._done = end


class ScatteredPace:
    """``Pace`` for writes at any place, by several threads.

    It counts pages, since a few bytes make a whole page dirty.
    """

    def __init__(self) -> None:
        self._unlock()
        self._dirty = 0
        self._first, self._end = sys.maxsize, 0
        self._older: tuple[int, int] | None = None  # the span that is being written out
        _SCATTERED.add(self)

    def _unlock(self) -> None:
        self._lock = threading.RLock()  # a signal handler may write in a thread that is inside

    def wrote(self, fd: int, first: int, end: int, nbytes: int, records: int) -> None:
        """``nbytes`` in ``records`` runs have been written, all between ``first`` and ``end``."""
        page = mmap.PAGESIZE
        with self._lock:
            self._dirty += min(nbytes + 2 * records * page, end - first + 2 * page)
            self._first, self._end = min(self._first, first), max(self._end, end)
            if self._dirty < _PACE:
                return
            span, older = (self._first, self._end - self._first), self._older
            self._dirty, self._first, self._end, self._older = 0, sys.maxsize, 0, span
            _sync_range(fd, *span, _WRITE)
            if older is not None:
                _sync_range(fd, *older, _WAIT_WRITE_WAIT)


def _sync_range(fd: int, offset: int, length: int, flags: int) -> None:
    if _SYNC_FILE_RANGE is not None:
        _SYNC_FILE_RANGE(fd, offset, length, flags)  # the fsync at the end reports errors
    elif flags == _WAIT_WRITE_WAIT:
        os.fsync(fd)


@after_fork
def _after_fork() -> None:
    """A thread of the parent may have held a lock when it forked."""
    for pace in _SCATTERED:
        pace._unlock()


_SCATTERED: weakref.WeakSet[ScatteredPace] = weakref.WeakSet()
_SYNC_FILE_RANGE = None
if sys.platform == "linux":
    _SYNC_FILE_RANGE = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if _SYNC_FILE_RANGE is not None:
        _SYNC_FILE_RANGE.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]

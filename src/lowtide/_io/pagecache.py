"""The page cache: how much of a file is in it (``cachestat``, else ``mincore``), and how to evict it.

>>> from lowtide._io import pagecache
>>> cached, how = pagecache.resident("/proc/self/exe") or (0, "not here")
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import stat
import sys
from typing import TYPE_CHECKING

from lowtide.errors import UnsupportedError, read_errors

if TYPE_CHECKING:
    from lowtide._io.extents import Extents

FAULT_AROUND = 64 * 2**10
"""Bytes of cached neighbours that one page fault maps by default on Linux."""
FOLIO = 2 * 2**20
"""The most bytes that one page fault maps: a huge page."""

# The system call number is the same on every architecture that got it after the tables were unified.
_CACHESTAT = 451
_PROT_READ, _MAP_SHARED = 1, 1


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Counts(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64) for name in ("cache", "dirty", "writeback", "evicted", "recently")
    )


_libc = ctypes.CDLL(None, use_errno=True) if sys.platform != "win32" else None
_cachestat_missing = not sys.platform.startswith("linux")


def resident(path: str | os.PathLike[str]) -> tuple[int, str] | None:
    """Bytes of ``path`` in the page cache and the system call that reported it.

    ``None`` where the system does not report it: another platform, or a file of another user (the kernel
    hides which pages of a file are cached from those who may not write it).
    """
    with read_errors(path):
        fd = os.open(path, os.O_RDONLY)
    try:
        return resident_fd(fd)
    finally:
        os.close(fd)


def resident_fd(fd: int) -> tuple[int, str] | None:
    """``resident`` of an open file."""
    about = os.fstat(fd)
    if not stat.S_ISREG(about.st_mode) or _libc is None:
        return None
    if about.st_size == 0:
        return 0, "fstat(2)"
    pages = _by_cachestat(fd)
    if pages is not None:
        return min(pages * mmap.PAGESIZE, _round_up(about.st_size)), "cachestat(2)"
    pages = _by_mincore(fd, about)
    return None if pages is None else (pages * mmap.PAGESIZE, "mincore(2)")


def drop(path: str | os.PathLike[str]) -> None:
    """Evict ``path`` from the page cache, except for pages that are mapped; for cold measurements.

    Dirty pages are written first, since the kernel skips them.
    """
    if not hasattr(os, "posix_fadvise"):
        raise UnsupportedError(
            "this system lacks posix_fadvise, so that files cannot be evicted from the page cache; "
            "measure warm reads here"
        )
    with read_errors(path):
        fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        evict(fd)
    finally:
        os.close(fd)


def advise(fd: int, *, random: bool) -> None:
    """Turn the kernel's own read-ahead off for random reads, or on for reads in order."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM if random else os.POSIX_FADV_NORMAL)


def evict(fd: int, offset: int = 0, length: int = 0) -> None:
    """Evict clean pages of an open file, by default up to its end, where the system can."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, offset, length, os.POSIX_FADV_DONTNEED)


def drop_range(fd: int, start: int, stop: int) -> None:
    """Evict the bytes of one of many reads in order.

    The kernel keeps a folio that is only partly in the range, so the range starts earlier, for the folio that
    crossed the end of the last range: by two folios, since there may be a gap between ranges, such as the
    rest of a row after a column. It ends at ``stop``: what follows was read ahead.
    """
    start = max(0, start - 2 * FOLIO)
    evict(fd, start, stop - start)


def drop_extents(fd: int, extents: Extents) -> None:
    """Evict everything between the first and the last extent."""
    stop = int((extents.offsets + extents.lengths).max())
    drop_range(fd, int(extents.offsets.min()), (stop // FAULT_AROUND + 1) * FAULT_AROUND)


def _by_cachestat(fd: int) -> int | None:
    global _cachestat_missing
    if _cachestat_missing or _libc is None:
        return None
    counts = _Counts()
    everything = _Range(0, 0)  # length 0 means up to the end
    if _libc.syscall(_CACHESTAT, fd, ctypes.byref(everything), ctypes.byref(counts), 0) == 0:
        return int(counts.cache)
    if ctypes.get_errno() in (errno.ENOSYS, errno.EPERM) and not _cachestat_works():
        _cachestat_missing = True  # an older kernel, or a sandbox that forbids the call
    return None


def _cachestat_works() -> bool:
    """Distinguish a call that is always forbidden from a file of another user."""
    assert _libc is not None
    # A bad descriptor gives EBADF where the call exists, and ENOSYS or EPERM where it does not.
    _libc.syscall(_CACHESTAT, -1, ctypes.byref(_Range(0, 0)), ctypes.byref(_Counts()), 0)
    return ctypes.get_errno() == errno.EBADF


def _by_mincore(fd: int, about: os.stat_result) -> int | None:
    # For a read-only file of another user, mincore reports every page as resident: worse than no answer.
    if _libc is None or not (os.geteuid() in (0, about.st_uid) or os.access(f"/proc/self/fd/{fd}", os.W_OK)):
        return None
    _libc.mmap.restype = ctypes.c_void_p
    _libc.mmap.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
    )  # fmt: skip
    step = 1 << 30  # a vector of 256 KiB at a time, whatever the file's size
    total = 0
    for offset in range(0, about.st_size, step):
        length = min(step, about.st_size - offset)
        address = _libc.mmap(None, length, _PROT_READ, _MAP_SHARED, fd, offset)
        if address is None or address == ctypes.c_void_p(-1).value:
            return None
        try:
            vector = ctypes.create_string_buffer(_round_up(length) // mmap.PAGESIZE)
            if _libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(length), vector) != 0:
                return None
            # The lowest bit of each byte says resident; the others are reserved.
            total += sum(bytes(vector).translate(_LOWEST_BIT))
        finally:
            _libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(length))
    return total


_LOWEST_BIT = bytes(value & 1 for value in range(256))


def _round_up(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE

"""The reader ``pread``: reads into the caller's memory, so that no page of the file is mapped."""

from __future__ import annotations

import errno
import os
import time
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide import errors
from lowtide._io import aio, pagecache, threads
from lowtide._io.descriptors import Entry, File
from lowtide._io.extents import AHEAD, Bytes, Extents, Ints
from lowtide._io.identity import Identity
from lowtide._io.pending import Outcome, Pending, combined

_PAGE = 4096
_ALL_CHECKED = 8  # files of one read; checking more would take as long as reading them
_CHECK_INTERVAL = 0.1  # seconds
_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
_DONTCACHE = 0x80  # RWF_DONTCACHE, Linux 6.14; Python has no name for it yet


class PreadReader:
    """Reads with ``preadv``, many extents per system call where the kernel has Linux AIO.

    Every extent is first read with ``RWF_NOWAIT``. That copies what is in the page cache; for the rest the
    kernel starts to read and reports ``EAGAIN``, so that all of it is in the queue of the device when the
    second, blocking read starts. One code path serves warm and cold reads.
    """

    name = "pread"
    parallel = True
    overlaps = False  # the kernel's read-ahead is best in order

    def __init__(self, path: str, size: int, drop: bool, identity: Identity | None = None) -> None:
        self._file = File(path, size, identity)
        with self._file.opened() as entry:
            # Otherwise the probes below, and every random row, would start megabytes of read-ahead.
            entry.advise(random=True)
            self._nowait = _NOWAIT if _supports(entry.fd, _NOWAIT) else 0
            self._dontcache = _DONTCACHE if drop and _supports(entry.fd, _DONTCACHE) else 0
        self._checked = 0.0
        self._fadvise = hasattr(os, "posix_fadvise")
        self.drops = drop and self._fadvise
        self._drop_behind = self.drops and not self._dontcache
        parts = ["aio" if aio.available() else "preadv"]
        parts.append("nowait" if self._nowait else "willneed" if self._fadvise else "no hints")
        if drop:
            parts.append(
                "dontcache" if self._dontcache else "drop behind" if self._fadvise else "cannot drop"
            )
        self.how = ", ".join(parts)

    def submit(
        self, extents: Extents, out: Bytes, *, ahead: int = AHEAD, sequential: bool = False
    ) -> Pending[Outcome]:
        count = len(extents)
        if not count:
            return Pending.of(Outcome())
        if sequential:
            return self._submit_sequential(extents, out)
        nbytes = extents.nbytes
        large = count > aio.DEPTH or (count > 1 and nbytes + 2 * _PAGE * count > ahead // 2)
        if large or not self._nowait or threads.workers_for(count, nbytes) > 1:
            return Pending(self._read_all, extents, out, ahead)  # fills the queue by itself
        with self._file.opened() as entry:
            entry.advise(random=True)
            late = self._read_cached(entry.fd, extents, out)
            self._file.check(entry.fd)
            if late is None:
                if self._drop_behind:
                    pagecache.drop_extents(entry.fd, extents)
                return _cached(count)
        return Pending(self._finish, extents, late, out)

    def read(self, offset: int, out: npt.NDArray[Any], *, sequential: bool = False) -> None:
        if self.drops and not sequential:
            self.submit(Extents.of_range(offset, out.nbytes), out.reshape(-1).view(np.uint8)).wait()
            return
        file = self._file
        entry = file.entry
        if entry is None or not entry.borrow():
            entry = file.opened()
        try:
            if entry.random is sequential:
                entry.advise(random=not sequential)
            try:
                got = os.preadv(entry.fd, (out,), offset)  # type: ignore[arg-type]  # any dtype
            except OSError as error:
                raise errors.reading(file.path, error) from None
            if got != out.nbytes:
                self._read_fully(entry.fd, offset + got, out.reshape(-1).view(np.uint8)[got:])
            status = os.fstat(entry.fd)
            if (status.st_size, status.st_mtime_ns) != file.seen:
                file.check(entry.fd)
            if self.drops:
                pagecache.drop_range(entry.fd, offset, offset + out.nbytes)
        finally:
            entry.release()

    def fill(self, extents: Extents, out: Bytes, ahead: int = AHEAD) -> Outcome:
        """Read window by window, with hints for each before waiting for the one before it."""
        first = late = 0
        behind: Extents | None = None
        allowed = ahead // 2
        with self._file.opened() as entry:
            entry.advise(random=True)
            while first < len(extents):
                window = extents.window(first, aio.DEPTH, allowed, overhead=2 * _PAGE)
                first += len(window)
                missing = self._read_cached(entry.fd, window, out)
                if behind is not None:
                    self._read_rest(entry.fd, behind, out)
                behind = missing
                late += 0 if missing is None else len(missing)
                # Cached data needs no hints: as long as all is cached, larger windows take fewer calls.
                allowed = AHEAD if missing is None else ahead // 2
            if behind is not None:
                self._read_rest(entry.fd, behind, out)
            self._check_read(entry.fd, extents)
        return Outcome(late, len(extents))

    def _finish(self, extents: Extents, late: Extents, out: Bytes) -> Outcome:
        with self._file.opened() as entry:
            entry.advise(random=True)
            self._read_rest(entry.fd, late, out)
            self._check_read(entry.fd, extents)
        return Outcome(len(late), len(extents))

    def _check_read(self, fd: int, extents: Extents) -> None:
        self._file.check(fd)
        if self._drop_behind:
            pagecache.drop_extents(fd, extents)

    def _submit_sequential(self, extents: Extents, out: Bytes) -> Pending[Outcome]:
        """Read in order, for which the kernel's read-ahead is best; it also creates large pages."""
        if len(extents) > 1:
            parts = [extents[i : i + 1] for i in range(len(extents))]
            return Pending(lambda: combined(self.submit(part, out, sequential=True).wait() for part in parts))
        got = 0
        offset, part = extents.first(out)
        if self._nowait:
            with self._file.opened() as entry:
                entry.advise(random=False)
                got = _read_if_cached(entry.fd, offset, part)
                if got == len(part):
                    self._check_sequential(entry, offset, part)
                    return _cached(1)
        return Pending(self._finish_sequential, offset, part, got)

    def _finish_sequential(self, offset: int, part: Bytes, got: int) -> Outcome:
        with self._file.opened() as entry:
            entry.advise(random=False)
            self._read_fully(entry.fd, offset + got, part[got:])
            self._check_sequential(entry, offset, part)
        return Outcome(1, 1)

    def _check_sequential(self, entry: Entry, offset: int, part: Bytes) -> None:
        self._file.check(entry.fd)
        if self.drops:
            pagecache.drop_range(entry.fd, offset, offset + len(part))

    def _read_all(self, extents: Extents, out: Bytes, ahead: int) -> Outcome:
        shares = extents.shares(threads.workers_for(len(extents), extents.nbytes))
        tasks = [partial(self.fill, share, out, ahead // len(shares)) for share in shares]
        return combined(threads.in_threads(tasks))

    def _read_cached(self, fd: int, window: Extents, out: Bytes) -> Extents | None:
        """Read what is cached, start to read the rest from the device, and return the rest, if any."""
        if self._nowait:
            results = read_many(fd, window, out, self._nowait | self._dontcache)
            if results is window.lengths:
                return None
            missing = results != window.lengths
            return window[missing] if missing.any() else None
        if self._fadvise and len(window) > 1:
            for offset, _, length in window.rows():
                os.posix_fadvise(fd, offset, length, os.POSIX_FADV_WILLNEED)
        return window

    def _read_rest(self, fd: int, window: Extents, out: Bytes) -> None:
        results = read_many(fd, window, out, self._dontcache)
        for i in np.flatnonzero(results != window.lengths).tolist():
            offset, target, length = int(window.offsets[i]), int(window.targets[i]), int(window.lengths[i])
            got = int(results[i])
            if got < 0:
                raise errors.reading(self._file.path, OSError(-got, os.strerror(-got)))
            self._read_fully(fd, offset + got, out[target + got : target + length])

    def _read_fully(self, fd: int, offset: int, out: Bytes) -> None:
        """Read until ``out`` is full: any read may be short, and an empty one is the end of the file."""
        view = out.data
        while len(view):
            try:
                got = os.preadv(fd, [view], offset)
            except OSError as error:
                raise errors.reading(self._file.path, error) from None
            if not got:
                raise errors.TruncatedFileError(
                    f"{self._file.path}: was truncated since it was opened (ends at byte {offset}, expected "
                    f"{len(view)} more of the {self._file.size} bytes that it had); restore it and open it "
                    f"again"
                )
            view, offset = view[got:], offset + got

    def borrow(self) -> Entry:
        """The descriptor, for reads of several files at once."""
        return self._file.opened()

    def check(self) -> None:
        self._file.check_path()

    def check_one_of(self, files: int, fd: int) -> None:
        """``File.check`` after a read of several files; if they are many, at most ten times per second."""
        now = time.monotonic()
        if files <= _ALL_CHECKED or now - self._checked > _CHECK_INTERVAL:
            self._checked = now
            self._file.check(fd)

    @property
    def flags(self) -> tuple[int, int] | None:
        """The flags of reads that do not wait, and of reads that do.

        None if flags are not enough: without ``RWF_NOWAIT``, or to evict what was read.
        """
        if not self._nowait or self._drop_behind:
            return None
        return self._nowait | self._dontcache, self._dontcache

    def close(self) -> None:
        self._file.close()


@lru_cache(64)
def _cached(count: int) -> Pending[Outcome]:
    """A finished read of so many cached extents: created once, since each batch has the same number."""
    return Pending.of(Outcome(0, count))


def _supports(fd: int, flag: int) -> bool:
    """Whether reads of this file accept ``flag``, which depends on the file system."""
    if not flag:
        return False
    try:
        os.preadv(fd, [bytearray(1)], 0, flag)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True


def _read_if_cached(fd: int, offset: int, out: Bytes) -> int:
    """Read into ``out`` what is cached from ``offset`` on, and return its number of bytes."""
    try:
        return os.preadv(fd, [out.data], offset, _NOWAIT)
    except OSError:  # BlockingIOError if nothing is; the waiting read reports anything else
        return 0


def read_many(fd: int | Ints, extents: Extents, out: Bytes, flags: int) -> npt.NDArray[np.int64]:
    """Return the bytes read of each extent, or -errno; of one descriptor, or one descriptor per extent."""
    if len(extents) >= 8:
        results = aio.read(fd, extents, out, flags)
        if results is not None:
            return results
    view = out.data
    results = np.empty(len(extents), np.int64)
    fds = [fd] * len(extents) if isinstance(fd, int) else fd.tolist()
    for i, (one, (offset, target, length)) in enumerate(zip(fds, extents.rows(), strict=True)):
        buffers = [view[target : target + length]]
        try:
            results[i] = os.preadv(one, buffers, offset, flags) if flags else os.preadv(one, buffers, offset)
        except OSError as error:
            results[i] = -(error.errno or errno.EIO)
    return results

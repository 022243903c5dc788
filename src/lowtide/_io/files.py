"""Bytes: four ways to bring extents of a file into a buffer, behind one small protocol.

``pread`` reads into buffers of its own and is bounded by construction. The other three read through a
mapping: they are here because people know them, and to be measured against. What each of them does to
memory, and why, is in ``docs/readers.md``.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from functools import partial
from threading import get_ident
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from lowtide import errors
from lowtide._io import aio
from lowtide._io.descriptors import Entry, File
from lowtide._io.dropping import drop, drop_range
from lowtide._io.extents import AHEAD, Extents, of_records
from lowtide._io.identity import Identity
from lowtide._io.mapped import MappedReader

Bytes = npt.NDArray[np.uint8]
ReaderName = Literal["auto", "pread", "remap", "advise", "memmap"]
Cache = Literal["keep", "drop"]

_PAGE = 4096
_ALL_CHECKED = 8  # files of one read; looking at more would take as long as reading them
_CHECKED_EVERY = 0.1  # seconds
_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
_DONTCACHE = 0x80  # RWF_DONTCACHE, Linux 6.14; Python has no name for it yet


class Reader(Protocol):
    """Brings extents of one file into a buffer."""

    name: str
    how: str
    """What the platform gave, for ``repr``: the calls in use, or the fallback and its reason."""

    in_order: bool
    """Whether reads should come in the order of the file: not if nearly all of the last were cached."""

    def fill(self, extents: Extents, out: Bytes, ahead: int = AHEAD) -> None:
        """Fill ``out`` from anywhere in the file; hints take at most ``ahead`` bytes of page cache."""

    def fill_parts(self, parts: Sequence[Callable[[], Extents]], out: Bytes, ahead: int = AHEAD) -> None:
        """``fill`` for extents in parts, each of which is worked out and read by a thread of its own."""

    def begin(self, extents: Extents, out: Bytes, ahead: int = AHEAD) -> Callable[[], None]:
        """``fill`` in two steps: this sets the device to work, and what it returns waits and fills the rest.

        Who has several reads to make begins them all, so that the device is not idle between them.
        """

    def stream(self, offset: int, out: Bytes, *, wait: bool = True) -> bool:
        """Fill ``out`` from ``offset`` on, as one of many such reads in order.

        With ``wait=False`` only if all of it is in the page cache; the answer is whether it was filled.
        """

    def check(self) -> None:
        """Raise if the file was replaced or written to since it was opened."""

    def read(self, offset: int, out: Bytes) -> None:
        """Fill ``out`` from ``offset`` on, as one read somewhere in the file."""

    def close(self) -> None:
        """Give the descriptor back; a later read would open it again."""


class PreadReader:
    """Reads into the caller's own memory: no page of the file is ever mapped.

    Every extent is first read with ``RWF_NOWAIT``. What is in the page cache is thereby done; for the rest
    the kernel has begun to read and says ``EAGAIN``, so that by the time the second, blocking read asks, the
    whole window is under way on the device. One code path, right for warm and for cold.
    """

    name = "pread"

    def __init__(self, path: str, size: int, cache: Cache, identity: Identity | None = None) -> None:
        self._file = File(path, size, identity)
        with self._file.opened() as entry:
            # Else the probes below, and every random row, would pull in megabytes of read-ahead.
            entry.advise(random=True)
            self._nowait = _NOWAIT if _supports(entry.fd, _NOWAIT) else 0
            drop = cache == "drop"
            self._dontcache = _DONTCACHE if drop and _supports(entry.fd, _DONTCACHE) else 0
        self.in_order = True
        self._checked = 0.0
        self._fadvise = hasattr(os, "posix_fadvise")
        self._drop = drop and self._fadvise
        parts = ["aio" if aio.available() else "preadv"]
        parts.append("nowait" if self._nowait else "willneed" if self._fadvise else "no hints")
        if drop:
            parts.append(
                "dontcache" if self._dontcache else "drop behind" if self._fadvise else "cannot drop"
            )
        self.how = ", ".join(parts)

    def stream(self, offset: int, out: Bytes, *, wait: bool = True) -> bool:
        # In order, the kernel's own read-ahead is at its best, and makes large pages besides.
        with self._file.opened() as entry:
            entry.advise(random=False)
            if wait:
                self._read_rest(entry.fd, offset, out)
            elif not self._nowait or not _read_at_once(entry.fd, offset, out):
                return False
            self._file.check(entry.fd)
            if self._drop:
                drop_range(entry.fd, offset, offset + len(out))
        return True

    def read(self, offset: int, out: Bytes) -> None:
        if self._drop:
            self.fill(of_records(np.array([offset]), len(out)), out)
            return
        # One read has nothing to overlap with: what `fill` does for many would take longer than the read.
        with self._file.opened() as entry:
            entry.advise(random=True)
            self._read_rest(entry.fd, offset, out)
            self._file.check(entry.fd)

    def fill(self, extents: Extents, out: Bytes, ahead: int = AHEAD) -> None:
        if not len(extents):
            return
        with self._file.opened() as entry:
            entry.advise(random=True)
            workers = _workers_for(extents)
            if workers == 1:
                self._fill(entry.fd, extents, out, ahead)
                self._file.check(entry.fd)
                return
        self.fill_parts([partial(_itself, share) for share in extents.shares(workers)], out, ahead)

    def fill_parts(self, parts: Sequence[Callable[[], Extents]], out: Bytes, ahead: int = AHEAD) -> None:
        with self._file.opened() as entry:
            entry.advise(random=True)
            futures: list[Future[None]] = []
            mine = list(parts)
            try:
                while len(mine) > 1:
                    future = _submit(self._fill_part, entry.fd, mine[-1], out, ahead // len(parts))
                    if future is None:
                        break
                    futures.append(future)
                    mine.pop()
                for part in mine:
                    self._fill_part(entry.fd, part, out, ahead // len(parts))
            finally:
                wait(futures)  # whatever happened here, nobody may write to `out` after this returns
            for future in futures:
                future.result()
            self._file.check(entry.fd)

    def _fill_part(self, fd: int, part: Callable[[], Extents], out: Bytes, ahead: int) -> None:
        extents = part()
        if len(extents):
            self._fill(fd, extents, out, ahead)

    def begin(self, extents: Extents, out: Bytes, ahead: int = AHEAD) -> Callable[[], None]:
        small = len(extents.window(0, aio.DEPTH, ahead // 2, overhead=2 * _PAGE)) == len(extents)
        if not self._nowait or not small or _workers_for(extents) > 1:
            return partial(self.fill, extents, out, ahead)  # has enough under way by itself
        with self._file.opened() as entry:
            entry.advise(random=True)
            missing = self._read_cached(entry.fd, extents, out)
            self._file.check(entry.fd)
            return partial(self._end, extents, missing, out)

    def _end(self, extents: Extents, missing: Extents | None, out: Bytes) -> None:
        if missing is None and not self._drop:
            return
        with self._file.opened() as entry:
            entry.advise(random=True)
            if missing is not None:
                self._read(entry.fd, missing, out)
                self._file.check(entry.fd)
            if self._drop and not self._dontcache:
                drop(entry.fd, extents)

    def _fill(self, fd: int, extents: Extents, out: Bytes, ahead: int) -> None:
        """Window by window, each hinted before the one before it is waited for."""
        first = 0
        behind: Extents | None = None
        allowed = ahead // 2
        late = 0
        while first < len(extents):
            window = extents.window(first, aio.DEPTH, allowed, overhead=2 * _PAGE)
            first += len(window)
            missing = self._read_cached(fd, window, out)
            if behind is not None:
                self._read(fd, behind, out)
            behind = missing
            late += 0 if missing is None else len(missing)
            # What is cached needs no hints: as long as all of it is, windows may be larger, and calls fewer.
            allowed = AHEAD if missing is None else ahead // 2
        if behind is not None:
            self._read(fd, behind, out)
        self.in_order = 16 * late > len(extents)  # now and then a page is busy, though it is there
        if self._drop and not self._dontcache:
            drop(fd, extents)

    def _read_cached(self, fd: int, window: Extents, out: Bytes) -> Extents | None:
        """Read what is cached, set the device to work on the rest, and return the rest if there is one."""
        if self._nowait:
            results = read_many(fd, window, out, self._nowait | self._dontcache)
            missing = results != window.lengths
            return window[missing] if missing.any() else None
        if self._fadvise and len(window) > 1:
            for offset, length in zip(window.offsets.tolist(), window.lengths.tolist(), strict=True):
                os.posix_fadvise(fd, offset, length, os.POSIX_FADV_WILLNEED)
        return window

    def _read(self, fd: int, window: Extents, out: Bytes) -> None:
        results = read_many(fd, window, out, self._dontcache)
        for i in np.flatnonzero(results != window.lengths).tolist():
            offset, target, length = int(window.offsets[i]), int(window.targets[i]), int(window.lengths[i])
            got = int(results[i])
            if got < 0:
                raise errors.reading(self._file.path, OSError(-got, os.strerror(-got)))
            self._read_rest(fd, offset + got, out[target + got : target + length])

    def _read_rest(self, fd: int, offset: int, out: Bytes) -> None:
        """The kernel may give less than was asked; only an empty answer is the end of the file."""
        view = out.data
        while len(view):
            try:
                got = os.preadv(fd, [view], offset)
            except OSError as error:
                raise errors.reading(self._file.path, error) from None
            if not got:
                raise errors.TruncatedFileError(
                    f"{self._file.path}: ends at byte {offset} and {len(view)} more bytes were expected "
                    f"there: it had {self._file.size} bytes when it was opened and was cut short since; "
                    f"restore it and open it again"
                )
            view, offset = view[got:], offset + got

    def opened(self) -> AbstractContextManager[Entry]:
        """The descriptor, for reads that go over several files at once."""
        return self._file.opened()

    def check(self) -> None:
        self._file.check_path()

    def check_one_of(self, files: int, fd: int) -> None:
        """``File.check`` after a read from ``files`` files: of many, each at most ten times a second."""
        if files <= _ALL_CHECKED:
            self._file.check(fd)
            return
        now = time.monotonic()
        if now - self._checked > _CHECKED_EVERY:
            self._checked = now
            self._file.check(fd)

    @property
    def flags(self) -> tuple[int, int]:
        """The flags of reads that do not wait, and of reads that do.

        0 for the first where there are none, or where flags are not all: what is read must be dropped behind.
        """
        if self._drop and not self._dontcache:
            return 0, 0
        return self._nowait and self._nowait | self._dontcache, self._dontcache

    def close(self) -> None:
        self._file.close()


def open_reader(
    path: str,
    size: int,
    reader: ReaderName = "auto",
    cache: Cache = "keep",
    identity: Identity | None = None,
) -> Reader:
    """The reader called ``reader`` on the first ``size`` bytes of ``path``.

    ``auto`` is ``pread`` where the system has it, else ``remap`` (Windows). ``identity`` is what the file was
    when it was inspected: any other file, and this one after it was written to, is refused.
    """
    if cache not in ("keep", "drop"):
        raise errors.ArgumentError(f"cache must be 'keep' or 'drop', got {cache!r}")
    if reader in ("auto", "pread") and hasattr(os, "preadv"):
        return PreadReader(path, size, cache, identity)
    if reader == "pread":
        raise errors.UnsupportedError(f"{path}: reader='pread' needs os.preadv; use reader='remap' here")
    if reader == "auto":
        fallback = MappedReader(path, size, cache, "remap", identity)
        fallback.how += ", as this platform lacks preadv"
        return fallback
    if reader in ("remap", "advise", "memmap"):
        return MappedReader(path, size, cache, reader, identity)
    raise errors.ArgumentError(f"reader must be auto, pread, remap, advise or memmap, got {reader!r}")


def _supports(fd: int, flag: int) -> bool:
    """Whether reads of this file take ``flag``: each file system decides for itself."""
    if not flag:
        return False
    try:
        os.preadv(fd, [bytearray(1)], 0, flag)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True


def _read_at_once(fd: int, offset: int, out: Bytes) -> bool:
    """Read ``out`` if all of it is cached."""
    try:
        return os.preadv(fd, [out.data], offset, _NOWAIT) == len(out)
    except OSError:  # BlockingIOError when it is not; the waiting read will tell about anything else
        return False


def read_many(fd: int, extents: Extents, out: Bytes, flags: int) -> npt.NDArray[np.int64]:
    """Bytes read, or a negative errno, for each extent; of ``fd`` unless the extents name their own."""
    if len(extents) >= 8:
        results = aio.read(fd, extents, out, flags)
        if results is not None:
            return results
    view = out.data
    results = np.empty(len(extents), np.int64)
    fds = [fd] * len(extents) if extents.fds is None else extents.fds.tolist()
    rows = zip(fds, extents.offsets.tolist(), extents.targets.tolist(), extents.lengths.tolist(), strict=True)
    for i, (one, offset, target, length) in enumerate(rows):
        buffers = [view[target : target + length]]
        try:
            results[i] = os.preadv(one, buffers, offset, flags) if flags else os.preadv(one, buffers, offset)
        except OSError as error:
            results[i] = -(error.errno or errno.EIO)
    return results


def _itself(extents: Extents) -> Extents:
    return extents


def _workers_for(extents: Extents) -> int:
    return workers_for(len(extents), extents.nbytes)


def workers_for(reads: int, nbytes: int) -> int:
    """Threads worth using: handing work over costs about as much as 50 small reads."""
    if reads < 256 and (reads < 2 or nbytes < 2 * 2**20):
        return 1
    return min(_CORES, reads)


def _submit(function: Callable[..., None], *arguments: object) -> Future[None] | None:
    """Have another thread call a function, or None where that cannot be done.

    The pool's locks are not reentrant. A signal handler or a finalizer that reads while this very thread is
    in here gets None.
    """
    global _POOL, _SUBMITTING
    me = get_ident()
    if me in _SUBMITTING:
        return None
    _SUBMITTING.add(me)
    try:
        if _POOL is None:  # two threads may both find it so; then one of the pools is dropped again
            _POOL = ThreadPoolExecutor(_CORES, thread_name_prefix="lowtide-read")
        return _POOL.submit(function, *arguments)
    except RuntimeError:  # no more threads: the interpreter is ending
        return None
    finally:
        _SUBMITTING.discard(me)


def _after_fork() -> None:
    """Threads do not cross a fork: the child makes its own."""
    global _POOL, _SUBMITTING
    _POOL, _SUBMITTING = None, set()


_CORES = min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
_POOL: ThreadPoolExecutor | None = None
_SUBMITTING: set[int] = set()  # threads that are inside of the pool's locks
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

"""Bytes: four ways to bring extents of a file into a buffer, behind one small protocol.

``pread`` reads into buffers of its own and is bounded by construction. The other three read through a
mapping: they are here because people know them, and to be measured against. What each of them does to
memory, and why, is in ``docs/memory.md``.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from lowtide import aio, errors
from lowtide.descriptors import Entry, File, map_file, unmap
from lowtide.extents import LONGEST, Extents

Bytes = npt.NDArray[np.uint8]
ReaderName = Literal["auto", "pread", "remap", "advise", "memmap"]
Cache = Literal["keep", "drop"]

AHEAD = 16 * 2**20
"""Bytes of page cache that the hints of one read may have under way."""

_PAGE = 4096
_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
_DONTCACHE = 0x80  # RWF_DONTCACHE, Linux 6.14; Python has no name for it yet
_FAULT_AROUND = 64 * 2**10  # what one page fault maps of a file's cached neighbours (Linux's default)
_MAPPED_AT_ONCE = 4 * 2**20  # what `remap` and `advise` may have mapped before they let go


class Reader(Protocol):
    """Brings extents of one file into a buffer."""

    name: str
    how: str
    """What the platform gave, for ``repr``: the calls in use, or the fallback and its reason."""

    def fill(self, extents: Extents, out: Bytes, ahead: int = AHEAD) -> bool:
        """Fill ``out``; true when something had to be waited for, that is, came from the device."""

    def hint(self, offset: int, length: int) -> None:
        """Begin to read what is wanted soon, and return at once."""

    def close(self) -> None:
        """Give the descriptor back; a later read would open it again."""


class PreadReader:
    """Reads into the caller's own memory: no page of the file is ever mapped.

    Every extent is first read with ``RWF_NOWAIT``. What is in the page cache is thereby done; for the rest
    the kernel has begun to read and says ``EAGAIN``, so that by the time the second, blocking read asks, the
    whole window is under way on the device. One code path, right for warm and for cold.
    """

    name = "pread"

    def __init__(self, path: str, size: int, cache: Cache) -> None:
        # Read-ahead is lowtide's own business: the kernel's would pull megabytes for each random row.
        self._file = File(path, size, advice=getattr(os, "POSIX_FADV_RANDOM", None))
        with self._file.opened() as entry:
            self._nowait = _NOWAIT if _supports(entry.fd, _NOWAIT) else 0
            drop = cache == "drop"
            self._dontcache = _DONTCACHE if drop and _supports(entry.fd, _DONTCACHE) else 0
        self._fadvise = hasattr(os, "posix_fadvise")
        self._drop_behind = drop and not self._dontcache and self._fadvise
        self._hinted = False
        parts = ["aio" if aio.for_this_thread() else "preadv"]
        parts.append("nowait" if self._nowait else "willneed" if self._fadvise else "no hints")
        if drop:
            parts.append(
                "dontcache" if self._dontcache else "drop behind" if self._fadvise else "cannot drop"
            )
        self.how = ", ".join(parts)

    def fill(self, extents: Extents, out: Bytes, ahead: int = AHEAD) -> bool:
        if not len(extents):
            return False
        with self._file.opened() as entry:
            workers = _workers_for(extents)
            if workers == 1:
                return self._fill(entry.fd, extents, out, ahead)
            first, *others = extents.shares(workers)
            futures: list[Future[bool]] = []
            mine = [first]
            try:
                for share in others:
                    try:
                        futures.append(_helpers().submit(self._fill, entry.fd, share, out, ahead // workers))
                    except RuntimeError:  # no more threads: the interpreter is ending
                        mine.append(share)
                waited = [self._fill(entry.fd, share, out, ahead // workers) for share in mine]
            finally:
                wait(futures)  # whatever happened here, nobody may write to `out` after this returns
            return any([*waited, *(future.result() for future in futures)])

    def _fill(self, fd: int, extents: Extents, out: Bytes, ahead: int) -> bool:
        """Window by window, each hinted before the one before it is waited for."""
        waited = False
        behind: Extents | None = None
        for window in extents.windows(aio.DEPTH, ahead // 2, overhead=2 * _PAGE):
            missing = self._read_cached(fd, window, out)
            if behind is not None:
                self._read(fd, behind, out)
            waited = waited or len(missing) > 0
            behind = missing if len(missing) else None
        if behind is not None:
            self._read(fd, behind, out)
        if self._drop_behind or (self._dontcache and self._hinted):
            _drop(fd, extents)
        return waited

    def _read_cached(self, fd: int, window: Extents, out: Bytes) -> Extents:
        """Read what is cached, set the device to work on the rest, and return the rest."""
        if self._nowait:
            results = _read_many(fd, window, out, self._nowait | self._dontcache)
            if (results == window.lengths).all():
                return window[:0]
            return window[results != window.lengths]
        if self._fadvise and len(window) > 1:
            for offset, length in zip(window.offsets.tolist(), window.lengths.tolist(), strict=True):
                os.posix_fadvise(fd, offset, length, os.POSIX_FADV_WILLNEED)
        return window

    def _read(self, fd: int, window: Extents, out: Bytes) -> None:
        results = _read_many(fd, window, out, self._dontcache)
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

    def hint(self, offset: int, length: int) -> None:
        if not self._fadvise:
            return
        self._hinted = True
        with self._file.opened() as entry:
            # The kernel reads no more than one request's worth for each hint, so a long one is cut.
            for start in range(offset, offset + length, LONGEST):
                size = min(LONGEST, offset + length - start)
                os.posix_fadvise(entry.fd, start, size, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        self._file.close()


class MappedReader:
    """Reads by copying from a mapping, and lets go of it in the way that its name says.

    Each page fault maps up to 64 KiB of cached neighbours, so ``remap`` and ``advise`` touch few enough
    rows before they let go that all of it stays within 4 MiB. ``memmap`` never lets go: the leak.
    """

    def __init__(self, path: str, size: int, cache: Cache, name: str) -> None:
        self.name = name
        self._file = File(path, size)
        # Pages that are mapped cannot be dropped.
        self._drop = cache == "drop" and name != "memmap" and hasattr(os, "posix_fadvise")
        if name == "advise" and not hasattr(mmap, "MADV_DONTNEED"):
            raise errors.UnsupportedError(
                f"{path}: reader='advise' needs madvise, which this platform lacks; use reader='remap'"
            )
        parts = {"remap": "map per piece", "advise": "madvise per piece", "memmap": "kept map, memory grows"}
        self.how = parts[name]
        if cache == "drop":
            self.how += ", drop behind" if self._drop else ", cannot drop"

    def fill(self, extents: Extents, out: Bytes, ahead: int = AHEAD) -> bool:
        if not len(extents):
            return False
        with self._file.opened() as entry:
            try:
                self._fill(entry, extents, out, ahead)
            except errors.LowtideError:
                raise
            except OSError as error:  # no room for the mapping, or a file system without mappings
                raise errors.reading(self._file.path, error) from None
            if self._drop:
                _drop(entry.fd, extents)
        return False

    def _fill(self, entry: Entry, extents: Extents, out: Bytes, ahead: int) -> None:
        if self.name == "memmap":
            self._file.check_size(entry.fd)
            _copy(entry.mapping(self._file.size), 0, extents, out)
            return
        at_once = min(_MAPPED_AT_ONCE, ahead)
        for piece in extents.windows(max(1, at_once // _FAULT_AROUND), at_once):
            self._file.check_size(entry.fd)
            start = int(piece.offsets[0]) // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
            stop = int((piece.offsets + piece.lengths).max())
            if self.name == "remap":
                mapped = map_file(entry.fd, start, stop)
                try:
                    self._ask_for(entry.fd, mapped, piece)
                    _copy(mapped, start, piece, out)
                finally:
                    unmap(mapped)
            else:
                mapped = entry.mapping(self._file.size)
                self._ask_for(entry.fd, mapped, piece)
                _copy(mapped, 0, piece, out)
                # Whole fault-around windows: the neighbours on both sides were mapped too.
                start = start // _FAULT_AROUND * _FAULT_AROUND
                stop = min(self._file.size, (stop // _FAULT_AROUND + 1) * _FAULT_AROUND)
                mapped.madvise(mmap.MADV_DONTNEED, start, stop - start)

    def _ask_for(self, fd: int, mapped: mmap.mmap, piece: Extents) -> None:
        """Where nothing may stay behind, read what is wanted and not the megabytes around it."""
        if not self._drop:
            return
        mapped.madvise(mmap.MADV_RANDOM)
        for offset, length in zip(piece.offsets.tolist(), piece.lengths.tolist(), strict=True):
            os.posix_fadvise(fd, offset, length, os.POSIX_FADV_WILLNEED)

    def hint(self, offset: int, length: int) -> None:
        """A mapping has the kernel's own read-ahead."""

    def close(self) -> None:
        self._file.close()


def open_reader(path: str, size: int, reader: ReaderName = "auto", cache: Cache = "keep") -> Reader:
    """The reader called ``reader`` on the first ``size`` bytes of ``path``.

    ``auto`` is ``pread`` where the system has it, else ``remap`` (Windows).
    """
    if cache not in ("keep", "drop"):
        raise errors.ArgumentError(f"cache must be 'keep' or 'drop', got {cache!r}")
    if reader in ("auto", "pread") and hasattr(os, "preadv"):
        return PreadReader(path, size, cache)
    if reader == "pread":
        raise errors.UnsupportedError(f"{path}: reader='pread' needs os.preadv; use reader='remap' here")
    if reader == "auto":
        fallback = MappedReader(path, size, cache, "remap")
        fallback.how += ", as this platform lacks preadv"
        return fallback
    if reader in ("remap", "advise", "memmap"):
        return MappedReader(path, size, cache, reader)
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


def _read_many(fd: int, extents: Extents, out: Bytes, flags: int) -> npt.NDArray[np.int64]:
    """Bytes read, or a negative errno, for each extent."""
    context = aio.for_this_thread() if len(extents) >= 8 else None
    if context is not None:
        try:
            return context.read(fd, extents, aio.address_of(out), flags)
        except OSError:
            pass  # a file system without these calls, or no room in the kernel: one by one then
    view = out.data
    results = np.empty(len(extents), np.int64)
    rows = zip(extents.offsets.tolist(), extents.targets.tolist(), extents.lengths.tolist(), strict=True)
    for i, (offset, target, length) in enumerate(rows):
        buffers = [view[target : target + length]]
        try:
            results[i] = os.preadv(fd, buffers, offset, flags) if flags else os.preadv(fd, buffers, offset)
        except OSError as error:
            results[i] = -(error.errno or errno.EIO)
    return results


def _drop(fd: int, extents: Extents) -> None:
    """Put everything between the first and the last extent out of the page cache."""
    # Whole windows: the kernel keeps a page, or a larger folio, of which only a part is named.
    start = int(extents.offsets[0]) // _FAULT_AROUND * _FAULT_AROUND
    stop = (int((extents.offsets + extents.lengths).max()) // _FAULT_AROUND + 1) * _FAULT_AROUND
    os.posix_fadvise(fd, start, stop - start, os.POSIX_FADV_DONTNEED)


def _copy(mapped: mmap.mmap, start: int, extents: Extents, out: Bytes) -> None:
    """Copy extents from a mapping of the file that begins at byte ``start``."""
    width = int(extents.lengths[0])
    if len(extents) > 1 and width <= _PAGE and (extents.lengths == width).all():
        # One record at every byte: an index then is an offset, and NumPy's gather does the loop. It copies
        # twice, which long records would not be worth.
        record = np.dtype((np.void, width))
        source = np.ndarray((len(mapped) - width + 1,), record, mapped, strides=(1,))
        target = np.ndarray((len(out) - width + 1,), record, out, strides=(1,))
        target[extents.targets] = source[extents.offsets - start]
        return
    source = np.frombuffer(mapped, np.uint8)
    rows = zip(extents.offsets.tolist(), extents.targets.tolist(), extents.lengths.tolist(), strict=True)
    for offset, at, length in rows:
        out[at : at + length] = source[offset - start : offset - start + length]


def _workers_for(extents: Extents) -> int:
    """Threads worth using: handing work over costs about as much as 50 small reads."""
    if len(extents) < 256 and (len(extents) < 2 or extents.nbytes < 2 * 2**20):
        return 1
    return min(_CORES, len(extents))


def _helpers() -> ThreadPoolExecutor:
    global _POOL
    with _POOL_LOCK:
        if _POOL is None:
            _POOL = ThreadPoolExecutor(_CORES, thread_name_prefix="lowtide-read")
        return _POOL


def _after_fork() -> None:
    """Threads do not cross a fork: the child makes its own."""
    global _POOL, _POOL_LOCK
    _POOL, _POOL_LOCK = None, threading.Lock()


_CORES = min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
_POOL: ThreadPoolExecutor | None = None
_POOL_LOCK = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

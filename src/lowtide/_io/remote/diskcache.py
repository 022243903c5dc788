"""A bounded cache of objects on the local disk, shared by the processes of a machine.

Long ranges are kept in pieces, each in a file ``OBJECT/BLOCK/FROM-TO-NEXT``. ``OBJECT`` is a digest of
address and ETag, ``BLOCK`` the number of the MiB, ``FROM`` and ``TO`` are bytes in it, and ``NEXT`` is the
time of the next use, if known. A file contains data and a digest, which is compared when the piece is read.
It is written under a temporary name, locked, and renamed: what a killed process left behind is not locked,
and is removed.

The file ``used`` counts the bytes of all files, rounded up to pages. It is changed under a lock and before
the files are: if a process is killed in between, the count is too high, never too low. Each process counts
again when it starts. Files are renamed under the lock too: otherwise a process that counts them may find
neither name, and exceed the limit.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import NamedTuple

from lowtide import errors
from lowtide._io import atomic, pagecache
from lowtide._io.system import after_fork, write_at

BLOCK = 2**20
SHORTEST = 2**16
"""Bytes of a piece that is worth a file."""
NEVER = 2**62
"""The next use of a piece for which none is known: it is kept while there is room."""

_DIGEST = 16  # bytes
_PAGE = 4096
_ROOM = 2**18  # bytes that must be free so that short reads are worth a block
_FOLDER = _PAGE  # what the folder of a piece takes
_SKIPS = 256  # pieces that are not kept until the files are listed again
_EVICTED = 16  # evict this share of the cache at once (1/16), since listing the files takes a while
_NAME = re.compile(r"([0-9a-f]+)-([0-9a-f]+)-([0-9a-f]+)")
_TEMPORARY = ".writing-"
_CREATE = os.O_RDWR | os.O_CREAT


class Use(NamedTuple):
    """The times of this use of a piece and of the next: any numbers that grow with time."""

    now: int = 0
    next: int = NEVER


USES: ContextVar[Callable[[int], Use] | None] = ContextVar("lowtide_uses", default=None)
"""Set while reads in a known order are submitted: from a place in the buffer to the use of what is read."""


class DiskCache:
    """Pieces of objects in a folder, at most ``limit`` bytes in total.

    Parameters
    ----------
    folder
        Where they are kept; created if it does not exist.
    limit
        Bytes that they may take on the disk.
    """

    def __init__(self, folder: str, limit: int) -> None:
        self.folder, self.limit = os.path.abspath(folder), limit
        self._lock = threading.Lock()
        self._reach = NEVER  # pieces whose next use is at least this much later are not kept
        self._skipped = 0
        self._broken = False
        with errors.write_errors(self.folder):
            os.makedirs(self.folder, exist_ok=True)
            with self._locked():
                self._set_used(sum(size for _, size, _ in self._files()))
                self._evict(0, 0)

    def has_room(self) -> bool:
        """Whether there is room for more without evicting anything."""
        try:
            with open(f"{self.folder}/used") as file:  # without the lock: another process may write it
                return not self._broken and int(file.read()) + _ROOM <= self.limit
        except (OSError, ValueError):
            return False

    def read(
        self, key: str, start: int, stop: int, take: Callable[[int, memoryview], None], use: Use
    ) -> list[tuple[int, int]]:
        """Pass on what is cached of bytes ``start`` to ``stop`` of an object; return the other ranges."""
        missing: list[tuple[int, int]] = []
        at = start
        while at < stop:
            block = at // BLOCK
            end = min(stop, (block + 1) * BLOCK)
            for first, last, path in self._pieces(key, block):
                until = min(last, end)
                if until <= at or first >= end:
                    continue
                data = self._content(path, last - first)
                if data is None:
                    continue
                if first > at:
                    missing.append((at, first))
                    at = first
                take(at, data[at - first : until - first])
                self._used_again(path, use)
                at = until
            if at < end:
                missing.append((at, end))
                at = end
        return _joined(missing)

    def write(self, key: str, start: int, data: memoryview, use: Use) -> None:
        """Keep bytes from ``start`` on of an object, unless all pieces in the cache are used sooner."""
        stop = start + len(data)
        for at in range(start - start % BLOCK, stop, BLOCK):
            first, last = max(start, at), min(stop, at + BLOCK)
            if last - first >= SHORTEST and not self._broken:
                self._write(key, at // BLOCK, first - at, data[first - start : last - start], use)

    def _write(self, key: str, block: int, offset: int, data: memoryview, use: Use) -> None:
        size = _size(len(data) + _DIGEST)
        if size > self.limit:
            return
        folder = f"{self.folder}/{key}/{block:x}"
        temporary = f"{folder}/{_TEMPORARY}{os.getpid():x}-{threading.get_ident():x}"
        try:
            with self._locked():
                used = self._used()
                if used + size > self.limit:
                    if use.next - use.now >= self._reach and self._skipped < _SKIPS:
                        self._skipped += use.next != NEVER
                        return  # all pieces in the cache are used sooner
                    used = self._evict(size, use.now)
                    if used + size > self.limit:
                        return
                self._set_used(used + size)
                os.makedirs(folder, exist_ok=True)
                fd = os.open(temporary, _CREATE | os.O_TRUNC, 0o644)
                atomic.lock(fd)
                os.ftruncate(fd, len(data) + _DIGEST)
            try:
                write_at(fd, data, 0)
                write_at(fd, memoryview(_digest(key, data)), len(data))
                os.fdatasync(fd)
                pagecache.evict(fd)
                with self._locked():
                    os.rename(temporary, f"{folder}/{offset:x}-{offset + len(data):x}-{use.next:x}")
            except OSError:
                os.unlink(temporary)
                raise
            finally:
                os.close(fd)
        except OSError as error:
            # A removed folder does not matter; a full disk stays full.
            self._broken = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)

    def _pieces(self, key: str, block: int) -> list[tuple[int, int, str]]:
        """First and last byte of each cached piece of a block, in order."""
        folder = f"{self.folder}/{key}/{block:x}"
        try:
            names = os.listdir(folder)
        except OSError:
            return []
        matches = ((_NAME.fullmatch(name), name) for name in names)
        return sorted(
            (block * BLOCK + int(match[1], 16), block * BLOCK + int(match[2], 16), f"{folder}/{name}")
            for match, name in matches
            if match is not None
        )

    def _content(self, path: str, length: int) -> memoryview | None:
        """The bytes of a piece, if it is undamaged."""
        try:
            fd = os.open(path, os.O_RDONLY)
        except OSError:
            return None
        try:
            data = os.pread(fd, length + _DIGEST + 1, 0)
            pagecache.evict(fd)
        except OSError:
            data = b""
        finally:
            os.close(fd)
        view = memoryview(data)
        key = path.rsplit("/", 3)[1]
        if len(data) != length + _DIGEST or _digest(key, view[:length]) != data[length:]:
            with contextlib.suppress(OSError):  # damaged: it is fetched again
                os.unlink(path)
            return None
        return view[:length]

    def _used_again(self, path: str, use: Use) -> None:
        name = path.rpartition("-")[0]
        if use.next != NEVER and not path.endswith(f"-{use.next:x}"):
            with contextlib.suppress(OSError), self._locked():
                os.rename(path, f"{name}-{use.next:x}")

    # Under the lock

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock, open(f"{self.folder}/lock", "ab") as file:
            atomic.lock(file.fileno(), wait=True)
            yield

    def _used(self) -> int:
        try:
            with open(f"{self.folder}/used") as file:
                return int(file.read())
        except (OSError, ValueError):
            return sum(size for _, size, _ in self._files())

    def _set_used(self, nbytes: int) -> None:
        # Never empty and never shorter: ``has_room`` reads it without the lock.
        fd = os.open(f"{self.folder}/used", _CREATE, 0o644)
        try:
            write_at(fd, memoryview(b"%020d" % nbytes), 0)
        finally:
            os.close(fd)

    def _files(self) -> Iterator[tuple[str, int, int]]:
        """Path, bytes on the disk and next use of every piece; removes what killed processes left."""
        for key in _folders(self.folder):
            for block in _folders(key):
                for entry in _entries(block):
                    with contextlib.suppress(OSError):
                        size = _size(entry.stat().st_size)
                        if entry.name.startswith(_TEMPORARY):
                            if _is_abandoned(entry.path):
                                os.unlink(entry.path)
                                continue
                            yield entry.path, size, -1
                        elif match := _NAME.fullmatch(entry.name):
                            yield entry.path, size, int(match[3], 16)

    def _evict(self, size: int, now: int) -> int:
        """Evict what is used last until there is room for ``size`` bytes and more; return the bytes left."""
        files = [(NEVER if 0 <= use < now else use, path, nbytes) for path, nbytes, use in self._files()]
        used = sum(nbytes for _, _, nbytes in files)
        if used + size > self.limit:
            files.sort(reverse=True)
            goal = self.limit - max(size, self.limit // _EVICTED)
            for use, path, nbytes in files:
                if used <= goal or use < 0:
                    break
                with contextlib.suppress(OSError):
                    os.unlink(path)
                    used -= nbytes
                    self._reach = use if use == NEVER else use - now
                    os.rmdir(os.path.dirname(path))
        self._skipped = 0
        self._set_used(used)
        return used


def open_cache(folder: str, limit: int) -> DiskCache:
    """The cache of this process in a folder."""
    cache = _CACHES.get((folder, limit))
    if cache is None:
        cache = _CACHES.setdefault((folder, limit), DiskCache(folder, limit))
    return cache


def object_key(path: str, etag: str) -> str:
    """The name of an object in the cache, different for each version of the object."""
    return hashlib.blake2b(f"{path}\0{etag}".encode(), digest_size=12).hexdigest()


def _digest(key: str, data: memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST, key=key.encode()).digest()


def _size(nbytes: int) -> int:
    return -(-nbytes // _PAGE) * _PAGE + _FOLDER


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for first, last in ranges:
        if joined and joined[-1][1] == first and last - joined[-1][0] <= BLOCK + SHORTEST:
            joined[-1] = joined[-1][0], last
        else:
            joined.append((first, last))
    return joined


def _folders(path: str) -> list[str]:
    return [entry.path for entry in _entries(path) if entry.is_dir(follow_symlinks=False)]


def _entries(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except OSError:
        return []


def _is_abandoned(path: str) -> bool:
    with open(path, "rb+") as file:
        return atomic.lock(file.fileno())


@after_fork
def _after_fork() -> None:
    _CACHES.clear()  # a thread of the parent may have held a lock


_CACHES: dict[tuple[str, int], DiskCache] = {}

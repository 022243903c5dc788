"""Open descriptors, few of them: thousands of arrays may be open, but only so many files at once.

A ``File`` knows a path and what the file looked like when it was opened. It borrows a descriptor for the
length of one read; the least recently used ones are closed behind it and opened again when needed, and a
file that was replaced in the meantime is noticed then.
"""

from __future__ import annotations

import mmap
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from lowtide import errors

_Key = tuple[str, int, int]


class Entry:
    """One open descriptor and, once a mapped reader asked for it, one mapping."""

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.users = 0
        self._random = False
        self.doomed = False
        self._size = size
        self._map: mmap.mmap | None = None

    def advise(self, *, random: bool) -> None:
        """Turn the kernel's own read-ahead off for random reads, on for reads in order."""
        if self._random != random and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_RANDOM if random else os.POSIX_FADV_NORMAL)
            self._random = random

    def mapping(self) -> mmap.mmap:
        """A read-only mapping of the file as long as it was when opened; kept with the descriptor."""
        if self._map is None:
            self._map = map_file(self.fd, 0, self._size)
        return self._map

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
        os.close(self.fd)


def map_file(fd: int, start: int, stop: int) -> mmap.mmap:
    """A read-only mapping of bytes ``start`` to ``stop``; ``start`` on a page border.

    It is kept out of core dumps: a dump of a process that maps 100 GB would otherwise hold them.
    """
    mapped = mmap.mmap(fd, stop - start, access=mmap.ACCESS_READ, offset=start)
    if hasattr(mmap, "MADV_DONTDUMP"):
        mapped.madvise(mmap.MADV_DONTDUMP)
    return mapped


class DescriptorPool:
    """At most ``limit`` open files; the least recently used one that is idle is closed first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._entries: OrderedDict[_Key, Entry] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def acquire(self, file: File) -> Entry:
        with self._lock:
            entry = self._entries.get(file.key)
            if entry is None:
                entry = Entry(file.reopen(), file.size)
                self._entries[file.key] = entry
            entry.users += 1
            self._entries.move_to_end(file.key)
            self._evict()
            return entry

    def release(self, entry: Entry) -> None:
        with self._lock:
            entry.users -= 1
            if entry.doomed and not entry.users:
                entry.close()

    def discard(self, key: _Key) -> None:
        """Close the file's descriptor now, or as soon as the last read on it has ended."""
        with self._lock:
            entry = self._entries.pop(key, None)
            if entry is not None:
                self._doom(entry)

    def _evict(self) -> None:
        excess = len(self._entries) - self.limit
        if excess <= 0:
            return
        for key in [key for key, entry in self._entries.items() if not entry.users][:excess]:
            self._doom(self._entries.pop(key))

    @staticmethod
    def _doom(entry: Entry) -> None:
        entry.doomed = True
        if not entry.users:
            entry.close()

    def after_fork(self) -> None:
        """In a forked child: the parent's other threads, and what they held, are not here."""
        self._lock = threading.Lock()
        for entry in self._entries.values():
            entry.users = 0


class File:
    """A path, and the identity and size that the file had when it was opened."""

    def __init__(self, path: str, size: int) -> None:
        try:
            status = os.stat(path)
        except OSError as error:
            raise errors.reading(path, error) from None
        self.path = path
        self.size = size
        self.key: _Key = (path, status.st_dev, status.st_ino)
        self._check(status)

    @contextmanager
    def opened(self) -> Iterator[Entry]:
        """Borrow the file's descriptor; it stays open until the block ends."""
        entry = POOL.acquire(self)
        try:
            yield entry
        finally:
            POOL.release(entry)

    def reopen(self) -> int:
        try:
            fd = os.open(self.path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
        except OSError as error:
            raise errors.reading(self.path, error) from None
        try:
            self._check(os.fstat(fd))
        except BaseException:
            os.close(fd)
            raise
        return fd

    def check_size(self, fd: int) -> None:
        """Refuse to go on when the file has shrunk: a mapping would die of SIGBUS there."""
        self._check(os.fstat(fd))

    def _check(self, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise errors.UnsupportedError(f"{self.path}: is not a regular file any more; open it again")
        if self.key[1:] != (status.st_dev, status.st_ino):
            raise errors.FileChangedError(
                f"{self.path}: was replaced by another file since it was opened; open it again"
            )
        if status.st_size < self.size:
            raise errors.TruncatedFileError(
                f"{self.path}: has {status.st_size} bytes and had {self.size} when it was opened: "
                f"it was cut short meanwhile; restore it and open it again"
            )

    def close(self) -> None:
        POOL.discard(self.key)


def _limit() -> int:
    """A quarter of what the process may open, and never more than 512."""
    try:
        import resource
    except ImportError:  # Windows has no such limit that Python can ask for
        return 512
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 512 if soft == resource.RLIM_INFINITY else max(8, min(512, soft // 4))


POOL = DescriptorPool(_limit())
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=POOL.after_fork)

"""Open descriptors, few of them: thousands of arrays may be open, but only so many files at once.

A ``File`` knows a path and what the file looked like when it was opened. It borrows a descriptor for the
length of one read; the least recently used ones are closed behind it and opened again when needed, and a
file that was replaced in the meantime is noticed then.
"""

from __future__ import annotations

import errno
import mmap
import os
import platform
import stat
import sys
import threading
from collections import OrderedDict, deque
from contextlib import suppress

from lowtide import errors

_Key = tuple[str, int, int, int]  # path, device, inode, generation of the inode


class Entry:
    """One open descriptor and, once a mapped reader asked for it, one mapping."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.users = 0
        self._random = False
        self.doomed = False
        self._map: mmap.mmap | None = None

    def advise(self, *, random: bool) -> None:
        """Turn the kernel's own read-ahead off for random reads, on for reads in order."""
        if self._random != random and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_RANDOM if random else os.POSIX_FADV_NORMAL)
            self._random = random

    def mapping(self, size: int) -> mmap.mmap:
        """A read-only mapping of at least the first ``size`` bytes; kept with the descriptor."""
        mapped = self._map
        if mapped is None or len(mapped) < size:  # the file may have grown between two arrays on it
            self._map = mapped = map_file(self.fd, 0, size)
        return mapped

    def close(self) -> None:
        if self._map is not None:
            unmap(self._map)
        os.close(self.fd)

    # Whoever acquired it uses it for the length of a block.

    def __enter__(self) -> Entry:
        return self

    def __exit__(self, *raised: object) -> None:
        POOL.release(self)


def map_file(fd: int, start: int, stop: int) -> mmap.mmap:
    """A read-only mapping of bytes ``start`` to ``stop``; ``start`` on a page border.

    It is kept out of core dumps: a dump of a process that maps 100 GB would otherwise hold them.
    """
    mapped = mmap.mmap(fd, stop - start, access=mmap.ACCESS_READ, offset=start)
    if hasattr(mmap, "MADV_DONTDUMP"):
        mapped.madvise(mmap.MADV_DONTDUMP)
    return mapped


def unmap(mapped: mmap.mmap) -> None:
    """Give a mapping back now, or, if the traceback of a failed read still refers to it, along with that."""
    with suppress(BufferError):
        mapped.close()


class DescriptorPool:
    """At most ``limit`` open files; the least recently used one that is idle is closed first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._entries: OrderedDict[_Key, Entry] = OrderedDict()
        self._lock = threading.Lock()
        self._discarded: deque[_Key] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def acquire(self, file: File) -> Entry:
        with self._lock:
            entry = self._entries.get(file.key)
            if entry is None:
                entry = Entry(self._open(file))
                self._entries[file.key] = entry
            entry.users += 1
            self._entries.move_to_end(file.key)
            if len(self._entries) > self.limit:
                self._evict(self.limit)
        if self._discarded:
            self._sweep()
        return entry

    def release(self, entry: Entry) -> None:
        with self._lock:
            entry.users -= 1
            if entry.doomed and not entry.users:
                entry.close()
        if self._discarded:
            self._sweep()

    def discard(self, key: _Key) -> None:
        """Close the file's descriptor now, or as soon as the last read on it has ended.

        Never waits: the garbage collector may call this in a thread that holds the lock. Whoever holds it
        sweeps when done.
        """
        self._discarded.append(key)
        self._sweep()

    def _sweep(self) -> None:
        while self._discarded and self._lock.acquire(blocking=False):
            try:
                entry = self._entries.pop(self._discarded.popleft(), None)
                if entry is not None:
                    self._doom(entry)
            except IndexError:  # another thread was faster
                pass
            finally:
                self._lock.release()

    def _open(self, file: File) -> int:
        try:
            return file.reopen()
        except OSError as error:
            if error.errno != errno.EMFILE or not self._entries:
                raise
        # Others took what the process may open; what lies idle here can be opened again later.
        self._evict(0)
        return file.reopen()

    def _evict(self, limit: int) -> None:
        excess = len(self._entries) - limit
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
        self.path = path
        self.size = size
        fd = self._open()
        try:
            status = os.fstat(fd)
            self.key: _Key = self._identity(fd, status)
            self._check(status)
        finally:
            os.close(fd)

    def opened(self) -> Entry:
        """Borrow the file's descriptor; it stays open until the block ends."""
        return POOL.acquire(self)

    def reopen(self) -> int:
        """A new descriptor of the same file, or an error where another one has taken its place."""
        fd = self._open()
        try:
            status = os.fstat(fd)
            self._check(status)
            if self.key != self._identity(fd, status):
                raise errors.FileChangedError(
                    f"{self.path}: was replaced by another file since it was opened; open it again"
                )
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _open(self) -> int:
        # Should a pipe have taken the file's place, opening it must not wait for a writer.
        flags = [getattr(os, name, 0) for name in ("O_CLOEXEC", "O_BINARY", "O_NONBLOCK")]
        try:
            return os.open(self.path, os.O_RDONLY | sum(flags))
        except OSError as error:
            raise errors.reading(self.path, error) from None

    def _identity(self, fd: int, status: os.stat_result) -> _Key:
        return self.path, status.st_dev, status.st_ino, _generation(fd)

    def check_size(self, fd: int) -> None:
        """Refuse to go on when the file has shrunk: a mapping would die of SIGBUS there."""
        self._check(os.fstat(fd))

    def _check(self, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise errors.UnsupportedError(f"{self.path}: is not a regular file any more; open it again")
        if status.st_size < self.size:
            raise errors.TruncatedFileError(
                f"{self.path}: has {status.st_size} bytes and had {self.size} when it was opened: "
                f"it was cut short meanwhile; restore it and open it again"
            )

    def close(self) -> None:
        POOL.discard(self.key)


def _generation(fd: int) -> int:
    """Tells a file from an older one with the same inode number, which ext4 gives out again at once.

    0 where the file system does not say. ``FS_IOC_GETVERSION`` of linux/fs.h.
    """
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64", "riscv64"):
        return 0
    import fcntl

    try:
        return int.from_bytes(fcntl.ioctl(fd, 0x80087601, bytes(8)), sys.byteorder)
    except OSError:
        return 0


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

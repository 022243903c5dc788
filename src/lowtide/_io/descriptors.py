"""Open descriptors, few of them: thousands of arrays may be open, but only so many files at once.

A ``File`` knows a path and what the file looked like when it was opened. It borrows a descriptor for the
length of one read; the least recently used ones are closed behind it and opened again when needed. A file
that was replaced meanwhile is noticed then, and one that was written to after the next read.
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
from datetime import datetime

from lowtide import errors
from lowtide._io.identity import Identity

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
        # Reentrant: a signal handler or a finalizer may read in a thread that is in the middle of `acquire`.
        # Such a nested call borrows and gives back, and leaves closing to the call that it interrupted.
        self._lock = threading.RLock()
        self._entered = 0
        self._discarded: deque[_Key] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def acquire(self, file: File) -> Entry:
        with self._lock:
            self._entered += 1
            try:
                entry = self._entries.get(file.key)
                if entry is None:
                    opened = Entry(self._open(file))
                    entry = self._entries.setdefault(file.key, opened)
                    if entry is not opened:  # a nested call was faster
                        opened.close()
                entry.users += 1
                self._entries.move_to_end(file.key)
                if len(self._entries) > self.limit:
                    self._evict(self.limit)
            finally:
                self._entered -= 1
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
                if self._entered:  # this very thread is in `acquire`, and sweeps when it leaves
                    return
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
        if excess <= 0 or self._entered > 1:
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
        self._lock = threading.RLock()
        self._entered = 0
        for entry in self._entries.values():
            entry.users = 0


class File:
    """A path, and the identity that the file had when it was inspected.

    ``size`` bytes of it count. Without an ``identity`` it is taken now, and the file may grow.
    """

    def __init__(self, path: str, size: int, identity: Identity | None = None) -> None:
        self.path = path
        self.size = size
        fd = self._open()
        try:
            status = os.fstat(fd)
            self._check_regular(status)
            self.key: _Key = self._key(fd, status)
            self._identity = identity or Identity.of(status, samples=())
            self._seen = (self._identity.mtime_ns, self._identity.size)  # last found to be right
            if not self._identity.same_file(status):
                raise self._replaced()
            self._check(fd, status)
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
            self._check_regular(status)
            if self.key != self._key(fd, status):
                raise self._replaced()
            self._check(fd, status)
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

    def _key(self, fd: int, status: os.stat_result) -> _Key:
        return self.path, status.st_dev, status.st_ino, _generation(fd)

    def check(self, fd: int) -> None:
        """Raise if the file was written to or truncated since it was opened.

        After a read, so that what was read cannot be newer than the check; for a mapping before it too, since
        it would die of SIGBUS where the file has shrunk.
        """
        self._check(fd, os.fstat(fd))

    def check_path(self) -> None:
        """Raise if another file has taken this one's place under its path, or if it was written to."""
        try:
            status = os.stat(self.path)
        except OSError:
            return  # deleted: who has it open still reads the old one
        with self.opened() as entry:
            if self.key[1:3] != (status.st_dev, status.st_ino):
                raise self._replaced()
            self.check(entry.fd)

    def _replaced(self) -> errors.FileChangedError:
        return errors.FileChangedError(
            errno.ESTALE, "was replaced by another file since it was opened; open it again", self.path
        )

    def _check_regular(self, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise errors.UnsupportedError(f"{self.path}: is not a regular file any more; open it again")

    def _check(self, fd: int, status: os.stat_result) -> None:
        if (status.st_mtime_ns, status.st_size) == self._seen:
            return
        if status.st_size < self.size:
            raise errors.TruncatedFileError(
                f"{self.path}: was truncated since it was opened ({status.st_size} bytes, expected "
                f"{self.size}); restore it and open it again"
            )
        if not self._identity.only_grew(fd, status, self.size):
            raise errors.FileChangedError(
                errno.ESTALE,
                f"was written to since it was opened (it had {self._identity.size} bytes, modified at "
                f"{_time(self._identity.mtime_ns)}, and has {status.st_size}, modified at "
                f"{_time(status.st_mtime_ns)}); open it again",
                self.path,
            )
        self._seen = (status.st_mtime_ns, status.st_size)

    def close(self) -> None:
        POOL.discard(self.key)


def _time(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds / 1e9).isoformat(sep=" ", timespec="microseconds")


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

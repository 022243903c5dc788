"""A pool of open descriptors: thousands of arrays may be open, but only a limited number of files.

A ``File`` has a path and the identity of the file when it was opened. It borrows a descriptor for each read;
the least recently used ones are closed meanwhile, and opened again when needed. That is when a file that was
replaced is noticed; one that was written to is noticed after the next read.
"""

from __future__ import annotations

import errno
import mmap
import os
import platform
import stat
import sys
from collections import deque
from contextlib import suppress
from datetime import datetime
from itertools import count

from lowtide import errors
from lowtide._io import pagecache
from lowtide._io.identity import Identity
from lowtide._io.system import READ_FLAGS, after_fork

_Key = tuple[str, int, int, int]  # path, device, inode, generation of the inode


class Entry:
    """One open descriptor and, if a mapped reader needs it, one mapping.

    Borrowing takes no lock: a user adds or removes its item of ``users``, and looks at ``doomed`` after that.
    The pool sets ``doomed`` before it looks at ``users``. So one of them sees the other, and the last of them
    closes the descriptor, once.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.users: deque[None] = deque()
        self.used = 0
        """Grows with every use of any descriptor."""
        self.random = False
        """Whether the kernel's own read-ahead is off."""
        self.doomed = False
        self._open = [fd]
        self._map: mmap.mmap | None = None

    def advise(self, *, random: bool) -> None:
        """``pagecache.advise``, if it is a change."""
        if self.random != random:
            pagecache.advise(self.fd, random=random)
            self.random = random

    def borrow(self) -> bool:
        """Become a user; False if it is about to be closed."""
        self.users.append(None)
        self.used = next(_USES)
        if self.doomed:
            self.release()
            return False
        return True

    def release(self) -> None:
        """Stop being a user."""
        self.users.pop()
        if self.doomed and not self.users:
            self.close()

    def doom(self) -> None:
        """Close it now, or as soon as the last read on it has ended."""
        self.doomed = True
        if not self.users:
            self.close()

    def mapping(self, size: int) -> mmap.mmap:
        """A read-only mapping of at least the first ``size`` bytes; kept with the descriptor."""
        mapped = self._map
        if mapped is None or len(mapped) < size:  # the file may have grown between two arrays on it
            self._map = mapped = map_file(self.fd, 0, size)
        return mapped

    def close(self) -> None:
        try:
            fd = self._open.pop()
        except IndexError:  # another user was the last
            return
        if self._map is not None:
            unmap(self._map)
        os.close(fd)

    # After borrow(): release at the end of a block.

    def __enter__(self) -> Entry:
        return self

    def __exit__(self, *raised: object) -> None:
        self.release()


def map_file(fd: int, start: int, stop: int) -> mmap.mmap:
    """A read-only mapping of bytes ``start`` to ``stop``; ``start`` is a multiple of the page size.

    It is left out of core dumps, which would otherwise contain all of the file.
    """
    mapped = mmap.mmap(fd, stop - start, access=mmap.ACCESS_READ, offset=start)
    if hasattr(mmap, "MADV_DONTDUMP"):
        mapped.madvise(mmap.MADV_DONTDUMP)
    return mapped


def unmap(mapped: mmap.mmap) -> None:
    """Unmap now or, if the traceback of a failed read still refers to the mapping, together with that."""
    with suppress(BufferError):
        mapped.close()


class DescriptorPool:
    """At most ``limit`` open files; the least recently used ones that are idle are closed first.

    There is no lock: a signal handler or a finalizer may read in a thread that is in the middle of
    ``acquire``, and wait for another thread that needs a descriptor too, which would be a deadlock. Instead,
    each step is one operation of a dict, and the thread that removes an entry dooms it.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._entries: dict[_Key, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def acquire(self, file: File) -> Entry:
        while True:
            entry = self._entries.get(file.key)
            if entry is None:
                if len(self._entries) >= self.limit:
                    self._evict(self.limit - max(1, self.limit // 8))  # several: each time all are sorted
                opened = Entry(self._open(file))
                opened.borrow()
                entry = self._entries.setdefault(file.key, opened)
                if entry is opened:
                    return entry
                opened.close()  # another thread was faster
            if entry.borrow():
                return entry

    def discard(self, key: _Key) -> None:
        """Close the file's descriptor now, or as soon as the last read on it has ended."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            entry.doom()

    def _open(self, file: File) -> int:
        try:
            return file.reopen()
        except OSError as error:
            if error.errno != errno.EMFILE or not self._entries:
                raise
        # The process has no descriptors left; those that are idle here can be opened again later.
        self._evict(0)
        return file.reopen()

    def _evict(self, limit: int) -> None:
        entries = self._entries.copy()
        idle = sorted((entry.used, key) for key, entry in entries.items() if not entry.users)
        for _, key in idle[: max(0, len(entries) - limit)]:
            self.discard(key)

    def after_fork(self) -> None:
        """In a forked child: the parent's other threads, and what they held, are not here."""
        for entry in self._entries.values():
            entry.users.clear()


class File:
    """A path, and the identity that the file had when it was inspected.

    Only the first ``size`` bytes are read. By default ``identity`` is that of now, and the file may grow.
    """

    def __init__(self, path: str, size: int, identity: Identity | None = None) -> None:
        self.path = path
        self.size = size
        fd, status = self._open()
        try:
            self.key: _Key = self._key(fd, status)
            self._identity = identity or Identity.of(status, samples=())
            self.seen = self._identity.size, self._identity.mtime_ns
            """Size and modification time at the last check that passed."""
            self.entry: Entry | None = None
            """The descriptor of the last read; it may have been closed since."""
            if not self._identity.same_file(status):
                raise self._replaced()
            self._check(fd, status)
        finally:
            os.close(fd)

    def opened(self) -> Entry:
        """Borrow the file's descriptor; it stays open until the block ends."""
        entry = self.entry
        if entry is None or not entry.borrow():
            self.entry = entry = POOL.acquire(self)
        return entry

    def reopen(self) -> int:
        """A new descriptor of the same file; an error if another file has taken its place."""
        fd, status = self._open()
        try:
            if self.key != self._key(fd, status):
                raise self._replaced()
            self._check(fd, status)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _open(self) -> tuple[int, os.stat_result]:
        with errors.read_errors(self.path):
            fd = os.open(self.path, READ_FLAGS)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(fd)
            raise errors.UnsupportedError(f"{self.path}: is not a regular file any more; open it again")
        return fd, status

    def _key(self, fd: int, status: os.stat_result) -> _Key:
        return self.path, status.st_dev, status.st_ino, _generation(fd)

    def check(self, fd: int) -> None:
        """Raise if the file, open as ``fd``, was written to or truncated since it was opened.

        Called after a read, so that what was read cannot be newer than the check; with a mapping before it
        too, since to read one of a file that has shrunk ends the process with SIGBUS.
        """
        self._check(fd, os.fstat(fd))

    def check_path(self) -> None:
        """Raise if another file has taken this one's place under its path, or if it was written to."""
        try:
            status = os.stat(self.path)
        except OSError:
            return  # deleted: readers that have it open still read it
        with self.opened() as entry:
            if self.key[1:3] != (status.st_dev, status.st_ino):
                raise self._replaced()
            self.check(entry.fd)

    def _replaced(self) -> errors.FileChangedError:
        return errors.changed(self.path, "was replaced by another file since it was opened; open it again")

    def _check(self, fd: int, status: os.stat_result) -> None:
        seen = status.st_size, status.st_mtime_ns
        if seen == self.seen:
            return
        if status.st_size < self.size:
            raise errors.TruncatedFileError(
                f"{self.path}: was truncated since it was opened ({status.st_size} bytes, expected "
                f"{self.size}); restore it and open it again"
            )
        if not self._identity.only_grew(fd, status, self.size):
            raise errors.changed(
                self.path,
                f"was written to since it was opened (it had {self._identity.size} bytes, modified at "
                f"{_time(self._identity.mtime_ns)}, and has {status.st_size}, modified at "
                f"{_time(status.st_mtime_ns)}); open it again",
            )
        self.seen = seen

    def close(self) -> None:
        POOL.discard(self.key)


def _time(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds / 1e9).isoformat(sep=" ", timespec="microseconds")


def _generation(fd: int) -> int:
    """The generation of an inode, since ext4 reuses inode numbers at once; 0 where it is not known.

    ``FS_IOC_GETVERSION`` of linux/fs.h.
    """
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64", "riscv64"):
        return 0
    import fcntl

    try:
        return int.from_bytes(fcntl.ioctl(fd, 0x80087601, bytes(8)), sys.byteorder)
    except OSError:
        return 0


def _limit() -> int:
    """A quarter of the files that the process may open, and at most 512."""
    try:
        import resource
    except ImportError:  # Windows: Python cannot ask for a limit
        return 512
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 512 if soft == resource.RLIM_INFINITY else max(8, min(512, soft // 4))


_USES = count(1)
POOL = DescriptorPool(_limit())
after_fork(POOL.after_fork)

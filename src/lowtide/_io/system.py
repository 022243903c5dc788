"""System calls that some platforms lack, and their substitutes.

Windows has no ``pread`` and ``pwrite``, Windows and macOS no ``fdatasync``. There a seek and a read or write
replace them, in one thread at a time, since the position belongs to the descriptor.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

READ_FLAGS = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
"""How data files are opened: if a pipe has taken a file's place, opening it must not wait for a writer."""
_SEEKING = threading.RLock()


def read_at(fd: int, out: memoryview, offset: int) -> int:
    """Read into ``out`` from byte ``offset`` on; return the number of bytes, 0 at the end of the file."""
    if hasattr(os, "preadv"):
        return os.preadv(fd, [out], offset)
    data = bytes_at(fd, len(out), offset)
    out[: len(data)] = data
    return len(data)


def bytes_at(fd: int, count: int, offset: int) -> bytes:
    """At most ``count`` bytes from byte ``offset`` on."""
    if hasattr(os, "pread"):
        return os.pread(fd, count, offset)
    with _SEEKING:
        os.lseek(fd, offset, os.SEEK_SET)
        return os.read(fd, count)


def write_at(fd: int, data: memoryview, offset: int) -> None:
    """Write every byte of ``data`` from byte ``offset`` on."""
    while len(data):
        if hasattr(os, "pwrite"):
            written = os.pwrite(fd, data, offset)
        else:
            with _SEEKING:
                os.lseek(fd, offset, os.SEEK_SET)
                written = os.write(fd, data)
        data, offset = data[written:], offset + written


def cache_folder() -> str:
    """The user's folder for files that lowtide can create again."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "lowtide")


def cores() -> int:
    """Processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def after_fork(function: Callable[[], None]) -> Callable[[], None]:
    """A decorator: call the function in each forked child, where the system has forks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)
    return function


def sync_data(fd: int) -> None:
    """Sync the content of a file to disk, perhaps without its times."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:
        os.fsync(fd)

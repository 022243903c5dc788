"""Status: size and modification time of an open file, at half the cost of ``os.fstat``.

They are asked for after every read. ``os.fstat`` builds an object of some twenty numbers, which takes longer
than the system call; on platforms whose ``struct stat`` is known, the three that count are taken from it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from collections import deque
from typing import Any

Stamp = tuple[int, int, int]
"""Size in bytes, and modification time in seconds and nanoseconds."""

# In the struct stat of 64-bit Linux, x86-64 and the generic one alike.
_fields_of = struct.Struct("<48xq32xqq").unpack_from
_STRUCT_NBYTES = 256  # more than any of them
_NANO = 10**9
_Buffer = tuple[ctypes.Array[ctypes.c_char], ctypes.c_int, ctypes.c_void_p]


class Status:
    """Asks for the stamp of one descriptor. Any number of threads may ask at once."""

    __slots__ = ("_fd", "_idle", "_known")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._idle: deque[_Buffer] = deque()
        self._known = _FSTAT is not None
        self._known = self._known and self.stamp() == of_result(os.fstat(fd))

    def stamp(self) -> Stamp:
        """What it is now."""
        if not self._known:
            return of_result(os.fstat(self._fd))
        idle = self._idle
        try:
            buffer = idle.pop()  # its own for each call: the interpreter lock is released in it
        except IndexError:
            buffer = _buffer(self._fd)
        content, fd, address = buffer
        failed = _FSTAT(fd, address)
        stamp = _fields_of(content)
        idle.append(buffer)
        return of_result(os.fstat(self._fd)) if failed else stamp


def _buffer(fd: int) -> _Buffer:
    """A buffer for an answer, and the arguments of the call, converted once."""
    content = ctypes.create_string_buffer(_STRUCT_NBYTES)
    return content, ctypes.c_int(fd), ctypes.c_void_p(ctypes.addressof(content))


def of_result(status: os.stat_result) -> Stamp:
    """The stamp in what ``os.stat`` returned."""
    return (status.st_size, *divmod(status.st_mtime_ns, _NANO))


def _function() -> Any:
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64", "riscv64"):
        return None
    if sys.maxsize < 2**32 or sys.byteorder != "little":
        return None
    return getattr(ctypes.CDLL(None), "fstat", None)  # glibc before 2.33 has no function of that name


_FSTAT: Any = _function()

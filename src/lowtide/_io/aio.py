"""Many reads in one system call: Linux AIO, called through ctypes.

``io_submit`` on an ordinary (buffered) descriptor performs the reads of a whole list before it returns,
inside the kernel and without the interpreter lock. Against a Python loop of ``os.preadv`` that is 1.6 times
as fast on one thread, and it runs on several at once. io_uring was measured too and gave the same speed,
but container runtimes forbid it by default, while these calls are older than containers and allowed there.

Nothing here is asynchronous: when ``Aio.read`` returns, every buffer is filled or its error is known.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide._io.extents import Bytes, Extents, Ints

DEPTH = 1024  # reads per call: beyond this the cost of a call no longer shows

_CALLS = {  # io_setup, io_destroy, io_getevents, io_submit
    "x86_64": (206, 207, 208, 209),
    "aarch64": (0, 1, 4, 2),
    "riscv64": (0, 1, 4, 2),
}.get(platform.machine())

# struct iocb and struct io_event of linux/aio_abi.h, on little-endian machines; opcode 0 is a pread
_REQUEST = np.dtype(
    [
        ("data", "<i8"),
        ("key", "<u4"),
        ("flags", "<i4"),
        ("opcode", "<u2"),
        ("priority", "<i2"),
        ("fd", "<u4"),
        ("buffer", "<i8"),
        ("length", "<i8"),
        ("offset", "<i8"),
        ("reserved", "<u8"),
        ("aio_flags", "<u4"),
        ("result_fd", "<u4"),
    ]
)
_EVENT = np.dtype([("data", "<i8"), ("request", "<u8"), ("result", "<i8"), ("more", "<i8")])


class Aio:
    """One kernel context, for one call at a time."""

    def __init__(self, calls: tuple[int, int, int, int]) -> None:
        self._context = ctypes.c_ulong(0)
        self._requests = np.zeros(DEPTH, _REQUEST)
        self._requests["data"] = np.arange(DEPTH)
        self._pointers = address_of(self._requests) + np.arange(DEPTH, dtype=np.uint64) * _REQUEST.itemsize
        self._events = np.zeros(DEPTH, _EVENT)
        # NumPy takes longer to return an array's address, or to find a field, than the kernel to read a row.
        self._pointers_at, self._events_at = address_of(self._pointers), address_of(self._events)
        names = ("fd", "flags", "offset", "length", "buffer")
        self._fd, self._flags, self._offset, self._length, self._buffer = (
            self._requests[name] for name in names
        )
        self._ended, self._result = self._events["data"], self._events["result"]
        self._descriptor: object = None
        self._lengths = self._targets = _NOTHING
        self._base = 0
        self._setup, self._destroy, self._getevents, self._submit = calls
        self._pid = os.getpid()
        _call(self._setup, DEPTH, ctypes.byref(self._context))

    def read(self, fd: int | Ints, extents: Extents, base: int, flags: int) -> Ints:
        """Read at most ``DEPTH`` extents to ``base + target``; return the bytes read of each, or -errno.

        If all of them are complete, it is ``extents.lengths`` itself, which the caller must not change.
        """
        count = len(extents)
        self._prepare(fd, extents, base, flags)
        self._offset[:count] = extents.offsets
        pointers, events = self._pointers_at, self._events_at
        try:
            submitted = 0
            while submitted < count:
                submitted += _call(
                    self._submit,
                    self._context,
                    ctypes.c_long(count - submitted),
                    ctypes.c_void_p(pointers + 8 * submitted),
                )
            ended = 0
            while ended < count:
                left = ctypes.c_long(count - ended)
                into = ctypes.c_void_p(events + _EVENT.itemsize * ended)
                ended += _call(self._getevents, self._context, left, left, into, None)
        except BaseException:
            # After an interrupt between the two calls, the next read would find results of this one.
            self.close()
            raise
        if self._result[:count].tobytes() == extents.lengths.tobytes():
            return extents.lengths  # in any order of completion: none can be longer than its extent
        results = np.empty(count, np.int64)
        results[self._ended[:count]] = self._result[:count]
        return results

    def _prepare(self, fd: int | Ints, extents: Extents, base: int, flags: int) -> None:
        """Fill in the requests, except for fields that are the same as in the last call.

        Lengths and targets count as the same if they are the same read-only array.
        """
        count, lengths, targets = len(extents), extents.lengths, extents.targets
        descriptor = (fd, flags) if isinstance(fd, int) else None
        if lengths is not self._lengths or descriptor is None or descriptor != self._descriptor:
            self._fd[:count] = fd
            self._flags[:count] = flags
            self._length[:count] = lengths
            self._lengths = _NOTHING if lengths.flags.writeable else lengths
            self._descriptor = descriptor
        if targets is not self._targets or base != self._base:
            np.add(targets, base, self._buffer[:count])
            self._targets = _NOTHING if targets.flags.writeable else targets
            self._base = base

    def close(self) -> None:
        """Release the context; waits for queued reads, so that no buffer is written to later."""
        if self._context.value and self._pid == os.getpid():
            _LIBC.syscall(self._destroy, self._context)
        self._context = ctypes.c_ulong(0)

    @property
    def closed(self) -> bool:
        return not self._context.value or self._pid != os.getpid()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At exit the kernel ends all contexts with the process, and the names that `close` uses may be gone.
        # A context whose creation failed lacks attributes.
        if not is_finalizing() and hasattr(self, "_pid"):
            self.close()


def read(fd: int | Ints, extents: Extents, out: Bytes, flags: int) -> Ints | None:
    """Return the bytes read of each extent, or -errno; None where the kernel does not allow these calls.

    Each call takes an idle context, since a signal handler or a finalizer may read in the middle of another
    read of the same thread.
    """
    context = _idle() or _new()
    if context is None:
        return None
    try:
        results = context.read(fd, extents, address_of(out), flags)
    except OSError:  # a file system without these calls, or no room in the kernel
        return None
    _IDLE.append(context)  # to end a context takes the kernel some 30 ms
    return results


def available() -> bool:
    """Whether the kernel provides a context."""
    context = _idle() or _new()
    if context is not None:
        _IDLE.append(context)
    return context is not None


def _idle() -> Aio | None:
    while True:
        try:
            context = _IDLE.pop()
        except IndexError:
            return None
        if not context.closed:
            return context


def _new() -> Aio | None:
    if _CALLS is None or sys.platform != "linux" or sys.byteorder != "little" or sys.maxsize < 2**32:
        return None
    try:
        return Aio(_CALLS)
    except OSError:  # forbidden by seccomp, compiled out, or /proc/sys/fs/aio-max-nr used up
        return None


def address_of(array: npt.NDArray[Any]) -> int:
    """The address of an array's first byte."""
    if array.nbytes and array.flags.writeable and array.flags.c_contiguous:
        return ctypes.addressof(ctypes.c_char.from_buffer(array.data))  # a fifth of the time
    address: int = array.ctypes.data
    return address


def _call(number: int, *arguments: object) -> int:
    while True:
        result: int = _LIBC.syscall(number, *arguments)
        if result >= 0:
            return result
        code = ctypes.get_errno()
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))


_NOTHING: Ints = np.empty(0, np.int64)
_IDLE: deque[Aio] = deque()
_LIBC: Any = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
if _LIBC is not None:
    _LIBC.syscall.restype = ctypes.c_long

"""Files that are complete and on disk, or not there.

A ``Partial`` is written beside its final name, as ``.NAME.partial``, and renamed over it when everything is
on disk. It is locked meanwhile, so that two writers cannot mix; what a killed writer left behind is not
locked and is simply written over by the next one.
"""

from __future__ import annotations

import ctypes
import os
import sys
import weakref
from contextlib import suppress
from types import ModuleType

from lowtide import errors

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows: no advisory locks, and no two writers expected
    fcntl = None

_PACE = 8 * 2**20  # bytes written before the kernel is set to write them out
_WAIT_WRITE_WAIT = 7  # SYNC_FILE_RANGE_WAIT_BEFORE | _WRITE | _WAIT_AFTER
_WRITE = 2


class Partial:
    """A file in the making."""

    def __init__(self, path: str) -> None:
        folder, name = os.path.split(os.path.abspath(path))
        self.path = os.path.join(folder, name)
        self._folder = folder
        self._temporary = os.path.join(folder, f".{name}.partial")
        if os.path.isdir(self.path):
            raise errors.NotAFileError(f"{self.path}: is a folder; name a file to write")
        self.fd = _open_locked(self._temporary, self.path)
        self._abort = weakref.finalize(self, _remove, self.fd, self._temporary)

    def publish(self) -> None:
        """Put everything on disk, then under its final name."""
        try:
            os.fsync(self.fd)
            if os.name == "nt":  # an open file cannot be renamed there
                os.close(self.fd)
            os.replace(self._temporary, self.path)
            sync_folder(self._folder)
        except OSError as error:
            self.abort()
            raise errors.writing(self.path, error) from error
        if self._abort.detach() and os.name != "nt":
            os.close(self.fd)

    def abort(self) -> None:
        """Remove what was written; idempotent."""
        self._abort()


def write_file(path: str, data: bytes) -> None:
    """A small file, whole or not at all."""
    partial = Partial(path)
    try:
        write_all(partial.fd, memoryview(data), 0)
    except OSError as error:
        partial.abort()
        raise errors.writing(path, error) from error
    partial.publish()


class Pace:
    """Keeps what is written but not yet on disk small, however much is written.

    Without it the kernel lets dirty pages pile up to a fifth of memory, all charged to the container.
    """

    def __init__(self, fd: int, start: int = 0) -> None:
        self._fd = fd
        self._begun = start  # set to be written out up to here
        self._done = start  # on disk up to here

    def wrote(self, end: int) -> None:
        """Everything before ``end`` has been written."""
        while end - self._begun >= _PACE:
            _sync_range(self._fd, self._begun, _PACE, _WRITE)
            if self._begun > self._done:
                self._settle(self._begun)
            self._begun += _PACE

    def _settle(self, end: int) -> None:
        _sync_range(self._fd, self._done, end - self._done, _WAIT_WRITE_WAIT)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, self._done, end - self._done, os.POSIX_FADV_DONTNEED)
        self._done = end


def write_all(fd: int, data: memoryview, offset: int) -> None:
    """Write every byte of ``data`` at ``offset``."""
    while len(data):
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written


def lock(fd: int) -> bool:
    """Take the file for this process; false when another one has it."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def sync_folder(folder: str) -> None:
    """Put a folder's entries on disk: without it a rename may be lost with the power."""
    if os.name == "nt":
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _open_locked(temporary: str, final: str) -> int:
    while True:
        try:
            fd = os.open(temporary, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
        except OSError as error:
            raise errors.writing(final, error) from None
        if not lock(fd):
            os.close(fd)
            raise errors.WriteError(
                f"{final}: is being written by another process (it holds {temporary}); wait for it to end"
            )
        try:
            same = os.path.samestat(os.fstat(fd), os.stat(temporary))
        except FileNotFoundError:
            same = False
        if same:  # else its last owner published or removed it between our two calls
            os.ftruncate(fd, 0)
            return fd
        os.close(fd)


def _remove(fd: int, temporary: str) -> None:
    with suppress(OSError):  # cleaning up after a failure must not hide the failure
        os.unlink(temporary)
    with suppress(OSError):
        os.close(fd)


def _sync_range(fd: int, offset: int, length: int, flags: int) -> None:
    if _SYNC_FILE_RANGE is not None:
        _SYNC_FILE_RANGE(fd, offset, length, flags)  # errors come back from the fsync at the end
    elif flags == _WAIT_WRITE_WAIT:
        os.fsync(fd)


_SYNC_FILE_RANGE = None
if sys.platform == "linux":
    _SYNC_FILE_RANGE = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if _SYNC_FILE_RANGE is not None:
        _SYNC_FILE_RANGE.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]

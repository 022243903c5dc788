"""The exceptions of lowtide.

Each one is a ``LowtideError`` and also the builtin that a caller would have caught from NumPy or the
operating system, so existing ``except OSError`` and ``except ValueError`` code keeps working. A message is
``{path}: {problem} ({found}, expected {expected}); {remedy}``.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Self

__all__ = [
    "AccessError",
    "ArgumentError",
    "BudgetError",
    "BusyError",
    "ClosedError",
    "ClusterError",
    "DiskFullError",
    "DivergedError",
    "FileChangedError",
    "FormatError",
    "IndexingError",
    "LowtideError",
    "MemberError",
    "MemoryBudgetExceeded",
    "MissingExtraError",
    "NotAFileError",
    "NotFoundError",
    "ProcessError",
    "ReadError",
    "StateError",
    "TaskError",
    "TruncatedFileError",
    "UnsupportedError",
    "WriteError",
]


_LONGEST_PATH = 4096  # of Linux, the longest of all systems


class LowtideError(Exception):
    """Base of every exception that lowtide raises on purpose."""

    def __str__(self) -> str:
        # OSError's own would be "[Errno 2] problem: 'path'"; the number stays in ``errno``.
        path, problem = getattr(self, "filename", None), getattr(self, "strerror", None)
        if path is None or not problem:
            return super().__str__()
        if len(path) > _LONGEST_PATH:  # no file has it: it comes from a damaged index
            path = f"{path[:200]}… ({len(path)} characters)"
        return f"{path or repr(path)}: {problem}"


class _FileError(LowtideError, OSError):
    """An ``OSError`` that always has its ``errno`` and ``filename``."""

    def __new__(cls, code: int, problem: str, filename: str) -> Self:
        return super().__new__(cls, code, problem, filename)

    def __reduce__(self) -> tuple[Any, ...]:
        # tblib, which Dask pickles exceptions with, would otherwise create an instance without arguments.
        return type(self), (self.errno, self.strerror, self.filename), self.__dict__ or None


class FormatError(LowtideError, ValueError):
    """A file contradicts itself or the format it claims to be."""


class TruncatedFileError(FormatError, EOFError):
    """A file ends before its data does: truncated, or still being written."""


class FileChangedError(_FileError):
    """A file was replaced or written to while it was open."""


class MemberError(LowtideError, KeyError):
    """A file has several members and none was specified, or the one specified does not exist."""

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return str(self.args[0]) if self.args else ""


class UnsupportedError(LowtideError, NotImplementedError):
    """The data is valid, but cannot be read in place or on this platform; the message says what can."""


class MissingExtraError(LowtideError, ImportError):
    """An optional dependency is not installed; the message contains the install command."""


# MemoryError has its own allocator. As the second base, its ``__new__`` could not create an instance, which
# Dask needs to copy the errors of its workers.
class BudgetError(MemoryError, LowtideError):
    """The budget is too small for the request, or a request is larger than its limit."""


class MemoryBudgetExceeded(MemoryError, LowtideError):  # noqa: N818 - reads as the event that it is
    """Memory exceeded the budget of a watch; the message has the figures and what grew."""


class ProcessError(_FileError, ProcessLookupError):
    """The process does not exist, or ended while it was measured."""


class ClosedError(LowtideError, ValueError):
    """An array, iterator or writer was used after it was closed."""


class BusyError(LowtideError, RuntimeError):
    """An iterator or a writer was used by a signal handler, a finalizer or a thread while it was in use."""


class StateError(LowtideError, ValueError):
    """A saved iterator state belongs to other data or other settings."""


class DivergedError(LowtideError, FloatingPointError):
    """The loss of a training run is no longer a number."""


class ArgumentError(LowtideError, ValueError):
    """An argument has an invalid value."""


class IndexingError(LowtideError, IndexError):
    """An index that NumPy rejects too, or that lowtide does not support."""


class ReadError(_FileError):
    """The operating system could not open or read a file."""


class NotFoundError(ReadError, FileNotFoundError):
    """The file does not exist."""


class NotAFileError(ReadError, IsADirectoryError):
    """The path is a folder, and a file is expected."""


class AccessError(ReadError, PermissionError):
    """This user may not read or write the file."""


class WriteError(_FileError):
    """Writing failed; nothing was published under the final name."""


class TaskError(LowtideError, RuntimeError):
    """A task of another process failed repeatedly."""


class ClusterError(_FileError, ConnectionError):
    """A Dask cluster does not answer, or has no workers."""


class DiskFullError(WriteError):
    """No space is left on the device."""


_REMEDIES: dict[int, tuple[type[ReadError], str]] = {
    errno.ENOENT: (NotFoundError, "no such file; check the path and the working directory"),
    errno.ENOTDIR: (ReadError, "a part of the path is a file, not a folder; check the path"),
    errno.EISDIR: (NotAFileError, "is a folder; pass a file inside it"),
    errno.EACCES: (AccessError, "permission denied; check the file's mode and owner"),
    errno.EPERM: (AccessError, "operation not permitted; check the file's mode and owner"),
    errno.EIO: (ReadError, "the device reported an I/O error; check the disk and the kernel log"),
    errno.ESTALE: (ReadError, "stale file handle; the network file system lost the file, open it again"),
    errno.EMFILE: (ReadError, "this process has too many open files; raise `ulimit -n`"),
}


class _DeniedWriteError(WriteError, PermissionError):
    """Writing is not allowed there."""


_FREE_SPACE = "free some space and run again (nothing was published)"
_CHECK_FOLDER = "check the folder's mode and owner"
_WRITE_REMEDIES: dict[int, tuple[type[WriteError], str]] = {
    errno.ENOENT: (WriteError, "no such file or directory; create its folder first"),
    errno.ELOOP: (WriteError, "the symbolic links form a loop; remove them, or pass the path of a file"),
    errno.ENOSPC: (DiskFullError, f"no space left on the device; {_FREE_SPACE}"),
    errno.EDQUOT: (DiskFullError, f"the disk quota is exceeded; {_FREE_SPACE}"),
    errno.EACCES: (_DeniedWriteError, f"permission denied; {_CHECK_FOLDER}"),
    errno.EPERM: (_DeniedWriteError, f"operation not permitted; {_CHECK_FOLDER}"),
    errno.EROFS: (_DeniedWriteError, f"read-only file system; {_CHECK_FOLDER}"),
}


def reading(path: str | os.PathLike[str], error: OSError) -> ReadError:
    """Return the lowtide exception for an ``OSError`` raised while opening or reading ``path``."""
    code = error.errno or errno.EIO
    kind, remedy = _REMEDIES.get(code, (ReadError, error.strerror or os.strerror(code)))
    return kind(code, remedy, os.fspath(path))


def writing(path: str | os.PathLike[str], error: OSError) -> WriteError:
    """Return the lowtide exception for an ``OSError`` raised while writing ``path``."""
    code = error.errno or errno.EIO
    kind, remedy = _WRITE_REMEDIES.get(code, (WriteError, (error.strerror or os.strerror(code)).lower()))
    return kind(code, remedy, os.fspath(path))


def missing(path: str | os.PathLike[str], problem: str) -> NotFoundError:
    """Return the exception for something that does not exist."""
    return NotFoundError(errno.ENOENT, problem, os.fspath(path))


def changed(path: str | os.PathLike[str], problem: str) -> FileChangedError:
    """Return the exception for a file that has changed."""
    return FileChangedError(errno.ESTALE, problem, os.fspath(path))


class _Translation:
    """Translates every ``OSError`` of a block into an exception of lowtide."""

    __slots__ = ("_path", "_translate")

    def __init__(self, translate: Callable[[Any, OSError], Exception], path: object) -> None:
        self._translate, self._path = translate, path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, LowtideError):
            raise self._translate(self._path, error) from error


def read_errors(path: str | os.PathLike[str]) -> AbstractContextManager[None]:
    """Raise every ``OSError`` of a block as the lowtide exception for reading ``path``."""
    return _Translation(reading, path)


def write_errors(path: str | os.PathLike[str]) -> AbstractContextManager[None]:
    """Raise every ``OSError`` of a block as the lowtide exception for writing ``path``."""
    return _Translation(writing, path)

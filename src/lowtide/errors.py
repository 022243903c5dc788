"""Every exception lowtide raises on purpose.

Each one is a ``LowtideError`` and also the builtin that a caller would have caught from NumPy or the
operating system, so existing ``except OSError`` and ``except ValueError`` code keeps working. Messages
name the file, the value found, the value expected and, where there is one, the remedy.
"""

from __future__ import annotations

import errno
import os


class LowtideError(Exception):
    """Base of every exception that lowtide raises on purpose."""

    def __str__(self) -> str:
        # OSError's own would be "[Errno 2] problem: 'path'"; the number stays in ``errno``.
        path, problem = getattr(self, "filename", None), getattr(self, "strerror", None)
        return f"{path or repr(path)}: {problem}" if path is not None and problem else super().__str__()


class FormatError(LowtideError, ValueError):
    """A file contradicts itself or the format it claims to be."""


class TruncatedFileError(FormatError, EOFError):
    """A file ends before the data it promises: cut short, or still being written."""


class FileChangedError(LowtideError, OSError):
    """The file under an open array was replaced or written to by somebody else."""


class MemberError(LowtideError, KeyError):
    """A file has several members and none, or one that is not there, was named."""

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return str(self.args[0]) if self.args else ""


class UnsupportedError(LowtideError, NotImplementedError):
    """The data is valid, but cannot be read in place or on this platform; the message says what can."""


class MissingExtraError(LowtideError, ImportError):
    """An optional dependency is not installed; the message holds the install command."""


# MemoryError makes its instances in a way of its own. Named second, ``__new__`` alone could not make one, as
# Dask does with the errors of its workers.
class BudgetError(MemoryError, LowtideError):
    """The memory asked for is too small for the job, or the job is larger than the memory allowed."""


class MemoryBudgetExceeded(MemoryError, LowtideError):  # noqa: N818 - reads as the event that it is
    """Memory passed the budget of a watch; the message holds the numbers and what grew."""


class ProcessError(LowtideError, ProcessLookupError):
    """There is no such process, or it ended while it was looked at."""


class ClosedError(LowtideError, ValueError):
    """An array, iterator or writer was used after it was closed."""


class BusyError(LowtideError, RuntimeError):
    """An iterator or a writer was used by a signal handler, a finalizer or a thread while it was in use."""


class StateError(LowtideError, ValueError):
    """A saved iterator state belongs to other data or other settings."""


class DivergedError(LowtideError, FloatingPointError):
    """The loss of a training run is no longer a number."""


class ArgumentError(LowtideError, ValueError):
    """An argument's value makes no sense."""


class IndexingError(LowtideError, IndexError):
    """An index that NumPy would refuse too, or that lowtide does not support."""


class ReadError(LowtideError, OSError):
    """The operating system refused to open or read a file."""


class NotFoundError(ReadError, FileNotFoundError):
    """The file is not there."""


class NotAFileError(ReadError, IsADirectoryError):
    """The path is a folder where a file is needed."""


class AccessError(ReadError, PermissionError):
    """The file may not be read or written by this user."""


class WriteError(LowtideError, OSError):
    """Writing failed; nothing was published under the final name."""


class TaskError(LowtideError, RuntimeError):
    """Work that was given to another process failed, and failed again when it was tried again."""


class ClusterError(LowtideError, ConnectionError):
    """A Dask cluster cannot be reached, or has no worker."""


class DiskFullError(WriteError):
    """No space is left where the file was to be written."""


_REMEDIES: dict[int, tuple[type[ReadError], str]] = {
    errno.ENOENT: (NotFoundError, "no such file; check the path and the working directory"),
    errno.ENOTDIR: (ReadError, "a file stands where the path needs a folder; check the path"),
    errno.EISDIR: (NotAFileError, "is a folder, and a file is needed; name a file inside it"),
    errno.EACCES: (AccessError, "permission denied; check the file's mode and owner"),
    errno.EPERM: (AccessError, "operation not permitted; check the file's mode and owner"),
    errno.EIO: (ReadError, "the device reported an I/O error; check the disk and the kernel log"),
    errno.ESTALE: (ReadError, "stale file handle; the network file system lost the file, open it again"),
    errno.EMFILE: (ReadError, "this process has too many open files; raise `ulimit -n`"),
}


_WRITE_PROBLEMS = {
    errno.ENOENT: "no such file or directory; create its folder first",
    errno.ELOOP: "the symbolic links form a loop; remove them, or pass the path of a file",
}


def reading(path: str | os.PathLike[str], error: OSError) -> ReadError:
    """The lowtide exception for an ``OSError`` met while opening or reading ``path``."""
    code = error.errno or errno.EIO
    kind, remedy = _REMEDIES.get(code, (ReadError, error.strerror or os.strerror(code)))
    return kind(code, remedy, os.fspath(path))


def writing(path: str | os.PathLike[str], error: OSError) -> WriteError:
    """The lowtide exception for an ``OSError`` met while writing ``path``."""
    code = error.errno or errno.EIO
    if code in (errno.ENOSPC, errno.EDQUOT):
        said = "no space left on the device" if code == errno.ENOSPC else "the disk quota is used up"
        return DiskFullError(code, f"{said}; nothing was published, free some space and run again", str(path))
    if code in (errno.EACCES, errno.EPERM, errno.EROFS):
        return _DeniedWriteError(
            code, f"{os.strerror(code).lower()}; check the folder's mode and owner", str(path)
        )
    problem = _WRITE_PROBLEMS.get(code) or (error.strerror or os.strerror(code)).lower()
    return WriteError(code, problem, str(path))


class _DeniedWriteError(WriteError, PermissionError):
    """Writing is not allowed there."""

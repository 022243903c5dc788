"""Files that are complete and on disk, or not there.

A ``Partial`` is written next to its final name, as ``.NAME.partial``, and renamed when everything is on disk.
It is locked meanwhile, so that two writers cannot mix. What a killed writer left behind is not locked, and
the next writer overwrites it. ``write_file`` does that for small files, ``new_folder`` for a folder;
``replace_file`` is for files that no other program writes.
"""

from __future__ import annotations

import atexit
import errno
import os
import re
import shutil
import stat
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Self

from lowtide import errors
from lowtide._io.store import absolute
from lowtide._io.system import after_fork, write_at

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows: no advisory locks, and no two writers expected
    fcntl = None

_HELD: weakref.WeakSet[Held] = weakref.WeakSet()
_PARTIAL = re.compile(r"\..+\.partial")
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)


class Held:
    """A locked descriptor through which this process writes ``path``, and the function that undoes it.

    The function is called when the object is dropped and when the interpreter exits. In a forked child the
    descriptor is closed, so that the child can neither undo what its parent writes nor keep it locked.
    """

    def __init__(self, path: str, fd: int, undo: Callable[..., None], *arguments: object) -> None:
        self.path = path
        self.fd = fd
        self._undo = weakref.finalize(self, undo, fd, *arguments)
        self._undo.atexit = False  # the exit handler of this module runs after that of the writers
        _HELD.add(self)

    @property
    def held(self) -> bool:
        """Whether this process still has to publish or undo it."""
        return self._undo.alive

    def abort(self) -> None:
        """Undo what was written; idempotent."""
        undo = self._undo.detach()
        if undo is not None:  # called here, since finalizers do nothing late in the interpreter's exit
            undo[1](*undo[2])

    def release(self) -> None:
        """Close the descriptor and leave what was written."""
        if self._undo.detach():
            with suppress(OSError):  # it is on disk, or belongs to the parent process
                os.close(self.fd)


class Partial(Held):
    """A file that is being written.

    It replaces the file at ``path``, with symbolic links followed, and takes over its mode and, where the
    system allows it, its owner and group. Extended attributes and access lists are those of a new file.
    """

    def __init__(self, path: str, *, keep: bool = False) -> None:
        """With ``keep``, the bytes of an earlier writer stay, and those of this one after a failure."""
        path = resolve(path)
        folder, name = os.path.split(path)
        self.temporary = os.path.join(folder, f".{name}.partial")
        """Where the bytes are until they are published."""
        super().__init__(path, _open_locked(self.temporary, path, keep), _undo, self.temporary, keep)

    def publish(self) -> None:
        """Put everything on disk, then under its final name."""
        if not self.held:
            raise errors.ClosedError(
                f"{self.path}: was already published or aborted, or belongs to a parent process"
            )
        with errors.write_errors(self.path):
            try:
                _keep_mode(self.fd, self.path)
                os.fsync(self.fd)
                if not is_at(self.fd, self.temporary):
                    raise errors.WriteError(
                        errno.ENOENT,
                        f"{self.temporary} was removed or replaced while it was being written; write it "
                        "again",
                        self.path,
                    )
                if os.name == "nt":  # an open file cannot be renamed there
                    os.close(self.fd)
                os.replace(self.temporary, self.path)
            except BaseException:
                self.abort()
                raise
            # From here on the temporary name may belong to another writer.
            self.release()
            sync_folder(os.path.dirname(self.path))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.publish()
        else:
            self.abort()


def resolve(path: str | os.PathLike[str]) -> str:
    """The file to write for ``path``, with links followed, even to a file that does not exist yet."""
    given = absolute(path)
    try:
        status = os.stat(given)
    except FileNotFoundError:
        return os.path.realpath(given)
    except OSError as error:
        raise errors.writing(given, error) from None
    if stat.S_ISDIR(status.st_mode):
        raise errors.NotAFileError(errno.EISDIR, "is a folder; pass the path of a file", given)
    if not stat.S_ISREG(status.st_mode):
        raise errors.UnsupportedError(f"{given}: is a device, a pipe or a socket; pass the path of a file")
    return os.path.realpath(given)


def leftovers(path: str) -> list[tuple[str, int]]:
    """The files, with sizes, that killed writers of ``path``, or of files in the folder ``path``, left."""
    folder, name = (path, "") if os.path.isdir(path) else os.path.split(os.path.realpath(path))
    files = []
    try:
        for entry in sorted(os.scandir(folder or "."), key=lambda entry: entry.name):
            partial = entry.name == f".{name}.partial" if name else _PARTIAL.fullmatch(entry.name)
            if partial and entry.is_file(follow_symlinks=False) and not _is_locked(entry.path):
                files.append((entry.path, entry.stat().st_size))
    except OSError:  # unreadable: nothing to list
        pass
    return files


def write_file(path: str, data: bytes) -> None:
    """Write a small file, all of it or nothing."""
    with errors.write_errors(path), Partial(path) as partial:
        write_at(partial.fd, memoryview(data), 0)


@contextmanager
def new_folder(path: str) -> Iterator[str]:
    """Create a folder to fill, ``.NAME.partial``, which is synced and renamed to ``path`` after the block.

    It is locked meanwhile. What a killed writer left in it is removed first. An exception in a forked child
    leaves it alone.
    """
    writer = os.getpid()
    parent, name = os.path.split(path)
    temporary = os.path.join(parent, f".{name}.partial")
    with errors.write_errors(path):
        os.makedirs(parent, exist_ok=True)
        fd = _open_locked_folder(temporary, path)
        try:
            yield temporary
            for name in os.listdir(temporary):
                with open(os.path.join(temporary, name), "rb+") as file:
                    os.fsync(file.fileno())
            sync_folder(temporary)
            os.replace(temporary, path)
        except BaseException:
            if os.getpid() == writer:
                shutil.rmtree(temporary, ignore_errors=True)
            raise
        finally:
            if fd is not None:
                os.close(fd)
        sync_folder(parent)


def replace_file(path: str, data: bytes, *, suffix: str = ".new", durable: bool = False) -> None:
    """Write a small file that no other process writes, all of it or nothing.

    It is written to ``path + suffix`` first. With ``durable`` it also survives a loss of power.
    """
    with errors.write_errors(path):
        with open(path + suffix, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(path + suffix, path)
        if durable:
            sync_folder(os.path.dirname(path))


def lock(fd: int, *, shared: bool = False, wait: bool = False) -> bool:
    """Lock a file for this process alone, or ``shared`` with others; false if another process has it.

    With ``wait`` until that process has released it: then a file system without locks is an error.
    """
    if fcntl is None:
        return True
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:  # some network file systems have no locks
        if wait or error.errno not in _NO_LOCKS:
            raise
    return True


def busy(path: str) -> errors.WriteError:
    """The error for a file that another process, or this one, has locked."""
    own = any(held.held and held.path == path for held in list(_HELD))
    problem = (
        "this process is already writing it; close or abort that writer first"
        if own
        else "is being written by another process; wait for it to end"
    )
    return errors.WriteError(errno.EBUSY, problem, path)


def is_at(fd: int, path: str) -> bool:
    """Whether ``path`` is still the file that ``fd`` was opened on."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def sync_folder(folder: str) -> None:
    """Sync the entries of a folder: otherwise a loss of power may undo a rename."""
    if os.name == "nt":
        return
    try:
        fd = os.open(folder, os.O_RDONLY)
    except PermissionError:  # a folder that may be written to, but not listed
        return
    try:
        os.fsync(fd)
    except OSError as error:  # some network file systems cannot, and need not
        if error.errno not in (errno.EINVAL, errno.EBADF, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)


def _open_locked(temporary: str, final: str, keep: bool) -> int:
    while True:
        with errors.write_errors(final):
            fd = os.open(temporary, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                if not lock(fd):
                    raise busy(final)
                if is_at(fd, temporary):  # else its owner published or removed it between open and lock
                    if not keep:
                        os.ftruncate(fd, 0)
                    _keep_mode(fd, final, stat.S_IRUSR | stat.S_IWUSR)
                    return fd
            except OSError:
                os.close(fd)
                raise
            os.close(fd)


def _open_locked_folder(temporary: str, final: str) -> int | None:
    """An empty folder, and a descriptor that keeps it locked where the system has locks."""
    fd = None
    while True:
        with suppress(FileExistsError):
            os.mkdir(temporary)
        if fcntl is None:
            break
        with suppress(FileNotFoundError):  # its owner has just published it
            fd = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            if not lock(fd):
                os.close(fd)
                raise busy(final)
            if is_at(fd, temporary):
                break
            os.close(fd)
    for entry in os.scandir(temporary):
        os.unlink(entry.path)
    return fd


def _keep_mode(fd: int, path: str, extra: int = 0) -> None:
    """Give a new file the mode and owner of the one that it replaces: a private file stays private."""
    try:
        old = os.stat(path)
    except FileNotFoundError:
        return
    if hasattr(os, "fchmod"):
        for uid, gid in ((-1, old.st_gid), (old.st_uid, -1)):
            with suppress(OSError):  # only root may change the owner
                os.fchown(fd, uid, gid)
        with suppress(OSError):  # some file systems have no modes
            os.fchmod(fd, old.st_mode & 0o777 | extra)


def _is_locked(path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:  # of another user, or gone: not a leftover to report
        return True
    try:
        return not lock(fd)
    finally:
        os.close(fd)


def _undo(fd: int, temporary: str, keep: bool) -> None:
    with suppress(OSError):  # cleaning up after a failure must not hide the failure
        if not keep:
            os.unlink(temporary)
    with suppress(OSError):
        os.close(fd)


def _abort_all() -> None:
    for held in list(_HELD):
        held.abort()


@after_fork
def _after_fork() -> None:
    for held in list(_HELD):
        held.release()


atexit.register(_abort_all)

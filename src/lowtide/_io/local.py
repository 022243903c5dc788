"""Local files as stores."""

from __future__ import annotations

import errno
import glob
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from lowtide import errors
from lowtide._io import pagecache
from lowtide._io.filesystem import HEAD, Entry, Filesystem, Found, Listing, Peek, Store
from lowtide._io.identity import Identity
from lowtide._io.system import READ_FLAGS, bytes_at
from lowtide.errors import LowtideError, UnsupportedError

_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}
_OTHERS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_SHORT = 2**20  # bytes; a caller that reads more than a header is likely to read all of the file


class LocalFile(Store):
    """An open regular file."""

    local = True

    def __init__(self, path: str, identity: Identity, fd: int) -> None:
        super().__init__(path, identity)
        self._fd = fd
        self._short = _SHORT
        # After a header the kernel's read-ahead would leave megabytes in the page cache, marked so that the
        # next read there reads ahead too, even through a descriptor for which read-ahead is off.
        pagecache.advise(fd, random=True)

    def read_some(self, offset: int, count: int) -> bytes:
        if self._short >= 0:
            self._short -= count
            if self._short < 0:
                pagecache.advise(self._fd, random=False)
        data = bytes_at(self._fd, count, offset)
        while len(data) < count and (more := bytes_at(self._fd, count - len(data), offset + len(data))):
            data += more  # the system may stop anywhere
        return data


class LocalFilesystem(Filesystem):
    """The files of the operating system."""

    def recognises(self, path: str) -> bool:
        return True

    def absolute(self, path: str) -> str:
        if "://" in path and (scheme := _SCHEME.match(path)) and not os.path.lexists(path):
            raise UnsupportedError(
                f"{path}: {scheme[0]} is not an address that lowtide reads; pass s3://, gs://, az:// or "
                f"https://, or the path of a local file"
            )
        with errors.read_errors(path):  # the working directory may be gone
            return os.path.abspath(path)

    def real(self, path: str) -> str:
        return os.path.realpath(path)

    @contextmanager
    def open(self, path: str) -> Iterator[Store]:
        with errors.read_errors(path):
            # Checked before opening, since opening a pipe waits for a writer and opening a device may act.
            _require_regular(path, os.stat(path))
            fd = os.open(path, READ_FLAGS)
            try:
                status = os.fstat(fd)
                _require_regular(path, status)
                yield LocalFile(path, Identity.of(status), fd)
            finally:
                os.close(fd)

    def peek(self, path: str) -> Peek:
        try:  # read_errors would add 5 % to the time of a look at a shard
            status = os.lstat(path)
            link = False
            if not stat.S_ISREG(status.st_mode):
                link = stat.S_ISLNK(status.st_mode)
                status = os.stat(path)
                _require_regular(path, status)
            fd = os.open(path, READ_FLAGS)
            try:
                pagecache.advise(fd, random=True)
                return Peek(path, os.read(fd, HEAD), link, Identity.of(status))
            finally:
                os.close(fd)
        except LowtideError:
            raise
        except OSError as error:
            raise errors.reading(path, error) from error

    def entry(self, path: str, follow: bool) -> Entry | None:
        try:
            status = os.stat(path) if follow else os.lstat(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise errors.reading(path, error) from error
        return Entry(_KINDS.get(stat.S_IFMT(status.st_mode), "other"), Identity.of(status))

    def list_folder(self, path: str) -> Listing:
        listing = Listing([], [])
        with errors.read_errors(path), os.scandir(path) as entries:
            for entry in entries:
                (listing.folders if entry.is_dir() else listing.files).append(entry.name)
        return listing

    def files_below(self, path: str) -> list[Found]:
        files = []
        for folder, folders, names in os.walk(path):
            # Skip the work of prepare, and files of writers that are at work or were killed.
            folders[:] = [name for name in folders if name != ".prepare"]
            for name in names:
                if not (name.startswith(".") and name.endswith(".partial")):
                    full = os.path.join(folder, name)
                    status = os.stat(full)
                    relative = os.path.relpath(full, path).replace(os.sep, "/")
                    files.append(Found(relative, status.st_size, status.st_mtime_ns))
        return files

    def glob(self, pattern: str) -> list[str]:
        return [name for name in glob.glob(pattern, recursive=True) if not os.path.isdir(name)]

    def delete(self, path: str) -> None:
        with errors.write_errors(path), suppress(FileNotFoundError):
            os.unlink(path)

    def make_folder(self, path: str) -> None:
        with errors.write_errors(path):
            os.makedirs(path, exist_ok=True)


def _require_regular(path: str, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    if stat.S_ISDIR(status.st_mode):
        raise errors.reading(path, IsADirectoryError(errno.EISDIR, ""))
    kind = _OTHERS.get(stat.S_IFMT(status.st_mode), "not a regular file")
    raise UnsupportedError(
        f"{path}: cannot be read in place ({kind}, expected a regular file); copy its bytes to a file"
    )

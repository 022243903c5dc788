"""A file that is safe to look into: regular, open, and read only where it has bytes."""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lowtide import errors
from lowtide._io.identity import Identity
from lowtide.errors import ArgumentError, LowtideError, TruncatedFileError, UnsupportedError

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


@dataclass(frozen=True, slots=True)
class Source:
    """An open regular file: its absolute path, its size when it was opened, and its bytes."""

    path: str
    size: int
    file: io.FileIO
    identity: Identity

    def read(self, offset: int, count: int, what: str = "data") -> bytes:
        """Exactly ``count`` bytes at ``offset``; a ``TruncatedFileError`` where the file has fewer."""
        if offset + count > self.size:  # before anything is allocated: count may come from a stranger
            raise TruncatedFileError(
                f"{self.path}: the {what} needs {count} bytes at byte {offset}, and the file ends at byte "
                f"{self.size}: cut short or still being written; copy or write it again"
            )
        self.file.seek(offset)
        parts = bytearray()
        while len(parts) < count:
            part = self.file.read(count - len(parts))
            if not part:
                raise TruncatedFileError(
                    f"{self.path}: the {what} needs {count} bytes at byte {offset}, and only {len(parts)} "
                    "came: the file was cut short while it was being read"
                )
            parts += part
        return bytes(parts)


def absolute(path: str | os.PathLike[str]) -> str:
    """``path`` as an absolute string, or an error for what cannot name a file.

    >>> os.path.isabs(absolute("x.npy"))
    True
    >>> absolute(b"x.npy")
    Traceback (most recent call last):
    lowtide.errors.ArgumentError: path must be a str or os.PathLike of str, got b'x.npy'; use os.fsdecode
    """
    # An int would be a descriptor to os.stat, and bytes would make every message a mixture.
    if hasattr(path, "read"):
        raise ArgumentError(f"path must be a str or os.PathLike, got the file object {path!r}; pass its name")
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(text, str):
        raise ArgumentError(f"path must be a str or os.PathLike of str, got {path!r}; use os.fsdecode")
    try:
        encoded = os.fsencode(text)
    except UnicodeEncodeError:
        raise ArgumentError(f"path {text!r} cannot be a file name on this system") from None
    if b"\0" in encoded:
        raise ArgumentError(f"path {text!r} holds a zero byte, which no file name may")
    if not text:  # abspath would make it the working directory
        raise errors.reading(text, FileNotFoundError(errno.ENOENT, ""))
    try:
        return os.path.abspath(text)
    except OSError as error:  # the working directory is gone
        raise errors.reading(text, error) from error


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[Source]:
    """Open ``path`` for looking into; every ``OSError`` inside becomes lowtide's own.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as f, opened(f.name) as source:
    ...     source.size
    0
    """
    name = absolute(path)
    try:
        # Looked at before it is opened, since opening a pipe waits for a writer and opening a device may act.
        _require_regular(name, os.stat(name))
        with open(name, "rb", buffering=0, opener=_open_without_waiting) as file:
            status = os.fstat(file.fileno())
            _require_regular(name, status)
            yield Source(name, status.st_size, file, Identity.of(status))
    except LowtideError:
        raise
    except OSError as error:
        raise errors.reading(name, error) from error


def _open_without_waiting(path: str, flags: int) -> int:
    # For the moment between stat and open in which the file may have become a pipe.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _require_regular(path: str, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise errors.reading(path, IsADirectoryError(errno.EISDIR, ""))
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "no regular file")
        raise UnsupportedError(
            f"{path}: is {kind}, and only regular files can be read in place; copy its bytes to a file first"
        )

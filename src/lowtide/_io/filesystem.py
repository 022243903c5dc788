"""The interface of a kind of storage: open objects, and questions about paths."""

from __future__ import annotations

import errno
import io
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from lowtide._io.identity import Identity
from lowtide.errors import TruncatedFileError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from lowtide._io.reader import Reader

HEAD = 128
"""First bytes of a file by which it is recognised: the header of an NPY file, more than most formats need."""
_STREAM_BUFFER = 2**17  # bytes that a stream reads at once


class Store(ABC):
    """An open object.

    Parameters
    ----------
    path
        Its absolute path.
    identity
        Its identity when it was opened.
    """

    local: ClassVar[bool] = False
    """Whether other libraries can open ``path``."""

    def __init__(self, path: str, identity: Identity) -> None:
        self.path = path
        self.identity = identity

    @property
    def size(self) -> int:
        """Bytes in the object when it was opened."""
        return self.identity.size

    @cached_property
    def head(self) -> bytes:
        """The first ``HEAD`` bytes, which identify most formats."""
        return self.read_some(0, HEAD)

    @abstractmethod
    def read_some(self, offset: int, count: int) -> bytes:
        """Up to ``count`` bytes at ``offset``; fewer only at the end of the object."""

    def read(self, offset: int, count: int, what: str = "data") -> bytes:
        """Exactly ``count`` bytes at ``offset``; a ``TruncatedFileError`` where the object has fewer.

        Parameters
        ----------
        offset
            First byte.
        count
            Number of bytes. Checked against the size before anything is allocated, since it may come from a
            damaged file.
        what
            A description of the bytes, for the error.
        """
        if offset + count > self.size:
            raise TruncatedFileError(
                f"{self.path}: truncated or still being written (the {what} needs {count} bytes at byte "
                f"{offset}, the file ends at byte {self.size}); copy or write it again"
            )
        data = self.read_some(offset, count)
        if len(data) < count:
            raise TruncatedFileError(
                f"{self.path}: truncated while it was being read (the {what} needs {count} bytes at byte "
                f"{offset}, got {len(data)}); copy or write it again"
            )
        return data

    def stream(self) -> io.BufferedReader:
        """The object as a binary file, for parsers that read from front to back."""
        return io.BufferedReader(Stream(self), _STREAM_BUFFER)


class Stream(io.RawIOBase):
    """A store as a file object. Closing it leaves the store open.

    Parameters
    ----------
    store
        The store to read.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        position = offset + (0, self._position, self._store.size)[whence]
        if position < 0:  # zipfile relies on it
            raise OSError(errno.EINVAL, "a position before the start of the file", self._store.path)
        self._position = position
        return position

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(-1 if size is None else size) or b""

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer).cast("B")
        data = self._store.read_some(self._position, len(view))
        view[: len(data)] = data
        self._position += len(data)
        return len(data)


class Peek(NamedTuple):
    """What is read of a file to recognise it, little enough for thousands of shards."""

    path: str
    head: bytes
    """Its first ``HEAD`` bytes."""
    link: bool
    """Whether the path is a symbolic link."""
    identity: Identity

    @property
    def size(self) -> int:
        return self.identity.size


class Entry(NamedTuple):
    """What is at a path."""

    kind: str
    """``file``, ``folder``, ``link`` or ``other``: a pipe, a device, a socket."""
    identity: Identity


class Listing(NamedTuple):
    """The names in a folder, with hidden ones, in any order."""

    files: list[str]
    folders: list[str]


class Found(NamedTuple):
    """A file below a folder."""

    name: str
    """Relative to the folder, with slashes."""
    size: int
    modified_ns: int


class Filesystem(ABC):
    """A kind of storage. One that is added to ``store.FILESYSTEMS`` can be listed, inspected and searched."""

    appends: ClassVar[bool] = True
    """Whether a file may grow in place, as lowtide's own writer lets it."""
    lists_at_once: ClassVar[bool] = False
    """Whether listing a folder costs no more than asking about one file in it."""

    @abstractmethod
    def recognises(self, path: str) -> bool:
        """Whether ``path`` belongs to this file system."""

    @abstractmethod
    def absolute(self, path: str) -> str:
        """``path``, independent of the working directory."""

    @abstractmethod
    def real(self, path: str) -> str:
        """``path`` with symbolic links resolved, even if nothing is there."""

    @abstractmethod
    def open(self, path: str) -> AbstractContextManager[Store]:
        """Open the regular file ``path``; every ``OSError`` inside becomes lowtide's own."""

    @abstractmethod
    def peek(self, path: str) -> Peek:
        """Size, identity and first bytes of a regular file."""

    def peek_all(self, paths: Sequence[str]) -> list[Peek]:
        """``peek`` of each."""
        return [self.peek(path) for path in paths]

    def expected(self, path: str, size: int) -> Identity | None:
        """The identity of a file that has ``size`` bytes according to an index; compared at the first read.

        None where looking at the file is cheap.
        """
        return None

    def open_reader(self, path: str, size: int, identity: Identity | None) -> Reader | None:
        """A reader of rows and tokens; None to use those of ``READERS``, which read local files."""
        return None

    @abstractmethod
    def entry(self, path: str, follow: bool) -> Entry | None:
        """What is at ``path``, or with ``follow`` what it links to; None if nothing is there."""

    @abstractmethod
    def list_folder(self, path: str) -> Listing:
        """The names in a folder."""

    def has_file(self, path: str) -> bool:
        """Whether anything is at ``path``, with as few requests as possible."""
        try:
            return self.entry(path, False) is not None
        except (OSError, ValueError):
            return False

    def files_below(self, path: str) -> list[Found]:
        """All files below a folder in any order, except those that are still being written."""
        raise NotImplementedError

    @abstractmethod
    def glob(self, pattern: str) -> list[str]:
        """The files that match ``pattern``, in any order."""

    def delete(self, path: str) -> None:
        """Remove a file, if it exists."""
        raise NotImplementedError

    @abstractmethod
    def make_folder(self, path: str) -> None:
        """Create a folder and its parents, unless they exist."""

"""Stores and questions about paths, for every kind of storage.

A ``Store`` is one open object: its path, size and identity, and exact reads of small ranges (headers,
indexes). A ``Filesystem`` answers questions without opening: whether a path exists, what a folder contains.
Local files are one kind; an object store implements the same methods, with a prefix for a folder and an ETag
for an identity. Everything above ``_io`` calls the functions of this module, and neither opens, lists nor
stats a data file itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from lowtide import errors
from lowtide._io.filesystem import HEAD, Entry, Filesystem, Listing, Peek, Store, Stream
from lowtide._io.local import LocalFilesystem
from lowtide._io.remote import address
from lowtide._io.remote.objects import RemoteFilesystem
from lowtide.errors import ArgumentError

__all__ = ["HEAD", "Entry", "Filesystem", "Listing", "Peek", "Store", "Stream"]

Path = str | os.PathLike[str]

FILESYSTEMS: list[Filesystem] = [RemoteFilesystem(), LocalFilesystem()]
"""The kinds of storage. The first that recognises a path is used; the last one recognises every path."""
_LISTED_AFTER = 64  # questions about a folder until it is listed


def filesystem(path: str) -> Filesystem:
    """The file system that ``path`` belongs to."""
    for candidate in FILESYSTEMS:
        if candidate.recognises(path):
            break
    return candidate


def is_address(path: object) -> bool:
    """Whether ``path`` is an address such as ``s3://bucket/key``, and not a local path.

    >>> is_address("s3://bucket/x.npy"), is_address("x.npy")
    (True, False)
    """
    return isinstance(path, str) and address.recognises(path)


def is_pattern(path: str) -> bool:
    """Whether ``path`` may be a pattern; a web address with a query, such as a presigned one, is not.

    >>> is_pattern("part-*.npy"), is_pattern("https://host/x.npy?sig=1")
    (True, False)
    """
    if not any(character in path for character in "*?["):
        return False
    return not (is_address(path) and address.parse(path).query)


def absolute(path: Path) -> str:
    """``path`` as an absolute string, or an error if it cannot be the path of a file.

    >>> os.path.isabs(absolute("x.npy"))
    True
    >>> absolute(b"x.npy")
    Traceback (most recent call last):
    lowtide.errors.ArgumentError: path must be a str or os.PathLike of str, got b'x.npy'; use os.fsdecode
    """
    # os.stat would take an int as a descriptor, and bytes would not fit into messages.
    if hasattr(path, "read"):
        raise ArgumentError(f"path must be a str or os.PathLike, got the file object {path!r}; pass its name")
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(text, str):
        raise ArgumentError(f"path must be a str or os.PathLike of str, got {path!r}; use os.fsdecode")
    if not text.isascii():
        try:
            os.fsencode(text)
        except UnicodeEncodeError:
            raise ArgumentError(f"path {text!r} cannot be a file name on this system") from None
    if "\0" in text:
        raise ArgumentError(f"path {text!r} contains a zero byte, which no file name may")
    if not text:  # abspath would make it the working directory
        raise errors.missing("", "the path is empty; pass the path of a file or folder")
    return filesystem(text).absolute(text)


def opened(path: Path) -> AbstractContextManager[Store]:
    """Open ``path``, as a context manager; every ``OSError`` inside becomes lowtide's own.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as f, opened(f.name) as store:
    ...     store.size
    0
    """
    name = absolute(path)
    return filesystem(name).open(name)


def peek(path: str) -> Peek:
    """Size, identity and first bytes of a regular file, in as few system calls as possible.

    >>> _ = (tmp / "x.bin").write_bytes(b"tokens")
    >>> peek(str(tmp / "x.bin")).head
    b'tokens'
    """
    return filesystem(path).peek(path)


def peek_all(paths: Sequence[str]) -> list[Peek]:
    """``peek`` of each; of objects in a bucket several at once.

    >>> _ = (tmp / "x.bin").write_bytes(b"tokens")
    >>> [peek.size for peek in peek_all([str(tmp / "x.bin")])]
    [6]
    """
    kinds = {filesystem(path) for path in paths}
    return kinds.pop().peek_all(paths) if len(kinds) == 1 else [peek(path) for path in paths]


def using(
    path: object, options: Mapping[str, Any] | None, cache_dir: Path | None = None, cache: int | str = "keep"
) -> AbstractContextManager[None]:
    """Open paths in the block with storage options and a cache on disk, which are for addresses only."""
    paths = path if isinstance(path, list | tuple) else [path]
    if not any(map(is_address, paths)):
        if options is not None:
            raise ArgumentError(f"storage_options are for addresses such as s3://bucket/key, got {path!r}")
        if cache_dir is not None:
            raise ArgumentError(f"cache_dir is for addresses such as s3://bucket/key, got {path!r}")
        return nullcontext()
    if cache_dir is not None:
        size = None if cache in ("keep", "drop") else cache
        options = {**(options or {}), "cache_dir": os.fspath(cache_dir), "cache": size}
    return address.using(options)


def entry(path: str, *, follow: bool = True) -> Entry | None:
    """What is at ``path``, or with ``follow`` what it links to; None if nothing is there."""
    return filesystem(path).entry(path, follow)


def exists(path: str) -> bool:
    """Whether anything is at ``path``, even a link to nothing."""
    with suppress(OSError, ValueError):
        return entry(path, follow=False) is not None
    return False


def has_file(path: str) -> bool:
    """Whether anything is at ``path``; for an address, whether it is that of an object, with one request."""
    return filesystem(path).has_file(path)


def is_file(path: str) -> bool:
    """Whether ``path`` is a regular file, or a link to one."""
    return _kind(path) == "file"


def is_folder(path: str) -> bool:
    """Whether ``path`` is a folder, or a link to one."""
    return _kind(path) == "folder"


def _kind(path: str) -> str | None:
    with suppress(OSError, ValueError):
        return place.kind if (place := entry(path)) else None
    return None


def real(path: str) -> str:
    """``path`` with symbolic links resolved."""
    return filesystem(path).real(path)


def list_folder(path: str) -> Listing:
    """The names of files and folders in a folder; a ``ReadError`` if it cannot be listed.

    >>> _ = (tmp / "x.bin").write_bytes(b"")
    >>> list_folder(str(tmp)).files
    ['x.bin']
    """
    return filesystem(path).list_folder(path)


def glob(pattern: str) -> list[str]:
    """The files that match ``pattern`` (``*``, ``?``, ``[...]``, ``**``), in any order."""
    return filesystem(pattern).glob(pattern)


def make_folder(path: str) -> None:
    """Create a folder and its parents, unless they exist; a ``WriteError`` if that is not possible."""
    filesystem(path).make_folder(path)


def delete(path: str) -> None:
    """Remove a file or an object, if it exists."""
    filesystem(path).delete(path)


class Neighbours:
    """Whether files exist, for thousands of files in few folders, each of which is listed once."""

    def __init__(self) -> None:
        self._questions: dict[str, int] = {}
        self._names: dict[str, set[str]] = {}

    def has(self, path: str) -> bool:
        folder, _, name = path.rpartition(os.sep)
        if folder in self._names:
            return name in self._names[folder]
        self._questions[folder] = self._questions.get(folder, 0) + 1
        # For fewer questions, listing a million files would cost more.
        if self._questions[folder] == (1 if filesystem(path).lists_at_once else _LISTED_AFTER):
            with suppress(OSError, errors.UnsupportedError):  # a web server may not list
                listing = list_folder(folder or os.sep)
                self._names[folder] = {*listing.files, *listing.folders}
                return name in self._names[folder]
        return exists(path)

"""What the recognisers of token corpora share: quick looks at many files, and distrust of index files.

A corpus may have 10,000 shards, so a look at one costs a handful of system calls and no object that is not
needed. ``source.opened`` is the careful way into a single file; it is used here to say what is wrong.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lowtide import errors
from lowtide._io import jsonfiles
from lowtide._io.identity import Identity, sample
from lowtide._io.journal import SUFFIX, published_size
from lowtide._io.source import opened
from lowtide._printable import brief
from lowtide.errors import ArgumentError, FormatError, NotFoundError, UnsupportedError

if TYPE_CHECKING:
    import numpy.typing as npt

HEAD = 128
"""Bytes of each file that are looked at: the header of an NPY file, and more than any other format needs."""
MAX_INDEX = 32 * 2**20
"""Bytes of the largest JSON index that is read: some 40,000 shards of MDS, 75,000 of lowtide."""

TokenDtype = np.dtype[np.integer]

_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NONBLOCK", "O_BINARY"))
_MAX_NAME = 1000  # characters of a path in an index
_ASKED = 64  # files of a folder that are looked for one by one
_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}")
_NUMBERS = re.compile(r"(\d+)")


class Look(NamedTuple):
    """A file as it was seen: its absolute path, its size and its first bytes."""

    path: str
    size: int
    head: bytes
    link: bool
    identity: Identity


def look(path: str) -> Look:
    """Size and first bytes of a regular file.

    >>> _ = (tmp / "x.bin").write_bytes(b"tokens")
    >>> look(str(tmp / "x.bin"))[1:4]
    (6, b'tokens', False)
    """
    try:
        # Looked at before it is opened, since opening a pipe waits and opening a device may act.
        status = os.lstat(path)
        if link := stat.S_ISLNK(status.st_mode):
            status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            with opened(path):  # it has the words for each kind
                pass
        fd = os.open(path, _FLAGS)
        try:
            return Look(path, status.st_size, os.read(fd, HEAD), link, Identity.of(status))
        finally:
            os.close(fd)
    except OSError as error:
        if isinstance(error, errors.LowtideError):
            raise
        raise errors.reading(path, error) from error


class Neighbours:
    """Whether a file is there, for thousands of files in few folders: those are listed once."""

    def __init__(self) -> None:
        self._asked: dict[str, int] = {}
        self._names: dict[str, set[str]] = {}

    def has(self, path: str) -> bool:
        folder, _, name = path.rpartition(os.sep)
        if folder in self._names:
            return name in self._names[folder]
        asked = self._asked[folder] = self._asked.get(folder, 0) + 1
        if asked == _ASKED:  # before, listing a folder of a million files would cost more
            with suppress(OSError):
                self._names[folder] = set(os.listdir(folder or os.sep))
        return os.path.lexists(path)


def may_grow(seen: Look) -> Identity:
    """The identity of a file without a header: appending leaves its first bytes as they are."""
    return seen.identity._replace(samples=(sample(0, seen.head),))


def raw_count(seen: Look, itemsize: int, beside: Neighbours) -> tuple[int, int]:
    """Tokens in a file without a header, and the bytes of it that count.

    While lowtide's own writer appends, those are the ones that it has published.
    """
    size = seen.size
    if seen.link or beside.has(seen.path + SUFFIX):
        size = published_size(seen.path, size)
    if size % itemsize:
        raise FormatError(
            f"{seen.path}: {size} bytes are no multiple of a token's {itemsize}, {size % itemsize} "
            f"left over: another dtype is meant, or the file was cut short; pass dtype=, or copy it again"
        )
    return size // itemsize, size


def token_dtype(dtype: npt.DTypeLike, where: str) -> TokenDtype:
    """``dtype`` if tokens can have it: an integer in this machine's byte order.

    >>> token_dtype("uint16", "train.bin")
    dtype('uint16')
    >>> token_dtype("float32", "train.bin")
    Traceback (most recent call last):
    lowtide.errors.ArgumentError: train.bin: tokens are integers, got dtype float32; pass one such as ...
    """
    try:
        made: np.dtype[np.generic] = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError, OverflowError) as error:
        raise ArgumentError(f"{where}: dtype {dtype!r} is not understood by NumPy: {error}") from None
    if made.kind not in "iu":
        raise ArgumentError(
            f"{where}: tokens are integers, got dtype {brief(made)[6:-1].strip(chr(39)) or made}; pass one "
            "such as dtype='uint16' or dtype='uint32'"
        )
    if not made.isnative:
        raise UnsupportedError(
            f"{where}: dtype {made.str!r} is not in this machine's byte order, and lowtide reads tokens "
            f"without a copy; swap them once, as in np.load(...).astype({made.newbyteorder('=').str!r})"
        )
    return made  # type: ignore[return-value]


def agree(found: np.dtype[np.generic], dtype: npt.DTypeLike | None, where: str) -> TokenDtype:
    """The dtype that a file tells, unless the caller expects another one."""
    made = token_dtype(found, where)
    if dtype is not None and token_dtype(dtype, where) != made:
        raise ArgumentError(
            f"{where}: the file says that its tokens are {made}, and dtype={np.dtype(dtype).name!r} was "
            "given; leave dtype out"
        )
    return made


def in_order(names: Sequence[str]) -> list[str]:
    """Sorted, with numbers by their value: shard_9 comes before shard_10.

    >>> in_order(["s_10.bin", "s_9.bin"])
    ['s_9.bin', 's_10.bin']
    """
    if len({len(name) for name in names}) < 2:  # padded numbers, as nearly everybody has them
        return sorted(names)
    return sorted(
        names,
        key=lambda name: ([int(x) if x.isdecimal() else x for x in _NUMBERS.split(name)], name),
    )


def read_json(path: str) -> dict[str, object]:
    """The JSON object in an index file, or a ``FormatError`` that says why there is none."""
    content = jsonfiles.load(path, limit=MAX_INDEX, what="index")
    if not isinstance(content, dict):
        raise FormatError(f"{path}: must be a JSON object, found {brief(content)}")
    return content


def whole(value: object, where: str, *, least: int = 0, most: int = 2**63 - 1) -> int:
    """``value`` if it is an integer within bounds; ``where`` names the file and the field."""
    if type(value) is not int or not least <= value <= most:  # a bool is an int too
        raise FormatError(f"{where} must be an integer from {least} to {most}, found {brief(value)}")
    return value


class Inside:
    """Turns the names in an index file into paths, none of which leads out of its folder."""

    def __init__(self, index: str) -> None:
        self.index = index
        self.folder = os.path.dirname(index)
        # The second one: in a model hub's cache index and shards are all links into one other folder.
        roots = (os.path.realpath(self.folder), os.path.dirname(os.path.realpath(index)))
        self._roots = tuple(root.rstrip(os.sep) + os.sep for root in roots)
        self._prefix = self.folder.rstrip(os.sep) + os.sep
        self._folders: set[str] = set()
        self._names: set[str] = set()

    def stat(self, name: object, field: str) -> tuple[str, Identity]:
        """The absolute path and the identity, with its size, of the regular file ``name``."""
        if not isinstance(name, str) or not _PLAIN.fullmatch(name):
            name = self._checked(name, field)
        if name in self._names:
            raise FormatError(
                f"{self.index}: {field} is the file {brief(name)}, which is listed before; each may come once"
            )
        self._names.add(name)
        path = f"{self._prefix}{name}"
        try:
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                self._check_place(path, name, field)
                status = os.stat(path)
        except FileNotFoundError:
            raise NotFoundError(
                errno.ENOENT, f"no such file, and {self.index} lists it as {field}; restore or copy it", path
            ) from None
        except OSError as error:
            raise errors.reading(path, error) from error
        except UnicodeEncodeError:  # a lone surrogate, which no file name has
            raise FormatError(f"{self.index}: {field} must be a file name, found {brief(name)}") from None
        if not stat.S_ISREG(status.st_mode):
            with opened(path):  # it has the words for each kind
                pass
        return path, Identity.of(status)

    def _checked(self, name: object, field: str) -> str:
        """The slow way, for names that are not plain: in sub-folders, or wrong."""
        if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME or "\0" in name:
            raise FormatError(f"{self.index}: {field} must be a file name, found {brief(name)}")
        *folders, _ = parts = name.split("/")
        if any(part in ("", ".", "..") for part in parts) or "\\" in name or os.path.splitdrive(name)[0]:
            raise self._leads_outside(name, field)
        if folders and (folder := "/".join(folders)) not in self._folders:
            self._check_place(self._prefix + folder, name, field)
            self._folders.add(folder)
        return name

    def _check_place(self, path: str, name: object, field: str) -> None:
        try:
            real = os.path.realpath(path) + os.sep
        except (OSError, ValueError):
            real = ""
        if not real.startswith(self._roots):
            raise self._leads_outside(name, field)

    def _leads_outside(self, name: object, field: str) -> FormatError:
        return FormatError(
            f"{self.index}: {field} leads outside its folder, found {brief(name)}: an index may only "
            "name files beside it; if you trust it, copy or move the files there"
        )

"""Checks shared by index files and raw files of tokens: integers, names and dtypes.

An index file may come from a stranger: no name in it leads out of its folder, no number in it is believed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lowtide._arrays.formats.layout import size_error
from lowtide._io import jsonfiles, store
from lowtide._io.identity import Identity
from lowtide._io.store import Neighbours
from lowtide._printable import brief
from lowtide.errors import ArgumentError, FormatError, UnsupportedError, missing

MAX_INDEX = 32 * 2**20
"""Bytes of the largest JSON index that is read: some 40,000 shards of MDS, 75,000 of lowtide."""

TokenDtype = np.dtype[np.integer]

_MAX_NAME = 1000  # characters of a path in an index
_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}")
_NUMBERS = re.compile(r"(\d+)")


def token_dtype(dtype: npt.DTypeLike, where: str) -> TokenDtype:
    """``dtype`` if tokens can have it: an integer in this machine's byte order.

    >>> token_dtype("uint16", "train.bin")
    dtype('uint16')
    >>> token_dtype("float32", "train.bin")
    Traceback (most recent call last):
    lowtide.errors.ArgumentError: train.bin: tokens are integers, got dtype float32; pass one such as ...
    """
    try:
        parsed: np.dtype[np.generic] = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError, OverflowError) as error:
        reason = str(error)[:200]  # it repeats the value
        raise ArgumentError(f"{where}: dtype {brief(dtype)} is not understood by NumPy: {reason}") from None
    if parsed.kind not in "iu":
        raise ArgumentError(
            f"{where}: tokens are integers, got dtype {brief(parsed)[6:-1].strip(chr(39)) or parsed}; pass "
            "one such as dtype='uint16' or dtype='uint32'"
        )
    if not parsed.isnative:
        raise UnsupportedError(
            f"{where}: dtype {parsed.str!r} is not in this machine's byte order, and tokens are read without "
            f"a copy; swap them once, as in np.load(...).astype({parsed.newbyteorder('=').str!r})"
        )
    return parsed  # type: ignore[return-value]


def token_id(value: int, dtype: TokenDtype, what: str) -> int:
    """``value`` if a token of ``dtype`` can have it.

    >>> token_id(70_000, np.dtype("u2"), "eos")
    Traceback (most recent call last):
    lowtide.errors.ArgumentError: eos must be an id that uint16 holds (0 to 65535), got 70000
    """
    bounds = np.iinfo(dtype)
    if not bounds.min <= value <= bounds.max:
        raise ArgumentError(
            f"{what} must be an id that {dtype.name} holds ({bounds.min} to {bounds.max}), got {value}"
        )
    return value


def agree(declared: npt.DTypeLike, dtype: npt.DTypeLike | None, where: str) -> TokenDtype:
    """The dtype that a file declares, unless the caller expects another one."""
    declared = token_dtype(declared, where)
    if dtype is not None and token_dtype(dtype, where) != declared:
        raise ArgumentError(
            f"{where}: the dtype does not match (got dtype={np.dtype(dtype).name!r}, the file has tokens of "
            f"{declared}); leave dtype out"
        )
    return declared


def check_same(what: str, path: str, value: object, first_path: str, first: object) -> None:
    """Raise if a file differs in ``what`` from the first file of its corpus."""
    if value != first:
        raise ArgumentError(
            f"{path}: another {what} than {first_path} ({brief(value)}, expected {brief(first)}): one corpus "
            f"has one {what}; pass the files that belong together"
        )


def no_split(path: str, split: str, names: object) -> ArgumentError:
    """The error for a split that an index does not list."""
    return ArgumentError(f"{path}: has no split {split!r}, found {brief(names)}; pass split=")


def all_or_none(paths: Sequence[str], beside: Neighbours) -> bool:
    """Whether files with documents are there: for every file of tokens, or for none."""
    missing = [path for path in paths if not beside.has(path)]
    if missing and len(missing) < len(paths):
        there = next(path for path in paths if path not in missing)
        raise FormatError(
            f"{missing[0]}: is not there, while {there} is: documents are listed for every file or for none; "
            "restore it, or move the others away"
        )
    return not missing


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
    """The JSON object in an index file, or a ``FormatError`` with the reason why there is none."""
    content = jsonfiles.load(path, limit=MAX_INDEX, what="index")
    if not isinstance(content, dict):
        raise jsonfiles.invalid(f"{path}: the index", content, "a JSON object")
    return content


def whole(value: object, where: str, *, least: int = 0, most: int = 2**63 - 1) -> int:
    """``value`` if it is an integer within bounds; ``where`` names the file and the field."""
    if type(value) is not int or not least <= value <= most:  # a bool is an int too
        raise jsonfiles.invalid(where, value, f"an integer from {least} to {most}")
    return value


class Inside:
    """Turns the names in an index file into paths, none of which leads out of its folder."""

    def __init__(self, index: str) -> None:
        self.index = index
        self.folder = os.path.dirname(index)
        # The second one: in a model hub's cache index and shards are all links into one other folder.
        roots = (store.real(self.folder), os.path.dirname(store.real(index)))
        self._roots = tuple(root.rstrip(os.sep) + os.sep for root in roots)
        self._prefix = self.folder.rstrip(os.sep) + os.sep
        self._folders: set[str] = set()
        self._names: set[str] = set()

    def stat(self, name: object, field: str, size: int | None = None) -> tuple[str, Identity]:
        """The absolute path and the identity, with its size, of the regular file ``name``.

        Where looking is a request, an index that knows the ``size`` is believed until the file is read.
        """
        if not isinstance(name, str) or not _PLAIN.fullmatch(name):
            name = self._checked(name, field)
        if name in self._names:
            raise jsonfiles.invalid(f"{self.index}: {field}", name, "a file that is not listed before")
        self._names.add(name)
        path = f"{self._prefix}{name}"
        if size is not None and (identity := store.filesystem(path).expected(path, size)) is not None:
            return path, identity
        try:
            place = store.entry(path, follow=False)
            if place is not None and place.kind == "link":
                self._check_place(path, name, field)
                place = store.entry(path)
        except UnicodeEncodeError:  # a lone surrogate, which no file name has
            raise jsonfiles.invalid(f"{self.index}: {field}", name, "a file name") from None
        if place is None:
            raise missing(path, f"no such file, and {self.index} lists it as {field}; restore or copy it")
        if place.kind != "file":
            with store.opened(path):  # it has the words for each kind
                pass
        return path, place.identity

    def sized(self, name: object, field: str, size: int, what: str, remedy: str) -> tuple[str, Identity]:
        """As ``stat``, of a file that has ``size`` bytes for ``what``; with ``remedy`` if it does not."""
        path, identity = self.stat(name, field, size)
        if identity.size != size:
            raise size_error(path, identity.size, size, f"{what} in {self.index}", remedy)
        return path, identity

    def _checked(self, name: object, field: str) -> str:
        """The slow way, for names that are not plain: in sub-folders, or wrong."""
        if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME or "\0" in name:
            raise jsonfiles.invalid(f"{self.index}: {field}", name, "a file name")
        *folders, _ = parts = name.split("/")
        if any(part in ("", ".", "..") for part in parts) or "\\" in name or os.path.splitdrive(name)[0]:
            raise self._leads_outside(name, field)
        if folders and (folder := "/".join(folders)) not in self._folders:
            self._check_place(self._prefix + folder, name, field)
            self._folders.add(folder)
        return name

    def _check_place(self, path: str, name: object, field: str) -> None:
        try:
            real = store.real(path) + os.sep
        except (OSError, ValueError):
            real = ""
        if not real.startswith(self._roots):
            raise self._leads_outside(name, field)

    def _leads_outside(self, name: object, field: str) -> FormatError:
        return FormatError(
            f"{self.index}: {field} leads outside its folder, found {brief(name)}: an index may only "
            "list files beside it; if you trust it, copy or move the files there"
        )

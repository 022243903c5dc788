"""HDF5: contiguous datasets are in one piece, and h5py knows where.

h5py finds the place and never reads the data. Links to other places are not followed, since a link may
lead to another file; the error says what it points at.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from lowtide import errors
from lowtide._arrays.formats.format import Arrays, Container
from lowtide._arrays.formats.layout import Layout, checked_shape, shown, size_error
from lowtide._extras import library
from lowtide._io.store import Store
from lowtide._printable import brief
from lowtide.errors import FormatError, LowtideError, UnsupportedError

_MAGIC = b"\x89HDF\r\n\x1a\n"
# Of the errors that the HDF5 library passes on, those of the system and not of the file.
_SYSTEM = (errno.EIO, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ESTALE, errno.EMFILE, errno.ENFILE)


class Datasets(Arrays):
    """The datasets of one HDF5 file, by their full names; h5py holds the file open until ``close``."""

    def __init__(self, store: Store) -> None:
        h5py = self._h5py = library("h5py", f"{store.path}: reading HDF5", "hdf5")
        self.store = store
        with self._library_errors():
            # By its path, a writer's lock is honoured; where a file system has no locks, none is needed.
            file = store.path if store.local else store.stream()
            self._file: Any = h5py.File(file, "r", locking="best-effort")

    def close(self) -> None:
        with self._library_errors():
            self._file.close()

    def names(self) -> list[str]:
        """The datasets in all groups, without the leading slash. Links are left out."""
        with self._library_errors():
            return list(self._walk())

    def canonical(self, name: str) -> str | None:
        """``name`` without its outer slashes, or None if it is neither a dataset nor a link."""
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if not parts or not _possible(name):
            return None
        with self._library_errors():
            item = self._file
            for part in parts:
                kind = self._link_kind(item, part)
                if kind is None:
                    return None
                if kind != self._h5py.h5l.TYPE_HARD:
                    break
                item = item[part]
            else:
                if not isinstance(item, self._h5py.Dataset):
                    return None
        return "/".join(parts)

    def locate(self, name: str) -> Layout:
        """Where the dataset ``name`` is."""
        where = f"{self.store.path}[{brief(name)}]"
        with self._library_errors():
            item = self._file
            for part in name.split("/"):
                if self._link_kind(item, part) != self._h5py.h5l.TYPE_HARD:
                    raise UnsupportedError(
                        f"{where}: {brief(part)} is a link to {_target(item, part)[:400]}, and links are not "
                        "followed; open what it points at by its own name"
                    )
                item = item[part]
            return self._layout(name, item, where)

    def _link_kind(self, group: Any, part: str) -> int | None:
        # h5py's own `in` and `get` follow a link to see whether it leads anywhere, even into other files.
        if not isinstance(group, self._h5py.Group):
            return None
        links, key = group.id.links, part.encode("utf8", "surrogateescape")
        return int(links.get_info(key).type) if links.exists(key) else None

    def _walk(self) -> Iterator[str]:
        # By hard links a group may be reached twice, and even be inside itself; and depth has no limit.
        seen: set[int] = set()
        waiting: list[tuple[str, Any]] = [("", self._file)]
        while waiting:
            prefix, group = waiting.pop()
            address = self._h5py.h5o.get_info(group.id).addr
            if address in seen:
                continue
            seen.add(address)
            inner: list[tuple[str, Any]] = []
            for key in group:
                if self._link_kind(group, key) == self._h5py.h5l.TYPE_HARD:
                    item = group[key]
                    if isinstance(item, self._h5py.Group):
                        inner.append((f"{prefix}{key}/", item))
                    elif isinstance(item, self._h5py.Dataset):
                        yield prefix + key
            waiting.extend(reversed(inner))

    def _layout(self, name: str, dataset: Any, where: str) -> Layout:
        h5d = self._h5py.h5d
        if dataset.shape is None:
            raise UnsupportedError(
                f"{where}: the dataset has no shape (an empty dataspace), so there is nothing to read"
            )
        dtype, inner = self._dtype(dataset, where)
        plist = dataset.id.get_create_plist()
        layout = plist.get_layout()
        if layout == h5d.CHUNKED:
            raise UnsupportedError(
                f"{where}: the dataset is chunked ({dataset.chunks}, compression {dataset.compression!r}), "
                "and only contiguous ones can be read in place; write it without chunks=, compression= and "
                f"maxshape=, or with `h5repack -l CONTI -f NONE {self.store.path} OUT`"
            )
        if layout == h5d.COMPACT:
            raise UnsupportedError(
                f"{where}: the dataset is compact, inside the file's metadata, and only contiguous ones can "
                "be read in place; it is smaller than 64 KiB, so read it whole with h5py"
            )
        if layout == h5d.VIRTUAL:
            raise UnsupportedError(
                f"{where}: the dataset is virtual, made of others, and only contiguous ones can be read in "
                "place; open the datasets that it is made of: "
                f"{brief([part[1] for part in dataset.virtual_sources()])}"
            )
        if plist.get_external_count():
            path, offset, _ = dataset.external[0]
            raise UnsupportedError(
                f"{where}: the data is in {plist.get_external_count()} other files (external storage), and "
                "only contiguous datasets of the file itself are read in place; open that file as raw: "
                f"lowtide.open({path!r}, dtype={dtype.str!r}, offset={offset})"
            )
        shape = checked_shape((*map(int, dataset.shape), *inner), dtype.itemsize, f"{where}: the shape")
        at = Layout(self.store.path, HDF5.name, 0, dtype, shape, file_size=self.store.size, name=name)
        if at.nbytes == 0:
            return at  # HDF5 gives it no place in the file
        # get_offset is None for what has no place, but 511 in a file with a user block of 512 bytes: the
        # library adds the block to its own "nowhere", which is -1.
        if dataset.id.get_space_status() != h5d.SPACE_STATUS_ALLOCATED or dataset.id.get_offset() is None:
            raise UnsupportedError(
                f"{where}: no data was ever written to the dataset, so the file holds none (all "
                f"{at.nbytes} bytes are the fill value {dataset.fillvalue}); write it first"
            )
        offset = int(dataset.id.get_offset())
        if (size := dataset.id.get_storage_size()) != at.nbytes:
            raise FormatError(
                f"{where}: damaged ({size} bytes, expected {at.nbytes} for shape {shape} of {shown(dtype)}); "
                "copy or write it again"
            )
        if offset + at.nbytes > self.store.size:
            raise size_error(where, self.store.size, offset + at.nbytes, f"the dataset at byte {offset}")
        return replace(at, offset=offset)

    def _dtype(self, dataset: Any, where: str) -> tuple[np.dtype[np.generic], tuple[int, ...]]:
        stored = dataset.id.get_type()
        try:
            dtype = dataset.dtype
            objects = dtype.hasobject
            # h5py maps more types to NumPy's than have NumPy's bytes: integers of 12 bits, strings padded
            # with spaces. HDF5 converts them while reading; in place nothing does.
            same = objects or self._h5py.h5t.py_create(dtype, logical=True) == stored
        except TypeError as error:
            raise UnsupportedError(
                f"{where}: NumPy has no dtype for the HDF5 type of the dataset ({error}); read it with h5py"
            ) from None
        if objects:
            raise UnsupportedError(
                f"{where}: dtype {shown(dtype)} stands for strings or rows of variable length, or "
                "references: the data is elsewhere in the file and cannot be read in place; write it with "
                "a fixed-width dtype, such as 'S16'"
            )
        if not same:
            raise UnsupportedError(
                f"{where}: the bytes on disk are not those of NumPy's {shown(dtype)} (h5py converts them "
                f"when it reads), so the dataset cannot be read in place; write it again with "
                f"dtype={dtype.str!r}"
            )
        if dtype.subdtype is not None:
            return _plain(dtype.base), dtype.shape
        return _plain(dtype), ()

    @contextmanager
    def _library_errors(self) -> Iterator[None]:
        """Whatever h5py raises at a damaged file, as lowtide's own."""
        path = self.store.path
        try:
            yield
        except LowtideError:
            raise
        except BlockingIOError as error:
            raise errors.ReadError(
                error.errno or errno.EAGAIN,
                "another program has the HDF5 file open for writing; close it there, then open again",
                path,
            ) from error
        except Exception as error:  # which ones a damaged file brings out is written nowhere
            if isinstance(error, OSError) and error.errno in _SYSTEM:
                raise errors.reading(path, error) from error
            raise FormatError(
                f"{path}: truncated, damaged or still being written ({type(error).__name__} of the HDF5 "
                f"library: {brief(str(error))}); copy or write it again"
            ) from error


def _possible(name: str) -> bool:
    try:
        return b"\0" not in name.encode("utf8", "surrogateescape")
    except UnicodeEncodeError:
        return False


def _target(group: Any, part: str) -> str:
    value = group.id.links.get_val(part.encode("utf8", "surrogateescape"))
    if isinstance(value, tuple):  # an external link
        return f"{value[1].decode('utf8', 'replace')!r} in the file {value[0].decode('utf8', 'replace')!r}"
    return f"{value.decode('utf8', 'replace')!r}"


def _plain(dtype: np.dtype[Any]) -> np.dtype[np.generic]:
    """``dtype`` without h5py's metadata, which pickles badly and makes np.save warn."""
    if dtype.names is not None and dtype.fields is not None:
        return np.dtype(
            {
                "names": dtype.names,
                "formats": [_plain(dtype.fields[name][0]) for name in dtype.names],
                "offsets": [dtype.fields[name][1] for name in dtype.names],
                "itemsize": dtype.itemsize,
            }
        )
    if dtype.subdtype is not None:
        return np.dtype((_plain(dtype.subdtype[0]), dtype.shape))
    return np.dtype(dtype.str)


class HDF5(Container):
    """A file of the HDF5 library."""

    name = "hdf5"
    title = "an HDF5"
    signature = f"HDF5's {_MAGIC!r}"
    magics = (_MAGIC,)

    def recognises(self, store: Store) -> bool:
        # A user block may come first, and the signature at byte 512, 1024, 2048, ...; MATLAB's files have
        # one.
        offset = 512
        while offset + len(_MAGIC) <= store.size and not store.head.startswith(_MAGIC):
            if store.read(offset, len(_MAGIC), "HDF5 signature") == _MAGIC:
                return True
            offset *= 2
        return store.head.startswith(_MAGIC)

    def open(self, store: Store) -> Arrays:
        return Datasets(store)

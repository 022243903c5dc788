"""Arrays whose elements can be assigned: existing files, and new ones of a known shape."""

from __future__ import annotations

import errno
import math
import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from lowtide import errors
from lowtide._arrays import assignment, targets, unpublished
from lowtide._arrays import casting as _casting
from lowtide._arrays.array import Array
from lowtide._arrays.casting import Casting
from lowtide._arrays.conversions import Fields, is_names
from lowtide._arrays.formats.layout import Layout
from lowtide._arrays.indexing import Selection
from lowtide._arrays.stored import StoredArray
from lowtide._arrays.unpublished import State
from lowtide._arrays.views import ConvertedView
from lowtide._closing import Publishing
from lowtide._io import atomic
from lowtide._io.identity import Identity
from lowtide._io.pace import ScatteredPace
from lowtide._io.reader import Cache, ReaderName
from lowtide._io.system import sync_data
from lowtide.errors import ArgumentError, IndexingError, UnsupportedError, WriteError

_AT_ONCE = 4 * 2**20  # bytes converted and written at once
_FORMATS = ("npy", "raw", "safetensors")


class _Elements(NamedTuple):
    """The target of an assignment: all of an array, or a field of its records."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


class WritableArray(Publishing, StoredArray):
    """An :class:`Array` whose elements can be assigned, in bounded memory and with few unwritten pages.

    ``lowtide.open(path, mode="r+")`` opens an existing file, and ``lowtide.create(path, dtype,
    shape=...)`` creates one. ``out[index] = values`` takes every index that ``out[index]`` reads, values
    that broadcast to it, and other lowtide arrays of its shape, which are copied piece by piece. A field of
    records is assigned as ``out["x"][rows] = values``; other views are read-only. Values that do not fit are
    refused as by ``create``; those of pieces of 4 MiB before them have been written by then.

    Threads may write at the same time, and so may processes: pickle the array, fork, or open the file in
    each of them. Where two of them write the same element, either value may be the one that stays.

    What a crash leaves: of a new file nothing under its final name, until ``close``. Of a file that is
    written in place, each assignment since the last :meth:`flush` may be on disk, missing, or there in part;
    a run of rows is one system call, and most file systems then have each page of 4 KiB old or new, so that
    a row within one page is never a mixture. What ``flush`` has returned for is on disk.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        reader: ReaderName = "auto",
        cache: Cache = "keep",
        casting: Casting = "same_kind",
        path: str | None = None,
        partial: targets.Shaped | None = None,
    ) -> None:
        if casting not in ("same_kind", "unsafe"):
            raise ArgumentError(f"{layout.path}: casting must be 'same_kind' or 'unsafe', got {casting!r}")
        self._final = path or layout.path
        self._casting: Casting = casting
        self._partial = partial
        self._pace = ScatteredPace()
        # A new file is locked by whoever created it.
        self._file = _WritableFile(layout.path, lock=self._final == layout.path)
        identity = Identity.of(os.fstat(self._file.fd()))._replace(written=True)
        super().__init__(replace(layout, identity=identity), reader, cache)

    @property
    def path(self) -> str:
        """The file, as an absolute path; a new one appears there when the array is closed."""
        return self._final

    def __setitem__(self, index: Any, value: Any) -> None:
        if not is_names(index):
            self._assign(_Elements(self.dtype, self.shape, self._strides, self._layout.offset), index, value)
            return
        for name in [index] if isinstance(index, str) else index:
            field = self._fields(name)
            field[...] = value if isinstance(index, str) else _field_of(value, name, self.path)

    def _fields(self, names: str | list[str]) -> Array:
        if not isinstance(names, str):
            return super()._fields(names)
        try:
            return WritableField(self, Fields(names))
        except IndexingError as error:
            raise IndexingError(f"{self.path}: {error}") from None

    def _assign(self, elements: _Elements, index: Any, value: Any) -> None:
        self._check_open()
        try:
            selection = Selection.of(index, elements.shape, elements.strides, elements.dtype.itemsize)
        except IndexingError as error:
            raise IndexingError(f"{self.path}: {error}") from None
        if np.ma.is_masked(value):  # as an ndarray it would show what the mask hides
            raise ArgumentError(f"{self.path}: values are masked; fill them first, as in values.filled(0)")
        piece = self._values(value, selection.shape, elements.dtype)
        with errors.write_errors(self.path):
            for part, place in assignment.parts(selection, _AT_ONCE):
                self._write(elements, part, piece(place), place[0].start or 0 if place else 0)

    def _values(
        self, value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Callable[[tuple[slice, ...]], npt.NDArray[Any]]:
        """A function of the values for a place in the selection; an error if they do not fit its shape."""
        if isinstance(value, Array) and value.shape == shape:
            source = value
            if self._inodes() & source._inodes():  # what is read would have been written a piece before
                raise ArgumentError(
                    f"{self.path}: values of the same file would be read while they are written; load them "
                    f"first, as in array[rows] = other[:]"
                )
            self._check_values(source.dtype, dtype)
            return lambda place: np.asarray(source[(..., *place)])
        array = np.asarray(value, dtype if dtype.names and isinstance(value, tuple) else None)
        while array.ndim > len(shape) and array.shape[0] == 1:  # as NumPy does
            array = array[0]
        try:
            broadcast = np.broadcast_to(array, shape)
        except ValueError:
            raise ArgumentError(
                f"{self.path}: values of shape {array.shape} cannot be broadcast to the selection's shape "
                f"{shape}; pass one value, or as many as are selected"
            ) from None
        if array.size:
            self._check_values(array.dtype, dtype)
        return lambda place: broadcast[cast("Any", (..., *place))]

    def _check_values(self, given: np.dtype[Any], dtype: np.dtype[Any]) -> None:
        if self._casting != "unsafe":
            _casting.check_dtype(self.path, given, dtype)

    def _write(self, elements: _Elements, part: Selection, values: npt.NDArray[Any], first: int) -> None:
        rows = values if values.ndim else values[None]
        converted = _casting.convert(self.path, rows, elements.dtype, self._casting, first)
        converted = converted.reshape(values.shape)
        fd = self._file.fd()
        for written in assignment.write(part, converted, fd, elements.offset):
            self._pace.wrote(fd, *written)

    def flush(self) -> None:
        """Put everything that was assigned on disk, so that it survives a loss of power.

        That includes what other processes wrote to the file. A new file has its final name only after
        ``close``.
        """
        self._check_open()
        with errors.write_errors(self.path):
            fd = self._file.fd()
            sync_data(fd)
            replaced = self._partial is None and not atomic.is_at(fd, self._layout.path)
        if replaced:
            raise WriteError(
                errno.ESTALE,
                "another file has taken its place since it was opened, so that what was assigned is lost; "
                "open it again and assign again",
                self.path,
            )

    def close(self) -> None:
        """Put everything on disk and, if the file is new, under its name; idempotent."""
        if self.closed:
            return
        try:
            if self._partial is None:
                self.flush()
            elif self._partial.held:
                self._partial.publish()
                unpublished.published(self.path)
        finally:
            self._end()

    def abort(self) -> None:
        """Close without waiting for the disk. A new file is discarded; what was assigned in place stays."""
        if self._partial is not None:
            self._partial.abort()
        self._end()

    def _end(self) -> None:
        self._file.close()
        super().close()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ", not yet published" if self._partial else ""
        return (
            f"<lowtide.WritableArray {self.path!r}, shape={self.shape}, dtype={str(self.dtype)!r}, "
            f"reader={self.reader}{state}>"
        )

    def _not_written(self, what: str) -> TypeError:
        return TypeError(
            f"{self.path}: {what} would load and write the whole array; go through it in pieces, as in "
            f"array[rows] = f(array[rows])"
        )

    def _discard(self, state: State) -> bool:
        """End it without publishing; return whether there was something to publish."""
        if self._partial is None or not self._partial.held:
            return False
        self.abort()
        return True

    def _loss(self) -> str:
        return f"the array of shape {self.shape} was"

    def __del__(self) -> None:
        if getattr(self, "_partial", None) is not None:
            unpublished.collected(self)

    def __reduce__(self) -> tuple[Any, ...]:
        self._check_open()
        return _restore, (self._layout, *self._settings, self._casting, self._final)


class WritableField(ConvertedView):
    """One field of the records of a :class:`WritableArray`, to be read and assigned."""

    _source: WritableArray
    _conversion: Fields

    def __setitem__(self, index: Any, value: Any) -> None:
        self._check_open()
        source = self._source
        assert source.dtype.fields is not None
        field, offset = source.dtype.fields[self._conversion.argument][:2]
        inner = [math.prod(field.shape[i + 1 :]) * field.base.itemsize for i in range(len(field.shape))]
        elements = _Elements(
            field.base, self.shape, (*source._strides, *inner), source._layout.offset + offset
        )
        source._assign(elements, index, value)

    def __reduce__(self) -> tuple[Any, ...]:
        self._check_pickled()
        return WritableField, (self._source, self._conversion)


def _field_of(value: Any, name: str, path: str) -> Any:
    names = getattr(getattr(value, "dtype", None), "names", None) or ()
    if name not in names:
        raise ArgumentError(f"{path}: values for several fields must be records with a field {name!r}")
    return value[name]


def _restore(layout: Layout, reader: ReaderName, cache: Cache, casting: Casting, final: str) -> WritableArray:
    """In another process: it writes the same file, even under its temporary name, and publishes nothing."""
    restored = WritableArray(layout, reader=reader, cache=cache, casting=casting, path=final)
    inode = layout.identity and layout.identity.inode
    if restored._layout.identity is not None and restored._layout.identity.inode != inode:
        restored.abort()
        raise WriteError(
            errno.ESTALE,
            "was published, discarded or replaced since the array was pickled; open it again",
            final,
        )
    return restored


def open_in_place(layout: Layout, reader: ReaderName, cache: Cache, casting: Casting) -> WritableArray:
    """The array of an existing file, to be written in place."""
    if layout.format not in _FORMATS:
        remedy = "write the array to an .npy file with lowtide.create"
        raise UnsupportedError(
            f"{layout.path}: {layout.format} files are not written in place (expected npy, raw or "
            f"safetensors); {remedy}"
        )
    return WritableArray(layout, reader=reader, cache=cache, casting=casting)


def create_shaped(
    path: str, is_npy: bool, dtype: np.dtype[Any], shape: tuple[int, ...], casting: Casting
) -> WritableArray:
    """A new array of zeros under a temporary name."""
    partial = targets.Shaped(path, is_npy, dtype, shape)
    try:
        return WritableArray(partial.layout, casting=casting, path=path, partial=partial)
    except BaseException:
        partial.abort()
        raise


class _WritableFile:
    """A descriptor for writing in each process that has the array: those of a parent are not used after fork.

    Existing files have a lock that is shared by all who write in place, so that nobody appends to them.
    """

    def __init__(self, path: str, *, lock: bool) -> None:
        self._path = path
        self._lock = lock
        self._inode = 0
        self._pid = -1
        self._fd = -1
        self._closed: weakref.finalize[..., Any] | None = None
        self.fd()

    def fd(self) -> int:
        if self._pid != os.getpid():
            self._open()
        return self._fd

    def _open(self) -> None:
        with errors.write_errors(self._path):
            fd = os.open(self._path, os.O_RDWR | getattr(os, "O_BINARY", 0))
            status = os.fstat(fd)
        if self._fd >= 0:  # the parent's
            os.close(self._fd)
        if self._inode not in (0, status.st_ino):
            os.close(fd)
            raise WriteError(
                errno.ESTALE, "was published or replaced in another process; open it again", self._path
            )
        if self._lock and not atomic.lock(fd, shared=True):
            os.close(fd)
            raise atomic.busy(self._path)
        self._inode, self._fd, self._pid = status.st_ino, fd, os.getpid()
        self._closed = weakref.finalize(self, _close, fd, self._pid)
        self._closed.atexit = False

    def close(self) -> None:
        if self._closed is not None:
            self._closed()


def _close(fd: int, pid: int) -> None:
    if pid == os.getpid():  # in a child the number may be that of another file
        with suppress(OSError):
            os.close(fd)

"""Writing arrays row by row, in bounded memory, so that readers see all of it or nothing."""

from __future__ import annotations

import json
import math
import os
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide import errors, formats, publish
from lowtide.errors import ArgumentError, ClosedError, UnsupportedError, WriteError
from lowtide.formats import journal, npy

_AT_ONCE = 4 * 2**20  # bytes converted and written at once


def create(
    path: str | os.PathLike[str],
    dtype: npt.DTypeLike,
    row_shape: int | tuple[int, ...] = (),
    *,
    append: bool = False,
) -> Writer:
    """A writer of rows of ``row_shape``: to NPY when ``path`` ends in ``.npy``, else raw.

    Use it as a context manager. The file appears under its name, complete and on disk, when the block ends
    well; when it fails, nothing appears and an older file of that name is untouched. Memory and dirty page
    cache stay bounded however much is written.

    With ``append=True`` rows are added to the file that is there (or to a new one). Readers see the rows
    that were there before until the block has ended well, and again if it fails or the machine dies.

    >>> with lowtide.create(tmp / "out.npy", "float32", row_shape=2) as out:
    ...     out.append([[1, 2], [3, 4]])
    ...     out.append([5, 6])
    >>> np.load(tmp / "out.npy").tolist()
    [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    >>> with lowtide.create(tmp / "out.npy", "float32", row_shape=2, append=True) as out:
    ...     out.append([7, 8])
    >>> lowtide.open(tmp / "out.npy").shape
    (4, 2)
    """
    where = os.path.abspath(os.fspath(path))
    kind = _checked_dtype(where, dtype)
    if isinstance(row_shape, int):
        row_shape = (row_shape,)
    if any(not isinstance(length, int) or length < 0 for length in row_shape):
        raise ArgumentError(f"{where}: row_shape must hold whole numbers from 0, got {row_shape!r}")
    suffix = os.path.splitext(where)[1].lower()
    if suffix in (".npz", ".safetensors", ".h5", ".hdf5", ".parquet"):
        raise UnsupportedError(
            f"{where}: {suffix} files are read and not written; write .npy, or raw as .bin"
        )
    if append and os.path.exists(where):
        return Writer(_Appended(where, kind, tuple(row_shape)), kind, tuple(row_shape))
    return Writer(_Fresh(where, kind, tuple(row_shape)), kind, tuple(row_shape))


class Writer:
    """Takes rows, and publishes them when closed; see :func:`create`."""

    def __init__(self, target: _Fresh | _Appended, dtype: np.dtype[Any], row_shape: tuple[int, ...]) -> None:
        self._target = target
        self._closed = False
        self._pace = publish.Pace(target.fd, target.end)
        self.dtype = dtype
        self.row_shape = row_shape
        self.rows = 0
        """Rows appended by this writer."""

    @property
    def path(self) -> str:
        return self._target.path

    def append(self, rows: npt.ArrayLike) -> None:
        """Add rows: an array of shape ``(n, *row_shape)``, or one row of ``row_shape``."""
        if self._closed:
            raise ClosedError(
                f"{self.path}: the writer was closed; lowtide.create(..., append=True) adds more"
            )
        array = np.asarray(rows)
        if array.shape == self.row_shape:
            array = array[None]
        if array.shape[1:] != self.row_shape or not array.ndim:
            wanted = ", ".join(["n", *map(str, self.row_shape)])
            raise ArgumentError(f"{self.path}: rows must have shape ({wanted}), got {array.shape}")
        if not _fits(array, self.dtype):
            raise ArgumentError(
                f"{self.path}: these values of {array.dtype} do not fit into {self.dtype}; "
                f"convert them yourself, or create the file with a dtype that holds them"
            )
        width = math.prod(self.row_shape) * self.dtype.itemsize
        step = max(1, _AT_ONCE // max(1, width))
        for first in range(0, len(array) if width else 0, step):
            some = np.ascontiguousarray(array[first : first + step], self.dtype)
            try:
                publish.write_all(self._target.fd, some.reshape(-1).view(np.uint8).data, self._target.end)
            except OSError as error:
                self.abort()
                raise errors.writing(self.path, error) from error
            self._target.end += some.nbytes
            self._pace.wrote(self._target.end)
        self.rows += len(array)

    def close(self) -> None:
        """Publish what was appended; idempotent."""
        if not self._closed:
            self._closed = True
            self._target.publish(self.rows)

    def abort(self) -> None:
        """Forget what was appended; idempotent, and harmless after ``close``."""
        if not self._closed:
            self._closed = True
            self._target.abort()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


class _Fresh:
    """A new file, renamed into place when complete."""

    def __init__(self, path: str, dtype: np.dtype[Any], row_shape: tuple[int, ...]) -> None:
        self._header = _header(path, dtype, row_shape)
        self._partial = publish.Partial(path)
        self.path = path
        self.fd = self._partial.fd
        self.end = len(self._header(0))

    def publish(self, rows: int) -> None:
        try:
            publish.write_all(self.fd, memoryview(self._header(rows)), 0)
        except OSError as error:
            self.abort()
            raise errors.writing(self.path, error) from error
        self._partial.publish()

    def abort(self) -> None:
        self._partial.abort()


class _Appended:
    """An old file that grows in place. Its journal says how much of it counts until the end is on disk."""

    def __init__(self, path: str, dtype: np.dtype[Any], row_shape: tuple[int, ...]) -> None:
        self.path = path
        self._header = _header(path, dtype, row_shape)
        self._journal = path + journal.SUFFIX
        try:
            self.fd = os.open(path, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
        except OSError as error:
            raise errors.writing(path, error) from None
        try:
            if not publish.lock(self.fd):
                raise WriteError(f"{path}: is being written by another process; wait for it to end")
            # What an append that died left behind is cut off before the new rows come.
            self._rows, self.end = self._published(dtype, row_shape)
            try:
                _write_journal(self._journal, self.end)
                if os.fstat(self.fd).st_size > self.end:  # else its readers would take it for rewritten
                    os.ftruncate(self.fd, self.end)
            except OSError as error:
                raise errors.writing(path, error) from None
        except BaseException:
            os.close(self.fd)
            raise
        self._undo = weakref.finalize(self, _undo, self.fd, self.end, self._journal)

    def _published(self, dtype: np.dtype[Any], row_shape: tuple[int, ...]) -> tuple[int, int]:
        if len(self._header(0)):
            layout = formats.inspect(self.path)
            wanted, found = (dtype, row_shape), (layout.dtype, layout.shape[1:])
            if layout.format != "npy" or not layout.shape or layout.fortran or wanted != found:
                raise ArgumentError(
                    f"{self.path}: holds {layout.format} of {layout.dtype}, shape {layout.shape}"
                    f"{', in Fortran order' if layout.fortran else ''}; rows of {dtype}, shape {row_shape}, "
                    f"cannot be appended to it"
                )
            if layout.offset != len(self._header(0)):
                raise UnsupportedError(
                    f"{self.path}: its header of {layout.offset} bytes has no room for another row count; "
                    f"write it again with lowtide.create and it will have"
                )
            return layout.shape[0], layout.offset + layout.nbytes
        width = math.prod(row_shape) * dtype.itemsize
        size = journal.published_size(self.path, os.fstat(self.fd).st_size)
        if width and size % width:
            raise errors.FormatError(
                f"{self.path}: has {size} bytes, no multiple of rows of {width} bytes; "
                f"was it written with another dtype or row_shape?"
            )
        return size // width if width else 0, size

    def publish(self, rows: int) -> None:
        try:
            os.fsync(self.fd)
            publish.write_all(self.fd, memoryview(self._header(self._rows + rows)), 0)
            os.fsync(self.fd)
            os.unlink(self._journal)
            publish.sync_folder(os.path.dirname(self.path))
        except OSError as error:
            self.abort()
            raise errors.writing(self.path, error) from error
        self._undo.detach()
        os.close(self.fd)

    def abort(self) -> None:
        self._undo()


def _undo(fd: int, size: int, journal_path: str) -> None:
    try:
        os.ftruncate(fd, size)
        os.fsync(fd)
        os.unlink(journal_path)
    except OSError:  # the journal still says what counts, and the next append cuts the rest off
        pass
    finally:
        os.close(fd)


def _write_journal(path: str, size: int) -> None:
    partial = publish.Partial(path)
    publish.write_all(partial.fd, memoryview(json.dumps({"size": size}).encode()), 0)
    partial.publish()


def _header(path: str, dtype: np.dtype[Any], row_shape: tuple[int, ...]) -> Callable[[int], bytes]:
    """A function from a number of rows to the file's header; of the same length for any number."""
    if path.lower().endswith(".npy"):
        return lambda rows: npy.make_header(dtype, (rows, *row_shape))
    return lambda rows: b""


def _checked_dtype(path: str, dtype: npt.DTypeLike) -> np.dtype[Any]:
    try:
        kind = np.dtype(dtype)
    except TypeError as error:
        raise ArgumentError(f"{path}: dtype {dtype!r} is not understood: {error}") from None
    if kind.hasobject:
        raise UnsupportedError(f"{path}: objects can only be stored as pickles, which lowtide does not write")
    if not kind.itemsize or kind.subdtype:
        raise ArgumentError(
            f"{path}: dtype {kind} has no fixed size of its own; put the lengths into row_shape"
        )
    return kind


def _fits(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Whether nothing but precision is lost. NumPy itself would let integers wrap round silently."""
    if array.dtype.kind in "iu" and dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        return not array.size or (int(array.min()) >= bounds.min and int(array.max()) <= bounds.max)
    return not array.size or np.can_cast(array.dtype, dtype, "same_kind")

"""Where a writer's rows go: a new file, or the end of an existing one."""

from __future__ import annotations

import errno
import json
import math
import os
from contextlib import suppress
from typing import Any

import numpy as np

from lowtide import errors
from lowtide._arrays import formats
from lowtide._arrays.formats import npy
from lowtide._arrays.formats.layout import Layout
from lowtide._io import atomic, journal, store
from lowtide._io.pace import Pace
from lowtide._io.system import bytes_at, write_at
from lowtide.errors import ArgumentError, LowtideError, UnsupportedError, WriteError

_READ_ONLY = (".npz", ".safetensors", ".h5", ".hdf5", ".parquet")


def resolve(path: str | os.PathLike[str]) -> tuple[str, bool]:
    """The file to write for ``path``, through links, and whether it is NPY; else it is raw."""
    real = store.absolute(path) if store.is_address(path) else atomic.resolve(path)
    # Either name may tell: a link of any name to x.npy, and x.npy as a link to a blob in some store.
    suffixes = {os.path.splitext(name)[1].lower() for name in (os.fspath(path), real)}
    for suffix in suffixes.intersection(_READ_ONLY):
        raise UnsupportedError(f"{real}: {suffix} files are read and not written; write .npy, or raw as .bin")
    return real, ".npy" in suffixes


def recover(path: str) -> None:
    """Cut off what an append that was killed left of ``path``, so that its journal can be removed.

    A journal that stayed would hide rows of the file that is written next.
    """
    size = journal.journal_size(path)
    if size is None:
        return
    with errors.write_errors(path):
        try:
            fd = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            with suppress(FileNotFoundError):
                os.unlink(path + journal.SUFFIX)
            return
        try:
            if not atomic.lock(fd):
                raise atomic.busy(path)
        except OSError:
            os.close(fd)
            raise
    with suppress(LowtideError):  # the header of an NPY file counts what is published, if it is a sound one
        layout = formats.inspect(path)
        if layout.format == "npy":
            size = layout.offset + layout.nbytes
    _undo(fd, b"", size, path + journal.SUFFIX)


class Growing(atomic.Held):
    """A file whose rows come one after another, and are forced to disk as they come."""

    end: int
    """Where the next row goes."""
    _pace: Pace | None = None

    def write(self, data: memoryview) -> None:
        """Add bytes at the end."""
        write_at(self.fd, data, self.end)
        if self._pace is None:
            self._pace = Pace(self.fd, self.end)
        self.end += len(data)
        self._pace.wrote(self.end)

    def rewind(self, end: int) -> bool:
        """Take back what was written from ``end`` on; return whether that was possible."""
        try:
            os.ftruncate(self.fd, end)
        except OSError:
            return False
        self.end, self._pace = end, None
        return True


class Fresh(Growing, atomic.Partial):
    """A new file, renamed into place when complete."""

    def __init__(self, path: str, is_npy: bool, dtype: np.dtype[Any], row_shape: tuple[int, ...]) -> None:
        self.dtype, self.row_shape = dtype, row_shape
        self._is_npy = is_npy
        self.end = len(_header(is_npy, dtype, (0, *row_shape)))
        recover(path)
        atomic.Partial.__init__(self, path)

    def finish(self, rows: int) -> None:
        """Publish the file with this number of rows."""
        with errors.write_errors(self.path):
            header = _header(self._is_npy, self.dtype, (rows, *self.row_shape))
            write_at(self.fd, memoryview(header), 0)
        self.publish()


class Shaped(atomic.Partial):
    """A new file of its final size, full of zeros that take no room on disk until they are written."""

    def __init__(self, path: str, is_npy: bool, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        header = _header(is_npy, dtype, shape)
        recover(path)
        super().__init__(path)
        size = len(header) + math.prod(shape) * dtype.itemsize
        try:
            write_at(self.fd, memoryview(header), 0)
            os.ftruncate(self.fd, size)
        except (OSError, OverflowError) as error:
            self.abort()
            if isinstance(error, OverflowError):
                raise ArgumentError(f"{path}: {size} bytes are more than a file can have") from None
            raise errors.writing(self.path, error) from error
        self.layout = Layout(
            self.temporary, "npy" if is_npy else "raw", len(header), dtype, shape, file_size=size
        )


class Appended(Growing):
    """An existing file that grows in place. Until it is closed its journal says how much of it counts."""

    def __init__(
        self, path: str, is_npy: bool, dtype: np.dtype[Any] | None, row_shape: tuple[int, ...] | None
    ) -> None:
        with errors.write_errors(path):
            fd = os.open(path, os.O_RDWR)
            try:
                if not atomic.lock(fd):
                    raise atomic.busy(path)
                # What an append that died left behind is cut off before the new rows come.
                find = _published_npy if is_npy else _published_raw
                self.dtype, self.row_shape, self._rows, self.end = find(path, dtype, row_shape)
                self._is_npy = is_npy
                before = bytes_at(fd, len(_header(is_npy, self.dtype, (self._rows, *self.row_shape))), 0)
                atomic.write_file(path + journal.SUFFIX, json.dumps({"size": self.end}).encode())
                if os.fstat(fd).st_size > self.end:  # else readers of the old rows take it for rewritten
                    os.ftruncate(fd, self.end)
            except BaseException:
                os.close(fd)
                raise
        super().__init__(path, fd, _undo, before, self.end, path + journal.SUFFIX)

    def finish(self, rows: int) -> None:
        """Count this number of rows more."""
        with errors.write_errors(self.path):
            os.fsync(self.fd)
            size = os.fstat(self.fd).st_size
            if size != self.end or not atomic.is_at(self.fd, self.path):
                raise WriteError(
                    errno.ESTALE,
                    f"another program wrote to the file or replaced it meanwhile ({size} bytes, expected "
                    f"{self.end}); append the rows again",
                    self.path,
                )
            header = _header(self._is_npy, self.dtype, (self._rows + rows, *self.row_shape))
            write_at(self.fd, memoryview(header), 0)
            os.fsync(self.fd)
            os.unlink(self.path + journal.SUFFIX)
            self.release()
            atomic.sync_folder(os.path.dirname(self.path))


Published = tuple[np.dtype[Any], tuple[int, ...], int, int]  # dtype, row_shape, rows, bytes up to their end


def _published_npy(path: str, dtype: np.dtype[Any] | None, row_shape: tuple[int, ...] | None) -> Published:
    layout = formats.inspect(path)
    actual = (layout.dtype, layout.shape[1:])
    given = (
        layout.dtype if dtype is None else dtype,
        layout.shape[1:] if row_shape is None else row_shape,
    )
    if layout.format != "npy" or not layout.shape or layout.fortran or given != actual:
        raise ArgumentError(
            f"{path}: holds {layout.format} of {layout.dtype}, shape {layout.shape}"
            f"{', in Fortran order' if layout.fortran else ''}; rows of {given[0]}, shape {given[1]}, "
            f"cannot be appended to it"
        )
    if layout.offset != len(npy.make_header(layout.dtype, layout.shape)):
        raise UnsupportedError(
            f"{path}: its header of {layout.offset} bytes has no room for another row count; "
            f"write it again with lowtide.create and it will have"
        )
    return *actual, layout.shape[0], layout.offset + layout.nbytes


def _published_raw(path: str, dtype: np.dtype[Any] | None, row_shape: tuple[int, ...] | None) -> Published:
    if dtype is None:
        raise ArgumentError(f"{path}: a raw file does not record its dtype; pass the one it was written with")
    row_shape = row_shape or ()
    width = math.prod(row_shape) * dtype.itemsize
    size = journal.published_size(path, os.stat(path).st_size)
    if width and size % width:
        raise errors.FormatError(
            f"{path}: has {size} bytes, not a multiple of rows of {width} bytes; "
            f"was it written with another dtype or row_shape?"
        )
    return dtype, row_shape, size // width if width else 0, size


def _header(is_npy: bool, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The bytes before the rows; as many for any number of rows."""
    return npy.make_header(dtype, shape) if is_npy else b""


def _undo(fd: int, header: bytes, size: int, journal_path: str) -> None:
    try:
        # Publishing may have failed after the new header was written.
        write_at(fd, memoryview(header), 0)
        os.ftruncate(fd, min(size, os.fstat(fd).st_size))  # never longer: that would make up rows of zeros
        os.fsync(fd)
        os.unlink(journal_path)
    except OSError:  # the journal still says what counts, and the next append cuts the rest off
        pass
    finally:
        os.close(fd)

"""Rows that go to an object in a bucket."""

from __future__ import annotations

import errno
from typing import Any
from uuid import uuid4

import numpy as np

from lowtide._arrays.formats import npy
from lowtide._io import store
from lowtide._io.remote import address, uploads
from lowtide.errors import WriteError

_SMALL = 2**20  # bytes of rows up to which an object is written at once


class Uploaded:
    """A new object, visible when it is complete.

    The header of an NPY file counts the rows, and comes first, but objects are written from front to back. So
    the rows of one that is not small go to an object beside it, ``NAME.partial-…``, which is copied behind
    the header when their number is known. If it is known from the start, as ``rows``, all is written once. A
    raw file has no header.
    """

    def __init__(
        self,
        path: str,
        is_npy: bool,
        dtype: np.dtype[Any],
        row_shape: tuple[int, ...],
        rows: int | None = None,
    ) -> None:
        self.path, self.dtype, self.row_shape = path, dtype, row_shape
        self.end = 0
        self._is_npy, self._known = is_npy, rows
        self._front = bytearray()
        self._is_beside = is_npy and rows is None
        name = f"{path}.partial-{uuid4().hex[:12]}" if self._is_beside else path
        self._upload = uploads.Upload(name)

    @property
    def held(self) -> bool:
        """Whether it is still to be published or aborted, by this process."""
        return self._upload.held

    def write(self, data: memoryview) -> None:
        """Add bytes at the end."""
        if self.end + len(data) <= _SMALL:
            self._front += data
        else:
            if self.end == len(self._front):  # nothing was sent yet
                if self._known is not None:
                    self._upload.write(self._header(self._known))
                self._upload.write(self._front)
                self._front.clear()
            self._upload.write(data)
        self.end += len(data)

    def rewind(self, end: int) -> bool:
        """Take back what was written from ``end`` on; return whether that was possible."""
        if self.end != end and self.end != len(self._front):  # it was sent
            return False
        del self._front[end:]
        self.end = end
        return True

    def finish(self, rows: int) -> None:
        """Publish the object with this number of rows."""
        header = self._header(rows)
        if self.end == len(self._front):
            self.abort()
            uploads.put(self.path, header + bytes(self._front), self._upload.options)
            return
        if self._known not in (None, rows):
            self.abort()
            raise WriteError(errno.EIO, f"has {rows} rows, expected {self._known}; write it again", self.path)
        self._upload.publish()
        if self._is_beside:
            options = self._upload.options
            try:
                uploads.prepend(header, self._upload.path, self.end, self.path, options)
            finally:
                with address.using(options):
                    store.delete(self._upload.path)

    def _header(self, rows: int) -> bytes:
        return npy.make_header(self.dtype, (rows, *self.row_shape)) if self._is_npy else b""

    def abort(self) -> None:
        """Discard what was written; idempotent."""
        self._upload.abort()

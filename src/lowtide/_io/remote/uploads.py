"""Objects that are being written: visible when they are complete, and aborted if writing fails.

They are sent in parts, several at once. The parts that a killed process has sent are never visible; stores
keep them until a rule of the bucket removes incomplete multipart uploads.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import Any, Self
from uuid import uuid4

from lowtide import errors
from lowtide._io.remote import client, requests
from lowtide._io.remote.address import Options, options_for, parse
from lowtide._io.remote.reader import RemoteReader
from lowtide._sizes import format_size

_MOST_PARTS = 10_000  # the limit of S3
_PIECE = 4 * 2**20  # bytes that are copied at once


class Upload:
    """An object that is being written from front to back.

    Parameters
    ----------
    path
        Its address.
    options
        The storage options; by default those with which the bucket was last opened.
    """

    def __init__(self, path: str, options: Options | None = None) -> None:
        self.path = path
        self.options = options or options_for(parse(path))
        self.size = 0
        self._limit = _MOST_PARTS * self.options.part_size
        self._process = os.getpid()
        self._number = uuid4().hex
        client.request(requests.start_upload, path, self.options, self._number)
        self.is_open = True

    @property
    def held(self) -> bool:
        """Whether this process still has to publish or abort it."""
        return self.is_open and self._process == os.getpid()

    def write(self, data: Any) -> None:
        """Send bytes, which follow those that were sent before."""
        view = memoryview(data).cast("B")
        if self.size + len(view) > self._limit:
            raise errors.WriteError(
                errno.EFBIG,
                f"more than {format_size(self._limit)} do not fit into {_MOST_PARTS} parts of "
                f"{format_size(self.options.part_size)}; pass a larger part_size in storage_options",
                self.path,
            )
        for first in range(0, len(view), _PIECE):
            piece = bytes(view[first : first + _PIECE])  # the caller may change its buffer
            client.request(requests.write_upload, self.path, self.options, self._number, piece)
            self.size += len(piece)

    def publish(self) -> requests.Meta:
        """Complete it and make it visible."""
        self.is_open = False
        client.request(requests.finish_upload, self.path, self.options, self._number)
        meta: requests.Meta | None = client.request(requests.head, self.path, self.options)
        if meta is None or meta.size != self.size:
            size = "nothing" if meta is None else f"{meta.size} bytes"
            raise errors.WriteError(
                errno.EIO,
                f"has the wrong size after writing ({size}, expected {self.size} bytes); write it again",
                self.path,
            )
        return meta

    def abort(self) -> None:
        """Discard what was sent; idempotent."""
        if self.held:
            self.is_open = False
            with suppress(errors.LowtideError):  # nothing is visible, and the earlier error matters
                client.request(requests.abort_upload, self.path, self.options, self._number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.publish()
        else:
            self.abort()

    def __del__(self) -> None:
        if getattr(self, "is_open", False):
            self.abort()


def put(path: str, data: bytes, options: Options | None = None) -> None:
    """Write a small object, all of it or nothing."""
    client.request(requests.put, path, options or options_for(parse(path)), data)


def prepend(header: bytes, source: str, size: int, path: str, options: Options) -> None:
    """Write ``header`` and the ``size`` bytes of another object to ``path``, in bounded memory."""
    import numpy as np

    with Upload(path, options) as upload:
        upload.write(header)
        reader = RemoteReader(source, size, None, options)
        buffer = np.empty(min(size, _PIECE), np.uint8)
        for first in range(0, size, _PIECE):
            piece = buffer[: size - first]
            reader.read(first, piece)
            upload.write(piece)

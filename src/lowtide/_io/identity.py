"""The identity of a file: what an array or a corpus remembers of it, to notice that it has changed.

A file is identified by device, inode, size and modification time. Writing to it in place changes the time,
``os.replace`` the inode. Appending changes size and time, and is allowed where a format can grow: then a few
bytes of the old data are compared, since a rewrite that made the file longer has the same effect. Not noticed
are an in-place write whose author restores the old time, and one within the same tick of the file system's
clock as the ``stat`` before it.

An object in a bucket is identified by its size and its ETag.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from lowtide._io.system import bytes_at

if TYPE_CHECKING:
    from lowtide._io.remote.address import Options

SAMPLE = 512  # bytes at each end of an array that distinguish an append from a rewrite


class Sample(NamedTuple):
    """A few bytes of the file that an append does not change."""

    offset: int
    length: int
    checksum: int


class Identity(NamedTuple):
    """A file as it was when it was inspected."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    samples: tuple[Sample, ...] | None = None
    """Bytes that must stay the same when the file grows; None where it must not grow."""
    written: bool = False
    """Whether this process writes the file while it reads it: then only its length is checked."""
    etag: str | None = None
    """The ETag of an object in a bucket; None where the store has none, or before the first answer."""
    options: Options | None = None
    """The storage options for an object."""

    @property
    def is_remote(self) -> bool:
        """Whether it is an object in a bucket, which nobody appends to."""
        return self.device < 0

    def lasting(self) -> Identity:
        """The same identity, for a file that must not grow."""
        return self._replace(samples=None)

    @classmethod
    def of(cls, status: os.stat_result, samples: tuple[Sample, ...] | None = None) -> Identity:
        """The identity in the result of ``os.stat``."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, samples)

    def same_file(self, status: os.stat_result) -> bool:
        """Whether ``status`` is that of the same inode.

        Another machine or container may have another device number for the same shared file system; then size
        and time decide.
        """
        return self.device != status.st_dev or self.inode == status.st_ino

    def only_grew(self, fd: int, status: os.stat_result, size: int) -> bool:
        """Whether a file of ``size`` bytes was only appended to, as far as samples show."""
        if self.written:
            return True
        if self.samples is None or status.st_size <= size:
            return False
        return all(
            crc32(bytes_at(fd, sample.length, sample.offset)) == sample.checksum for sample in self.samples
        )


def sample(offset: int, data: bytes) -> Sample:
    """The sample of ``data`` at ``offset``.

    >>> sample(128, b"data").length
    4
    """
    return Sample(offset, len(data), crc32(data))

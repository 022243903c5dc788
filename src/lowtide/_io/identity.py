"""Which file it was: what an array or a corpus remembers of a file, to notice that it has changed.

A file is known by its device, inode, size and modification time. Writing to it in place changes the time,
``os.replace`` the inode. Appending changes size and time too, and is allowed where a format can grow: then a
few bytes of the old data are compared, since a rewrite that made the file longer looks the same from outside.
What cannot be noticed is an in-place write whose author puts the old time back, or one that falls into the
same tick of the file system's clock as the ``stat`` before it.

An object in a bucket is known by its size and its ETag.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from lowtide._io.system import bytes_at

if TYPE_CHECKING:
    from lowtide._io.remote.address import Options

SAMPLE = 512  # bytes at each end of an array that tell an append from a rewrite


class Sample(NamedTuple):
    """A few bytes of the file that an append leaves as they are."""

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
    """Whether this program writes the file while it reads it: then only its length is checked."""
    etag: str | None = None
    """Of an object in a bucket: what changes with its content. None where the store has none, or before the
    first answer."""
    options: Options | None = None
    """Of an object: how its store is reached."""

    @property
    def is_remote(self) -> bool:
        """Whether it is of an object in a bucket, which nobody appends to."""
        return self.device < 0

    def lasting(self) -> Identity:
        """The same, of a file that must not grow."""
        return self._replace(samples=None)

    @classmethod
    def of(cls, status: os.stat_result, samples: tuple[Sample, ...] | None = None) -> Identity:
        """The identity that ``os.stat`` tells."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, samples)

    def same_file(self, status: os.stat_result) -> bool:
        """Whether ``status`` is of the same inode.

        Another device number is another machine's or container's view of a shared file system, perhaps of
        this very file: there size and time decide.
        """
        return self.device != status.st_dev or self.inode == status.st_ino

    def only_grew(self, fd: int, status: os.stat_result, size: int) -> bool:
        """Whether a file of which ``size`` bytes counted was only appended to, as far as samples show."""
        if self.written:
            return True
        if self.samples is None or status.st_size <= size:
            return False
        return all(
            crc32(bytes_at(fd, sample.length, sample.offset)) == sample.checksum for sample in self.samples
        )


def sample(offset: int, data: bytes) -> Sample:
    """The sample that ``data``, found at ``offset``, makes.

    >>> sample(128, b"data").length
    4
    """
    return Sample(offset, len(data), crc32(data))

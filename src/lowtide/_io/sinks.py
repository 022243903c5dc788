"""Sinks: files and objects that are written from front to back, and appear when they are complete."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from lowtide import errors
from lowtide._io import atomic, store
from lowtide._io.extents import Bytes
from lowtide._io.identity import Identity
from lowtide._io.pace import Pace
from lowtide._io.system import bytes_at, write_at

if TYPE_CHECKING:
    from lowtide._io.remote.uploads import Upload

_DIGEST = 16  # bytes


def sink(path: str) -> FileSink | Upload:
    """A sink for ``path``, a file or an address, which is published when its ``with`` block ends."""
    if store.is_address(path):
        from lowtide._io.remote.uploads import Upload

        return Upload(path)
    return FileSink(path)


class FileSink(atomic.Partial):
    """A local file, renamed into place when it is complete."""

    def __init__(self, path: str, *, keep: bool = False) -> None:
        store.make_folder(os.path.dirname(path))
        super().__init__(path, keep=keep)
        self._pace = Pace(self.fd)
        self._end = 0

    def write(self, data: Bytes) -> None:
        with errors.write_errors(self.path):
            write_at(self.fd, data.data, self._end)
            self._end += len(data)
            self._pace.wrote(self._end)


class ResumableFile(FileSink):
    """A local copy of an object, written in pieces: one process may leave it, and another continue it.

    It is ``.NAME.partial`` until it is complete. ``.NAME.pieces.partial`` beside it records which object is
    copied, and the digest of each piece: what was written earlier is compared with it before it is used.

    Parameters
    ----------
    path
        The file, which appears when it is published.
    source
        The address of the object.
    identity
        The identity of the object.
    piece
        Bytes of each piece but the last.
    """

    def __init__(self, path: str, source: str, identity: Identity, piece: int) -> None:
        super().__init__(path, keep=True)
        self._journal = f"{self.temporary.removesuffix('.partial')}.pieces.partial"
        known = [source, identity.etag, identity.size, identity.mtime_ns, piece]
        self._head = json.dumps(known).encode() + b"\n"
        self._size, self._piece = identity.size, piece

    def resume(self, take: Callable[[bytes], object]) -> int:
        """Pass on the pieces that are here and undamaged, and return the number of bytes in them."""
        with errors.write_errors(self.path):
            recorded = self._recorded()
            for first in range(0, len(recorded), _DIGEST):
                data = bytes_at(self.fd, min(self._piece, self._size - self._end), self._end)
                if not data or _digest(data) != recorded[first : first + _DIGEST]:
                    break
                take(data)
                self._end += len(data)
            count = -(-self._end // self._piece)
            with open(self._journal, "wb") as journal:
                journal.write(self._head + recorded[: count * _DIGEST])
            os.ftruncate(self.fd, self._end)
        self._pace = Pace(self.fd, self._end)
        return self._end

    def write(self, data: Bytes) -> None:
        """Write the next piece, then record it."""
        super().write(data)
        with errors.write_errors(self.path), open(self._journal, "ab") as journal:
            journal.write(_digest(data.data))

    def publish(self) -> None:
        super().publish()
        with suppress(OSError):
            os.unlink(self._journal)

    def _recorded(self) -> bytes:
        """The digests in the journal, if it is that of this object."""
        try:
            with open(self._journal, "rb") as journal:
                if journal.read(len(self._head)) == self._head:
                    return journal.read(-(-self._size // self._piece) * _DIGEST)
        except FileNotFoundError:
            pass
        return b""


def _digest(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST).digest()

"""A local copy of an object that a killed process can leave, and another continue.

It is ``.NAME.partial`` until it is complete. Beside it, ``.NAME.pieces.partial`` has which object it is of,
and the digest of each piece that was written: what is found later is compared with it before it is believed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress

from lowtide import errors
from lowtide._io import atomic
from lowtide._io.extents import Bytes
from lowtide._io.identity import Identity
from lowtide._io.pace import Pace
from lowtide._io.system import bytes_at, write_at

_DIGEST = 16  # bytes


class ResumableFile:
    """A file that is written in pieces, from front to back.

    Parameters
    ----------
    path
        The file, which appears when it is published.
    source
        The address that is copied, as the journal names it.
    identity
        Which object it is.
    piece
        Bytes of each piece but the last.
    """

    def __init__(self, path: str, source: str, identity: Identity, piece: int) -> None:
        self._partial = atomic.Partial(path, keep=True)
        self._journal = f"{self._partial.temporary.removesuffix('.partial')}.pieces.partial"
        known = [source, identity.etag, identity.size, identity.mtime_ns, piece]
        self._head = json.dumps(known).encode() + b"\n"
        self._size, self._piece = identity.size, piece
        self._end = 0

    def resume(self, take: Callable[[bytes], object]) -> int:
        """Hand on the pieces that are here and as they were written; the bytes in them."""
        with errors.write_errors(self._partial.path):
            recorded = self._recorded()
            for first in range(0, len(recorded), _DIGEST):
                data = bytes_at(self._partial.fd, min(self._piece, self._size - self._end), self._end)
                if not data or _digest(data) != recorded[first : first + _DIGEST]:
                    break
                take(data)
                self._end += len(data)
            count = -(-self._end // self._piece)
            with open(self._journal, "wb") as journal:
                journal.write(self._head + recorded[: count * _DIGEST])
            os.ftruncate(self._partial.fd, self._end)
        self._pace = Pace(self._partial.fd, self._end)
        return self._end

    def write(self, data: Bytes) -> None:
        """Write the next piece, then record it."""
        with errors.write_errors(self._partial.path):
            write_at(self._partial.fd, data.data, self._end)
            self._end += len(data)
            self._pace.wrote(self._end)
            with open(self._journal, "ab") as journal:
                journal.write(_digest(data.data))

    def publish(self) -> None:
        """Put it under its name."""
        self._partial.publish()
        with suppress(OSError):
            os.unlink(self._journal)

    def abort(self) -> None:
        """Leave it as it is, for another to continue."""
        self._partial.release()

    def _recorded(self) -> bytes:
        """The digests of the journal, if it is of this object."""
        try:
            with open(self._journal, "rb") as journal:
                if journal.read(len(self._head)) == self._head:
                    return journal.read(-(-self._size // self._piece) * _DIGEST)
        except FileNotFoundError:
            pass
        return b""


def _digest(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST).digest()

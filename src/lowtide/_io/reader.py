"""Readers: ways to bring extents of a file into a buffer, behind one protocol.

``pread`` reads into buffers and is bounded by construction. The other three read through a mapping: they are
well known, and here for comparison. ``docs/readers.md`` explains the effect of each on memory. To add one,
write a class with the methods of ``Reader``, and a line in ``READERS``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Literal, Protocol

import numpy.typing as npt

from lowtide import errors
from lowtide._io.extents import AHEAD, Bytes, Extents
from lowtide._io.identity import Identity
from lowtide._io.mapped import AdviseReader, MemmapReader, RemapReader
from lowtide._io.pending import Outcome, Pending
from lowtide._io.pread import PreadReader
from lowtide._io.store import filesystem

ReaderName = Literal["auto", "pread", "remap", "advise", "memmap"]
Cache = Literal["keep", "drop"]


class Reader(Protocol):
    """Brings extents of one file into a buffer."""

    name: str
    how: str
    """For ``repr``: the system calls in use, or the fallback and its reason."""

    parallel: bool
    """Whether several threads may read at once without taking more memory than one."""

    overlaps: bool
    """Whether several submitted reads are under way at the same time."""

    drops: bool
    """Whether it evicts what it has read from the page cache. Then one thread reads in order."""

    def submit(
        self, extents: Extents, out: Bytes, *, ahead: int = AHEAD, sequential: bool = False
    ) -> Pending[Outcome]:
        """Start to fill ``out``; hints take at most ``ahead`` bytes of page cache.

        ``sequential`` is for one of many reads in file order, for which the system reads ahead.
        """

    def fill(self, extents: Extents, out: Bytes, ahead: int = AHEAD) -> Outcome:
        """``submit`` and wait, all in this thread: for one of several threads that share a read."""

    def read(self, offset: int, out: npt.NDArray[Any], *, sequential: bool = False) -> None:
        """Fill ``out``, contiguous and of any dtype, with the bytes from ``offset`` on.

        For a single read, which has nothing to overlap with: ``submit`` would take longer.
        """

    def check(self) -> None:
        """Raise if the file was replaced or written to since it was opened."""

    def close(self) -> None:
        """Release the descriptor; a later read would open it again."""


READERS: list[Callable[[str, int, bool, Identity | None], Reader]] = [
    PreadReader,
    RemapReader,
    AdviseReader,
    MemmapReader,
]
"""Each is called with path, size, whether to evict from the page cache what was read, and identity."""


def open_reader(
    path: str,
    size: int,
    reader: ReaderName = "auto",
    cache: Cache = "keep",
    identity: Identity | None = None,
) -> Reader:
    """Open the reader called ``reader`` on the first ``size`` bytes of ``path``.

    ``auto`` is ``pread`` where the system has it, else ``remap`` (Windows). ``identity`` is that of the file
    when it was inspected: another file, or this one after it was written to, is refused.
    """
    if cache not in ("keep", "drop"):
        raise errors.ArgumentError(
            f"cache must be 'keep' or 'drop', or for an address with cache_dir= a size, got {cache!r}"
        )
    own = filesystem(path).open_reader(path, size, identity)
    if own is not None:
        if reader not in ("auto", own.name):
            raise errors.UnsupportedError(
                f"{path}: reader={reader!r} reads local files; leave reader out for an address"
            )
        return own
    lacks_pread = not hasattr(os, "preadv")
    if reader == "pread" and lacks_pread:
        raise errors.UnsupportedError(f"{path}: reader='pread' needs os.preadv; use reader='remap' here")
    name = ("remap" if lacks_pread else "pread") if reader == "auto" else reader
    kinds = {str(getattr(kind, "name", kind)): kind for kind in READERS}
    if name not in kinds:
        raise errors.ArgumentError(f"reader must be auto or one of {', '.join(kinds)}, got {reader!r}")
    one = kinds[name](path, size, cache == "drop", identity)
    if reader == "auto" and lacks_pread:
        one.how += ", as this platform lacks preadv"
    return one

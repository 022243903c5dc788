"""Readers that copy from a mapping: the well-known ways, which lowtide is measured against."""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide import errors
from lowtide._io.descriptors import Entry, File, map_file, unmap
from lowtide._io.extents import AHEAD, Bytes, Extents
from lowtide._io.identity import Identity
from lowtide._io.pagecache import FAULT_AROUND, FOLIO, drop_extents
from lowtide._io.pending import Outcome, Pending

_MAPPED_AT_ONCE = 4 * 2**20  # bytes that `remap` and `advise` may map before they release them


class RemapReader:
    """Copies from a new mapping for each piece: the first of the two usual workarounds.

    A page fault also maps the cached neighbours of a row, so the number of rows of a piece is limited, to map
    about 4 MiB at most.
    """

    name = "remap"
    parallel = False  # the bound on mapped bytes is for one thread
    overlaps = False
    _how = "map per piece"
    _can_drop = True

    def __init__(self, path: str, size: int, drop: bool, identity: Identity | None = None) -> None:
        self._file = File(path, size, identity)
        self.drops = drop and self._can_drop and hasattr(os, "posix_fadvise")
        self.how = self._how
        if drop:
            self.how += ", drop behind" if self.drops else ", cannot drop"
        self._mapped_per_row = FOLIO

    def submit(
        self, extents: Extents, out: Bytes, *, ahead: int = AHEAD, sequential: bool = False
    ) -> Pending[Outcome]:
        # A mapping cannot tell whether it would have to wait.
        return Pending(self.fill, extents, out, ahead)

    def read(self, offset: int, out: npt.NDArray[Any], *, sequential: bool = False) -> None:
        self.fill(Extents.of_range(offset, out.nbytes), out.reshape(-1).view(np.uint8))

    def fill(self, extents: Extents, out: Bytes, ahead: int = AHEAD) -> Outcome:
        at_once = min(_MAPPED_AT_ONCE, ahead)
        extents = extents.cut()  # one that is longer would be mapped whole
        if len(extents):
            with self._file.opened() as entry:
                with errors.read_errors(self._file.path):  # no room for it, or a file system without mappings
                    self._copy_pieces(entry, extents, out, at_once)
                    self._file.check(entry.fd)
                if self.drops:
                    drop_extents(entry.fd, extents)
        return Outcome(len(extents), len(extents))

    def _copy_pieces(self, entry: Entry, extents: Extents, out: Bytes, at_once: int) -> None:
        """Touch, copy and release, ``at_once`` bytes of mapped pages at a time.

        The kernel decides how much one fault maps: 64 KiB of neighbours by default, a whole large folio (up
        to 2 MiB) since Linux 6.18. So it is measured, and limits the rows of the next piece.
        """
        first = 0
        while first < len(extents):
            piece = extents.window(first, max(1, at_once // self._mapped_per_row), at_once)
            first += len(piece)
            self._file.check(entry.fd)
            start = int(piece.offsets.min()) // FOLIO * FOLIO
            stop = min(self._file.size, -(-int((piece.offsets + piece.lengths).max()) // FOLIO) * FOLIO)
            self._copy_piece(entry, piece, out, start, stop)

    def _copy_piece(self, entry: Entry, piece: Extents, out: Bytes, start: int, stop: int) -> None:
        mapped = map_file(entry.fd, start, stop)
        try:
            self._copy_watched(entry.fd, mapped, start, piece, out)
        finally:
            unmap(mapped)

    def _copy_watched(self, fd: int, mapped: mmap.mmap, start: int, piece: Extents, out: Bytes) -> None:
        """Copy a piece, and measure how much one row of it maps."""
        before = _file_pages()
        if self.drops:  # read what is needed, and not the megabytes around it, which would stay cached
            mapped.madvise(mmap.MADV_RANDOM)
            for offset, _, length in piece.rows():
                os.posix_fadvise(fd, offset, length, os.POSIX_FADV_WILLNEED)
        _copy(mapped, start, piece, out)
        after = _file_pages()
        if before is None or after is None:
            self._mapped_per_row = FAULT_AROUND
            return
        seen = max(mmap.PAGESIZE, (after - before) * mmap.PAGESIZE // len(piece))
        # Raised at once, and lowered slowly, since the next rows may be in larger folios.
        self._mapped_per_row = max(seen, self._mapped_per_row * 3 // 4)

    def check(self) -> None:
        self._file.check_path()

    def close(self) -> None:
        self._file.close()


class AdviseReader(RemapReader):
    """Copies from one mapping, with ``madvise(MADV_DONTNEED)`` after each piece: the second workaround."""

    name = "advise"
    _how = "madvise per piece"

    def __init__(self, path: str, size: int, drop: bool, identity: Identity | None = None) -> None:
        if not hasattr(mmap, "MADV_DONTNEED"):
            raise errors.UnsupportedError(
                f"{path}: reader='advise' needs madvise, which this platform lacks; use reader='remap'"
            )
        super().__init__(path, size, drop, identity)

    def _copy_piece(self, entry: Entry, piece: Extents, out: Bytes, start: int, stop: int) -> None:
        mapped = entry.mapping(self._file.size)
        self._copy_watched(entry.fd, mapped, 0, piece, out)
        mapped.madvise(mmap.MADV_DONTNEED, start, stop - start)


class MemmapReader(RemapReader):
    """Copies from one mapping and releases nothing: the leak, as the baseline."""

    name = "memmap"
    _how = "kept map, memory grows"
    _can_drop = False  # pages that are mapped cannot be dropped

    def _copy_pieces(self, entry: Entry, extents: Extents, out: Bytes, at_once: int) -> None:
        self._file.check(entry.fd)
        _copy(entry.mapping(self._file.size), 0, extents, out)


def _file_pages() -> int | None:
    """Pages of mapped files that this process holds, from the cheapest file in /proc."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[2])
    except OSError:
        return None


def _copy(mapped: mmap.mmap, start: int, extents: Extents, out: Bytes) -> None:
    """Copy extents from a mapping of the file that starts at byte ``start``."""
    width = int(extents.lengths[0])
    if len(extents) > 1 and width <= mmap.PAGESIZE and (extents.lengths == width).all():
        # With one record at every byte an index is an offset, and NumPy's gather does the loop. It copies
        # twice, which is not worth it for long records.
        record = np.dtype((np.void, width))
        source = np.ndarray((len(mapped) - width + 1,), record, mapped, strides=(1,))
        records = np.ndarray((len(out) - width + 1,), record, out, strides=(1,))
        records[extents.targets] = source[extents.offsets - start]
        return
    source = np.frombuffer(mapped, np.uint8)
    for offset, target, length in extents.rows():
        out[target : target + length] = source[offset - start : offset - start + length]

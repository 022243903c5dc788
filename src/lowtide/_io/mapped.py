"""Readers that copy from a mapping: what people know, and what lowtide is measured against."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt

from lowtide import errors
from lowtide._io.descriptors import Entry, File, map_file, unmap
from lowtide._io.dropping import FAULT_AROUND, FOLIO, drop
from lowtide._io.extents import AHEAD, Extents, of_records
from lowtide._io.identity import Identity

Bytes = npt.NDArray[np.uint8]

_MAPPED_AT_ONCE = 4 * 2**20  # what `remap` and `advise` may have mapped before they let go


class MappedReader:
    """Reads by copying from a mapping, and lets go of it in the way that its name says.

    A page fault maps a row's cached neighbours too, so ``remap`` and ``advise`` touch few enough rows before
    they let go that all of it stays within about 4 MiB. ``memmap`` never lets go: the leak.
    """

    in_order = True

    def __init__(
        self,
        path: str,
        size: int,
        cache: Literal["keep", "drop"],
        name: str,
        identity: Identity | None = None,
    ) -> None:
        self.name = name
        self._file = File(path, size, identity)
        # Pages that are mapped cannot be dropped.
        self._drop = cache == "drop" and name != "memmap" and hasattr(os, "posix_fadvise")
        if name == "advise" and not hasattr(mmap, "MADV_DONTNEED"):
            raise errors.UnsupportedError(
                f"{path}: reader='advise' needs madvise, which this platform lacks; use reader='remap'"
            )
        parts = {"remap": "map per piece", "advise": "madvise per piece", "memmap": "kept map, memory grows"}
        self.how = parts[name]
        if cache == "drop":
            self.how += ", drop behind" if self._drop else ", cannot drop"
        self._mapped_a_row = FOLIO

    def stream(self, offset: int, out: Bytes, *, wait: bool = True) -> bool:
        if wait:  # else: a mapping cannot tell whether it would have to
            self.read(offset, out)
        return wait

    def read(self, offset: int, out: Bytes) -> None:
        self.fill(of_records(np.array([offset]), len(out)), out)

    def fill(self, extents: Extents, out: Bytes, ahead: int = AHEAD) -> None:
        if not len(extents):
            return
        with self._file.opened() as entry:
            try:
                if self.name == "memmap":
                    self._file.check(entry.fd)
                    _copy(entry.mapping(self._file.size), 0, extents, out)
                else:
                    self._fill_by_pieces(entry, extents, out, min(_MAPPED_AT_ONCE, ahead))
                self._file.check(entry.fd)
            except errors.LowtideError:
                raise
            except OSError as error:  # no room for the mapping, or a file system without mappings
                raise errors.reading(self._file.path, error) from None
            if self._drop:
                drop(entry.fd, extents)

    def fill_parts(self, parts: Sequence[Callable[[], Extents]], out: Bytes, ahead: int = AHEAD) -> None:
        for part in parts:
            self.fill(part(), out, ahead)

    def begin(self, extents: Extents, out: Bytes, ahead: int = AHEAD) -> Callable[[], None]:
        return partial(self.fill, extents, out, ahead)

    def _fill_by_pieces(self, entry: Entry, extents: Extents, out: Bytes, at_once: int) -> None:
        """Touch, copy and let go, ``at_once`` bytes of mapped pages at a time.

        How much one fault maps is the kernel's choice: 64 KiB of neighbours by default, a whole large folio
        (up to 2 MiB) since Linux 6.18. So it is watched, and the pieces cut to what was seen.
        """
        first = 0
        while first < len(extents):
            rows = max(1, at_once // self._mapped_a_row)
            piece = extents.window(first, rows, at_once)
            first += len(piece)
            self._file.check(entry.fd)
            start = int(piece.offsets.min()) // FOLIO * FOLIO
            stop = min(self._file.size, -(-int((piece.offsets + piece.lengths).max()) // FOLIO) * FOLIO)
            before = _file_pages()
            if self.name == "remap":
                mapped = map_file(entry.fd, start, stop)
                try:
                    self._ask_for(entry.fd, mapped, piece)
                    _copy(mapped, start, piece, out)
                    self._learn(before, len(piece))
                finally:
                    unmap(mapped)
            else:
                mapped = entry.mapping(self._file.size)
                self._ask_for(entry.fd, mapped, piece)
                _copy(mapped, 0, piece, out)
                self._learn(before, len(piece))
                mapped.madvise(mmap.MADV_DONTNEED, start, stop - start)

    def _learn(self, before: int | None, rows: int) -> None:
        after = _file_pages()
        if before is None or after is None:
            self._mapped_a_row = FAULT_AROUND
            return
        seen = max(mmap.PAGESIZE, (after - before) * mmap.PAGESIZE // rows)
        # At once when it is more than thought; slowly back, since the next rows may lie in larger folios.
        self._mapped_a_row = max(seen, self._mapped_a_row * 3 // 4)

    def _ask_for(self, fd: int, mapped: mmap.mmap, piece: Extents) -> None:
        """Where nothing may stay behind, read what is wanted and not the megabytes around it."""
        if not self._drop:
            return
        mapped.madvise(mmap.MADV_RANDOM)
        for offset, length in zip(piece.offsets.tolist(), piece.lengths.tolist(), strict=True):
            os.posix_fadvise(fd, offset, length, os.POSIX_FADV_WILLNEED)

    def check(self) -> None:
        self._file.check_path()

    def close(self) -> None:
        self._file.close()


def _file_pages() -> int | None:
    """Pages of mapped files that this process holds, from the cheapest file in /proc."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[2])
    except OSError:
        return None


def _copy(mapped: mmap.mmap, start: int, extents: Extents, out: Bytes) -> None:
    """Copy extents from a mapping of the file that begins at byte ``start``."""
    width = int(extents.lengths[0])
    if len(extents) > 1 and width <= mmap.PAGESIZE and (extents.lengths == width).all():
        # One record at every byte: an index then is an offset, and NumPy's gather does the loop. It copies
        # twice, which long records would not be worth.
        record = np.dtype((np.void, width))
        source = np.ndarray((len(mapped) - width + 1,), record, mapped, strides=(1,))
        target = np.ndarray((len(out) - width + 1,), record, out, strides=(1,))
        target[extents.targets] = source[extents.offsets - start]
        return
    source = np.frombuffer(mapped, np.uint8)
    rows = zip(extents.offsets.tolist(), extents.targets.tolist(), extents.lengths.tolist(), strict=True)
    for offset, at, length in rows:
        out[at : at + length] = source[offset - start : offset - start + length]

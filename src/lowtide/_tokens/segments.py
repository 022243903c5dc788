"""Segments: tokens in one file or in ten thousand, read as one long array."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lowtide._io.extents import AHEAD, Bytes, Extents, Ints
from lowtide._io.gather import gather
from lowtide._io.pending import Outcome, Pending
from lowtide._io.reader import Cache, Reader, ReaderName, open_reader
from lowtide._tokens.formats.tokens import Segment

_READERS = 1024  # readers kept; each is small, but there may be many shards


class Places(NamedTuple):
    """Windows of one length, and where they lie."""

    starts: Ints
    which: Ints | None
    """The segment of each; None if there is one only."""
    offsets: Ints
    """Where each starts in its file, in bytes."""
    whole: npt.NDArray[np.bool_] | None
    """Which of them lie in one piece; None if all do."""


class Segments:
    """Segments of tokens, one after another; positions count tokens from the first one's start."""

    def __init__(
        self, segments: Sequence[Segment], dtype: np.dtype[Any], *, reader: ReaderName, cache: Cache
    ) -> None:
        self._segments = segments
        self._settings = (reader, cache)
        self._readers: OrderedDict[int, Reader] = OrderedDict()
        self.dtype = dtype
        self.borders = np.concatenate(
            ([0], np.cumsum([segment.count for segment in segments], dtype=np.int64))
        )
        """First position of each segment, and the end."""
        self._offsets = np.array([segment.offset for segment in segments], np.int64)
        # Tokens that follow each other are one record.
        self._records = np.array([segment.record or segment.count for segment in segments], np.int64)
        self._strides = np.array([segment.stride for segment in segments], np.int64)
        self._in_records = any(segment.record for segment in segments)
        self._plain = len(segments) == 1 and not self._in_records
        first: dict[str, int] = {}
        files = [first.setdefault(segment.path, nth) for nth, segment in enumerate(segments)]
        self._files = np.array(files, np.int64) if len(first) < len(segments) else None
        """The first segment of the file of each, whose reader serves all; None if no file has several."""

    def __len__(self) -> int:
        return int(self.borders[-1])

    @property
    def overlaps(self) -> bool:
        """Whether reads that were submitted one after another are under way at the same time."""
        return self._reader(0).overlaps

    def places(self, starts: Ints, length: int) -> Places:
        """Where windows of ``length`` tokens lie, for many batches at once."""
        item = self.dtype.itemsize
        if self._plain:
            offsets, whole = starts * item + self._segments[0].offset, starts + length <= len(self)
            return Places(starts, None, offsets, None if whole.all() else whole)
        which, offsets, room = self._position(starts % len(self))
        return Places(starts, which, offsets, None if room.min(initial=length) >= length else room >= length)

    def submit_places(self, places: Places, first: int, out: npt.NDArray[Any]) -> Pending[Outcome]:
        """Start to fill each row of ``out`` with one of the windows at ``places``, from ``first`` on."""
        rows = slice(first, first + len(out))
        if places.whole is not None and not places.whole[rows].all():
            return self.submit_windows(places.starts[rows], out)
        extents = Extents.of_rows(places.offsets[rows], out.shape[1] * self.dtype.itemsize)
        flat = out.reshape(-1).view(np.uint8)
        if places.which is None:
            return self._reader(0).submit(extents, flat)
        return self._gather(places.which[rows], extents, flat)

    def submit_windows(self, starts: Ints, out: npt.NDArray[Any], ahead: int = AHEAD) -> Pending[Outcome]:
        """Start to fill each row of ``out`` with the tokens from one of ``starts`` on.

        A row that passes the end continues at the start, so that windows of any phase cover every token.
        """
        if self._plain and int(starts.max(initial=0)) + out.shape[1] <= len(self):
            item = self.dtype.itemsize
            extents = Extents.of_rows(starts * item + self._segments[0].offset, out.shape[1] * item)
            return self._reader(0).submit(extents, out.reshape(-1).view(np.uint8), ahead=ahead)
        targets = np.arange(len(starts), dtype=np.int64) * out.shape[1]
        lengths = np.full(len(starts), out.shape[1], np.int64)
        return self.submit(starts, lengths, targets, out, ahead)

    def submit(
        self, starts: Ints, lengths: Ints, targets: Ints, out: npt.NDArray[Any], ahead: int = AHEAD
    ) -> Pending[Outcome]:
        """Start to read ``lengths[i]`` tokens from ``starts[i]`` on to ``targets[i]`` of the flat ``out``."""
        if not len(starts):
            return Pending.of(Outcome())
        which, extents = self._locate(starts, lengths, targets)
        return self._gather(which, extents, out.reshape(-1).view(np.uint8), ahead)

    def _gather(self, which: Ints, extents: Extents, out: Bytes, ahead: int = AHEAD) -> Pending[Outcome]:
        if self._files is not None:
            which = self._files[which]
        readers = {number: self._reader(number) for number in set(which.tolist())}
        return gather(readers, which, extents, out, ahead)

    def _locate(self, starts: Ints, lengths: Ints, targets: Ints) -> tuple[Ints, Extents]:
        """The segment of each part of each span, and the parts: a span may cross borders."""
        item = self.dtype.itemsize
        position, left, target = starts.astype(np.int64), lengths, targets * item
        parts: list[tuple[Ints, Ints, Ints, Ints]] = []
        while len(position):
            position %= len(self)
            which, offset, room = self._position(position)
            take = np.minimum(left, room)
            parts.append((which, offset, target, take * item))
            more = left > take
            position, left, target = (
                (position + take)[more],
                (left - take)[more],
                (target + take * item)[more],
            )
        which, offsets, places, sizes = (np.concatenate(column) for column in zip(*parts, strict=True))
        return which, Extents(offsets, places, sizes)

    def _position(self, positions: Ints) -> tuple[Ints, Ints, Ints]:
        """The segment of each position, its byte in the file, and the tokens that follow it there."""
        item = self.dtype.itemsize
        which = np.searchsorted(self.borders, positions, side="right") - 1
        within = positions - self.borders[which]
        room = self.borders[which + 1] - positions
        if not self._in_records:
            return which, self._offsets[which] + within * item, room
        # The rest of one record, which starts `stride` bytes after the last.
        size = self._records[which]
        offset = self._offsets[which] + within // size * self._strides[which] + within % size * item
        return which, offset, np.minimum(room, size - within % size)

    def stream(self, start: int, out: npt.NDArray[Any]) -> None:
        """Fill ``out`` with the tokens from ``start`` on, as one of many such reads in order."""
        which, extents = self._locate(np.array([start]), np.array([len(out)]), np.zeros(1, np.int64))
        flat = out.reshape(-1).view(np.uint8)
        for i, number in enumerate(which.tolist()):
            file = number if self._files is None else int(self._files[number])
            self._reader(file).submit(extents[i : i + 1], flat, sequential=True).wait()

    def _reader(self, number: int) -> Reader:
        reader = self._readers.get(number)
        if reader is None:
            segment = self._segments[number]
            reader = open_reader(segment.path, segment.file_size, *self._settings, identity=segment.identity)
            self._readers[number] = reader
            if len(self._readers) > _READERS:
                self._readers.popitem(last=False)[1].close()
        return reader

    def close(self) -> None:
        """Close every file; a later read would open it again."""
        while self._readers:
            self._readers.popitem()[1].close()

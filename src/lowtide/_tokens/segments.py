"""Segments: tokens in one file or in ten thousand, read as one long array."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide._io.aio import DEPTH
from lowtide._io.extents import AHEAD, Extents, Ints
from lowtide._io.files import Cache, PreadReader, Reader, ReaderName, open_reader, read_many
from lowtide._tokens.formats.tokens import Segment

_READERS = 1024  # readers kept; each is small, but there may be many shards
_PAGES = 8192  # what reading a window touches beside itself


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
        self._records = np.array([segment.record for segment in segments], np.int64)
        self._strides = np.array([segment.stride for segment in segments], np.int64)
        self._plain = len(segments) == 1 and not segments[0].record

    def __len__(self) -> int:
        return int(self.borders[-1])

    def submit_windows(self, starts: Ints, out: npt.NDArray[Any], ahead: int = AHEAD) -> Callable[[], None]:
        """Start to fill each row of ``out`` with the tokens from one of ``starts`` on.

        A row that passes the end continues at the start, so that windows of any phase cover every token.
        """
        item = self.dtype.itemsize
        width = out.shape[1] * item
        if self._plain and int(starts.max(initial=0)) + out.shape[1] <= len(self):
            targets, lengths = _rows(len(starts), width)
            extents = Extents(starts * item + self._segments[0].offset, targets, lengths)
            return self._reader(0).begin(extents, out.reshape(-1).view(np.uint8), ahead)
        targets = np.arange(len(starts), dtype=np.int64) * out.shape[1]
        lengths = np.full(len(starts), out.shape[1], np.int64)
        return self.submit(starts, lengths, targets, out, ahead)

    def submit(
        self, starts: Ints, lengths: Ints, targets: Ints, out: npt.NDArray[Any], ahead: int = AHEAD
    ) -> Callable[[], None]:
        """Start to read ``lengths[i]`` tokens from ``starts[i]`` on to ``targets[i]`` of the flat ``out``."""
        if not len(starts):
            return _nothing
        flat = out.reshape(-1).view(np.uint8)
        which, extents = self._locate(starts, lengths, targets)
        used = sorted(set(which.tolist()))
        if len(used) == 1:
            return self._reader(used[0]).begin(extents, flat, ahead)
        readers = {number: self._reader(number) for number in used}
        if all(isinstance(reader, PreadReader) and reader.flags[0] for reader in readers.values()):
            if len(extents.window(0, DEPTH, ahead, overhead=_PAGES)) == len(extents):
                return self._begin_gather(readers, which, extents, flat)
            return partial(self._gather, readers, which, extents, flat, ahead)
        begun = [readers[number].begin(extents[which == number], flat, ahead) for number in used]
        return partial(_finish_all, begun)

    def _locate(self, starts: Ints, lengths: Ints, targets: Ints) -> tuple[Ints, Extents]:
        """The segment of each part of each span, and the parts: a span may cross borders."""
        item = self.dtype.itemsize
        position, left, target = starts.astype(np.int64), lengths, targets * item
        found: list[tuple[Ints, Ints, Ints, Ints]] = []
        while len(position):
            position %= len(self)
            which = np.searchsorted(self.borders, position, side="right") - 1
            within = position - self.borders[which]
            take = np.minimum(left, self.borders[which + 1] - position)
            offset = self._offsets[which] + within * item
            record = self._records[which]
            if record.any():
                # Tokens in records: the rest of one record, which begins `stride` bytes after the last.
                size = np.maximum(record, 1)
                in_records = (
                    self._offsets[which] + within // size * self._strides[which] + within % size * item
                )
                offset = np.where(record > 0, in_records, offset)
                take = np.where(record > 0, np.minimum(take, size - within % size), take)
            found.append((which, offset, target, take * item))
            more = left > take
            position, left, target = (
                (position + take)[more],
                (left - take)[more],
                (target + take * item)[more],
            )
        which, offsets, places, sizes = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return which, Extents(offsets, places, sizes)

    def _gather(
        self, readers: dict[int, Any], which: Ints, extents: Extents, out: npt.NDArray[np.uint8], ahead: int
    ) -> None:
        """One window after another, each as large as the hints may be."""
        first = 0
        while first < len(extents):
            some = extents.window(first, DEPTH, ahead, overhead=_PAGES)
            owners = which[first : first + len(some)]
            first += len(some)
            self._begin_gather(readers, owners, some, out)()

    def _begin_gather(
        self, readers: dict[int, Any], which: Ints, extents: Extents, out: npt.NDArray[np.uint8]
    ) -> Callable[[], None]:
        """Ask every file for its part without waiting; what is returned waits for what was not cached."""
        nowait, wait = next(iter(readers.values())).flags
        missing = np.flatnonzero(_read_all(readers, which, extents, out, nowait) != extents.lengths)
        if not len(missing):
            return _nothing

        def finish() -> None:
            late, owners = extents[missing], which[missing]
            for i in np.flatnonzero(_read_all(readers, owners, late, out, wait) != late.lengths).tolist():
                # Its own reader goes on, or says what is wrong with its file.
                readers[int(owners[i])].fill(late[i : i + 1], out)

        return finish

    def stream(self, start: int, out: npt.NDArray[Any]) -> None:
        """Fill ``out`` with the tokens from ``start`` on, as one of many such reads in order."""
        which, extents = self._locate(np.array([start]), np.array([len(out)]), np.zeros(1, np.int64))
        flat = out.reshape(-1).view(np.uint8)
        for number, offset, target, length in zip(
            which.tolist(),
            extents.offsets.tolist(),
            extents.targets.tolist(),
            extents.lengths.tolist(),
            strict=True,
        ):
            self._reader(number).stream(offset, flat[target : target + length])

    def _reader(self, number: int) -> Reader:
        reader = self._readers.get(number)
        if reader is None:
            segment = self._segments[number]
            reader = open_reader(segment.path, segment.file_size, *self._settings, identity=segment.identity)
            self._readers[number] = reader
            if len(self._readers) > _READERS:
                self._readers.popitem(last=False)[1].close()
        return reader

    @property
    def how(self) -> str:
        """The reader in use, and what the platform gave it."""
        reader = self._reader(0)
        return f"{reader.name} ({reader.how})"

    def close(self) -> None:
        while self._readers:
            self._readers.popitem()[1].close()


def _read_all(
    readers: dict[int, Any], which: Ints, extents: Extents, out: npt.NDArray[np.uint8], flags: int
) -> Ints:
    """Bytes read, or a negative errno, for each extent of the file of its reader."""
    with ExitStack() as stack:
        fds = {}
        for number in set(which.tolist()):
            entry = stack.enter_context(readers[number].opened())
            entry.advise(random=True)
            fds[number] = entry.fd
        owned = replace(extents, fds=np.array([fds[number] for number in which.tolist()], np.int64))
        results = read_many(-1, owned, out, flags)
        for number, fd in fds.items():
            readers[number].check_one_of(len(fds), fd)
        return results


def _nothing() -> None:
    """Nothing is left to wait for."""


def _finish_all(begun: list[Callable[[], None]]) -> None:
    for finish in begun:
        finish()


@lru_cache(8)
def _rows(count: int, width: int) -> tuple[Ints, Ints]:
    """Targets and lengths of ``count`` rows of ``width`` bytes: the same for every batch."""
    targets, lengths = np.arange(count, dtype=np.int64) * width, np.full(count, width, np.int64)
    targets.flags.writeable = lengths.flags.writeable = False
    return targets, lengths

"""Files of samples, as LitData and MosaicML Streaming write them: u32 n, u32 offsets[n + 1], samples.

Where all samples of a file have one size, the tokens in them have a fixed stride and are one segment. Where
sizes differ, each sample is a segment, for which there is a limit. Sizes are compared for all
samples of a corpus of up to 2**22; in a larger one for three runs of each file, and for all by
``documents.verify()``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from lowtide._arrays.formats.layout import size_error
from lowtide._io.extents import Ints
from lowtide._io.identity import Identity
from lowtide._io.store import Store, opened
from lowtide._tokens.formats.documents import Documents, Even, Listed, Part
from lowtide._tokens.formats.tokens import Segment
from lowtide.errors import FormatError, UnsupportedError

EXACT = 2**22
"""Samples of a corpus up to which every offset is compared when it is opened."""
MAX_SEGMENTS = 100_000
"""Samples of differing sizes that are read in place: a segment for each takes about 200 bytes of memory."""

_BLOCK = 2**16
_RUN = 64

Place = Callable[[Store, int, int], tuple[int, int]]
"""Of a sample from one byte to another, the first byte of its tokens and their number of bytes."""


@dataclass(frozen=True, slots=True)
class SampleFile:
    """One file of samples."""

    path: str
    size: int
    count: int
    first: int
    """Byte of the first sample."""
    identity: Identity

    @classmethod
    def of(cls, store: Store, count: int) -> SampleFile:
        """The open file, if it has the ``count`` samples of its index and ends where they do."""
        samples = int.from_bytes(store.read(0, 4, "number of samples"), "little")
        if samples != count:
            raise FormatError(
                f"{store.path}: the index is of another corpus ({samples} samples, expected {count}); copy "
                "or write both again"
            )
        end = 4 + 4 * (count + 1)
        first, last = (int.from_bytes(store.read(at, 4, "sample offsets"), "little") for at in (4, end - 4))
        if not end <= first <= last:
            raise FormatError(
                f"{store.path}: damaged or compressed ({count} samples from byte {first} to {last}, expected "
                f"from byte {end} on); copy or write it again"
            )
        if last != store.size:
            raise size_error(store.path, store.size, last, f"{count} samples from byte {first}")
        return cls(store.path, store.size, count, first, store.identity)

    def offsets(self, store: Store, start: int, stop: int) -> Ints:
        data = store.read(4 + 4 * start, 4 * (stop - start), "sample offsets")
        return np.frombuffer(data, "<u4").astype(np.int64)

    def stride(self, store: Store, exact: bool) -> int | None:
        """Bytes from sample to sample, or None if they differ."""
        stride, left = divmod(self.size - self.first, self.count)
        if left or not stride:
            return None
        count = self.count + 1
        some = ((at, min(at + _RUN, count)) for at in (0, count // 2, max(0, count - _RUN)))
        for start, stop in [(0, count)] if exact else some:
            for first in range(start, stop, _BLOCK):
                last = min(first + _BLOCK, stop)
                if (self.offsets(store, first, last) != self.first + np.arange(first, last) * stride).any():
                    return None
        return stride


@dataclass(frozen=True, slots=True)
class Samples(Even):
    """Documents of one size, which was checked for some of the offsets only."""

    file: SampleFile

    def verify(self) -> None:
        with opened(self.file.path) as store:
            if self.file.stride(store, exact=True) is None:
                raise FormatError(
                    f"{self.file.path}: its samples were taken to have one size, and their offsets differ; "
                    "write it again with samples of one size"
                )


class Gatherer:
    """Collects segments and documents from one file of samples after another."""

    def __init__(self, samples: int, itemsize: int) -> None:
        self._exact = samples <= EXACT
        self._itemsize = itemsize
        self.segments: list[Segment] = []
        self._parts: list[Part] = []
        self._sizes: list[int] = []

    def add(self, store: Store, file: SampleFile, place: Place, fixed: bool = True) -> None:
        """Take the tokens out of samples; ``fixed`` if their place is the same in all samples of one size."""
        if file.count and not (fixed and self._even(store, file, place)):
            self._uneven(store, file, place)

    def _even(self, store: Store, file: SampleFile, place: Place) -> bool:
        stride = file.stride(store, self._exact)
        if stride is None:
            return False
        places = set()
        for start in (file.first, file.size - stride):
            at, record = self._locate(store, file, place, start, start + stride)
            places.add((at - start, record))
        if len(places) > 1:
            return False
        [(offset, record)] = places
        one = (0, 0) if stride == record * self._itemsize or not record else (record, stride)
        self._add(Samples(f"{file.path}: samples", file.count, record, file), record * file.count)
        at = file.first + offset
        self.segments.append(Segment(file.path, at, record * file.count, *one, file.size, file.identity))
        return True

    def _uneven(self, store: Store, file: SampleFile, place: Place) -> None:
        """Take the file sample by sample."""
        if len(self.segments) + file.count > MAX_SEGMENTS:
            raise UnsupportedError(
                f"{file.path}: samples differ in size, and at most {MAX_SEGMENTS} such samples of a corpus "
                "are read in place; write them with one size (tokens packed to a fixed length), or as one "
                "array, such as train.bin"
            )
        offsets = file.offsets(store, 0, file.count + 1)
        if len(back := np.flatnonzero(np.diff(offsets) < 0)):
            at = int(back[0])
            raise FormatError(
                f"{file.path}: sample offsets must ascend, found {offsets[at + 1]} after {offsets[at]}: "
                "damaged; write it again"
            )
        counts = np.empty(file.count, np.int64)
        for i, (start, stop) in enumerate(pairwise(offsets.tolist())):
            at, counts[i] = self._locate(store, file, place, start, stop)
            self.segments.append(Segment.of(file, at, int(counts[i])))
        ends = np.cumsum(counts)
        self._add(Listed(f"{file.path}: samples", ends), int(ends[-1]))

    def joined(self, file: SampleFile, part: Part) -> None:
        """Take everything from the first sample on as tokens, one after another."""
        count = self._tokens(file, file.size - file.first)
        self._add(part, count)
        self.segments.append(Segment.of(file, file.first, count))

    def documents(self) -> Documents:
        return Documents(self._parts, self._sizes, whole=True)

    def _add(self, part: Part, tokens: int) -> None:
        self._parts.append(part)
        self._sizes.append(tokens)

    def _locate(self, store: Store, file: SampleFile, place: Place, start: int, stop: int) -> tuple[int, int]:
        """The first byte of the tokens of a sample, and their number."""
        at, nbytes = place(store, start, stop)
        if nbytes < 0 or not start <= at <= at + nbytes <= stop:
            raise FormatError(
                f"{file.path}: damaged (the tokens of a sample from byte {at} to {at + nbytes}, expected "
                f"within the sample from {start} to {stop}); write it again"
            )
        return at, self._tokens(file, nbytes)

    def _tokens(self, file: SampleFile, nbytes: int) -> int:
        count, left = divmod(nbytes, self._itemsize)
        if left:
            raise FormatError(
                f"{file.path}: damaged, or of another dtype ({nbytes} bytes of tokens, expected a multiple "
                f"of a token's {self._itemsize}); write it again"
            )
        return count

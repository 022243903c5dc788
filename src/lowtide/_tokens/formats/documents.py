"""Where documents start and end, read from index files and never loaded as a whole.

There may be 10**9 documents. Each format keeps a number for each of them on disk, so that a search reads
a few hundred of them, and what the first steps of a search read is kept: 2 MiB at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide._arrays.formats.layout import Layout
from lowtide._io.extents import Ints
from lowtide._io.identity import Identity
from lowtide.errors import FormatError, IndexingError

END: np.dtype[np.uint64] = np.dtype("<u8")
"""The dtype of document ends in a separate file."""
_FAN = 256  # probes in one step of a search: they are read together, so more of them cost little
_BLOCK = 2048  # ends that are read in one piece at the end of a search
_SOME = 64  # documents that a run of tokens is expected to touch
_NODES = 1024  # steps that are remembered, 2 KiB each
_OPEN = 64  # index files that are kept open
_VERIFY = 2**17  # ends that are checked at once


def integers(
    path: str, identity: Identity, count: int, offset: int = 0, dtype: np.dtype[np.generic] = END
) -> Layout:
    """The layout of ``count`` integers in a file; by default those of a file of document ends."""
    return Layout(path, "index", offset, dtype, (count,), file_size=identity.size, identity=identity)


class Part:
    """The documents of one segment. Their ends are in tokens from the segment's first one."""

    __slots__ = ()
    where: str
    """File and field, for errors."""
    count: int

    def ends(self, start: int, stop: int) -> Ints:
        """The ends of documents ``start`` to ``stop``."""
        raise NotImplementedError

    def pick(self, which: Ints) -> Ints:
        """The ends of some documents, in ascending order."""
        raise NotImplementedError

    def verify(self) -> None:
        """Check what was only sampled before; ``Documents.verify`` checks the ends itself."""

    def close(self) -> None:
        """Release open files; they are opened again when needed."""


class Column(Part):
    """Ends as an array on disk: ``(value - base) / scale``."""

    def __init__(self, layout: Layout, what: str = "document ends", base: int = 0, scale: int = 1) -> None:
        self.where = f"{layout.path}: {what}"
        self.count = layout.shape[0]
        self._layout, self._base, self._scale = layout, base, scale
        self._array: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_array": None}

    def ends(self, start: int, stop: int) -> Ints:
        values = np.empty(stop - start, self._layout.dtype)
        self._open()._read_rows(start, stop, values)  # several times as fast as indexing, for these few bytes
        return self._tokens(values)

    def pick(self, which: Ints) -> Ints:
        return self._tokens(self._open().take(which))

    def close(self) -> None:
        self._array = None

    def _open(self) -> Any:
        array = self._array
        if array is None:
            from lowtide._arrays.stored import StoredArray

            self._array = array = StoredArray(self._layout)
        return array

    def _tokens(self, values: npt.NDArray[Any]) -> Ints:
        # What does not fit 63 bits becomes negative, and is refused as such.
        ends = values.astype(np.int64)
        if self._base:
            ends -= self._base
        if self._scale > 1:
            if (ends % self._scale).any():
                raise FormatError(
                    f"{self.where} must be multiples of {self._scale} bytes from byte {self._base}, and one "
                    "is not: damaged; write the file again"
                )
            ends //= self._scale
        return ends


@dataclass(frozen=True, slots=True)
class Even(Part):
    """Documents of one size, without an index.

    >>> Even("shard", 3, 10).ends(1, 3)
    array([20, 30])
    """

    where: str
    count: int
    size: int

    def ends(self, start: int, stop: int) -> Ints:
        return np.arange(start + 1, stop + 1, dtype=np.int64) * self.size

    def pick(self, which: Ints) -> Ints:
        return (which + 1) * self.size


@dataclass(frozen=True, slots=True)
class Listed(Part):
    """Ends that are in memory already, since the format has them where they cannot be read in place."""

    where: str
    values: Ints = field(repr=False)

    @property
    def count(self) -> int:  # type: ignore[override]
        return len(self.values)

    def ends(self, start: int, stop: int) -> Ints:
        return self.values[start:stop]

    def pick(self, which: Ints) -> Ints:
        return self.values[which]


class Documents:
    """Every document of a corpus, by number, in global token positions.

    ``parts`` and ``sizes`` (in tokens) are those of the segments. A document may continue from one segment
    into the next, unless ``whole``: then the last one of each part must end where its segment does.

    What is read is checked when it is read: ends that descend or are beyond their segment are a
    ``FormatError``. ``verify`` reads and checks all.

    >>> documents = Documents([Even("a", 3, 10), Even("b", 2, 4)], [30, 8])
    >>> documents.count, documents.bounds(2, 4).tolist(), documents.at(29), documents.at(30)
    (5, [[20, 30], [30, 34]], 2, 3)
    """

    def __init__(self, parts: Sequence[Part], sizes: Sequence[int], whole: bool = False) -> None:
        self._parts = tuple(parts)
        self._sizes = tuple(sizes)
        self._whole = whole
        self._starts = np.concatenate(([0], np.cumsum(self._sizes, dtype=np.int64)))
        self._firsts = np.concatenate(([0], np.cumsum([part.count for part in parts], dtype=np.int64)))
        # Both are only ever added to or emptied, so threads need no lock: one would not survive a fork.
        self._nodes: dict[tuple[int, int, int], Ints] = {}
        self._used: set[int] = set()

    @classmethod
    def of_ends(cls, columns: Sequence[Column], sizes: Sequence[int]) -> Documents:
        """Documents whose ends are in files; the last end must be that of the tokens."""
        documents = cls(columns, sizes)
        if documents.tokens:
            documents.at(documents.tokens - 1)
        return documents

    def __reduce__(self) -> tuple[Any, ...]:
        return Documents, (self._parts, self._sizes, self._whole)

    def __repr__(self) -> str:
        return f"<Documents count={self.count}, tokens={self.tokens}>"

    @property
    def count(self) -> int:
        """How many documents there are."""
        return int(self._firsts[-1])

    @property
    def tokens(self) -> int:
        """How many tokens there are."""
        return int(self._starts[-1])

    def bounds(self, start: int, stop: int) -> Ints:
        """Start and end of documents ``start`` to ``stop``, as rows of an array of shape (n, 2)."""
        if not 0 <= start <= stop <= self.count:
            raise IndexingError(f"documents {start} to {stop} are out of bounds for {self.count} documents")
        bounds = np.empty((stop - start, 2), np.int64)
        if start == stop:
            return bounds
        ends = self._ends(max(start - 1, 0), stop)
        bounds[:, 1] = ends[len(ends) - len(bounds) :]
        bounds[1:, 0] = bounds[:-1, 1]
        bounds[0, 0] = ends[0] if start else 0
        return bounds

    def starts(self, numbers: Ints) -> Ints:
        """Where some documents start, in any order."""
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < self.count:
            raise IndexingError(f"documents {numbers} are out of bounds for {self.count} documents")
        starts = np.zeros(len(numbers), np.int64)
        order = np.argsort(numbers, kind="stable")
        before = numbers[order] - 1  # a document starts where the one before it ends
        owners = np.searchsorted(self._firsts, before, "right") - 1
        for number in np.unique(owners[before >= 0]).tolist():
            here = owners == number
            part = self._part(number)
            ends = part.pick(before[here] - int(self._firsts[number]))
            self._check(part, self._sizes[number], ends)
            starts[order[here]] = ends + self._starts[number]
        return starts

    def at(self, token: int) -> int:
        """The number of the document that holds a token."""
        if not 0 <= token < self.tokens:
            raise IndexingError(f"token {token} is out of bounds for {self.tokens} tokens")
        number = int(np.searchsorted(self._starts, token, "right")) - 1
        document = int(self._firsts[number]) + self._search(number, token - int(self._starts[number]))
        if document == self.count:
            last = next((part for part in reversed(self._parts) if part.count), self._parts[number])
            raise FormatError(
                f"{last.where} end before token {token} of {self.tokens}, so that it is in no document: "
                "damaged, or still being written; write the index again"
            )
        return document

    def covering(self, start: int, stop: int) -> tuple[int, Ints]:
        """The documents that tokens ``start`` to ``stop`` touch: the first one's number, and their bounds."""
        if not start < stop <= self.tokens:
            raise IndexingError(f"tokens {start} to {stop} are out of bounds for {self.tokens} tokens")
        first, some = self.at(start), _SOME
        while True:  # the last one is mostly near the first, where a second search would cost more
            bounds = self.bounds(first, min(first + some, self.count))
            covered = int(np.searchsorted(bounds[:, 1], stop)) + 1
            if covered <= len(bounds):
                return first, bounds[:covered]
            if first + some >= self.count:
                self.at(stop - 1)  # which raises
            some *= 4

    def verify(self) -> None:
        """Read every end and check it; in bounded memory, however many there are."""
        last = 0
        for start in range(0, self.count, _VERIFY):
            ends = self._ends(max(start - 1, 0), min(start + _VERIFY, self.count))
            last = int(ends[-1])
        if last != self.tokens:
            self.at(self.tokens - 1)
        for part in self._parts:
            part.verify()

    def _ends(self, start: int, stop: int) -> Ints:
        """Checked ends in global positions; from ``start - 1`` on where order is to be checked against it."""
        pieces = []
        number = int(np.searchsorted(self._firsts, start, "right")) - 1
        while start < stop:
            first, after = int(self._firsts[number]), int(self._firsts[number + 1])
            upto = min(stop, after)
            if upto > start:
                pieces.append(self._read(number, start - first, upto - first) + self._starts[number])
                start = upto
            number += 1
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _read(self, number: int, start: int, stop: int) -> Ints:
        part, size = self._part(number), self._sizes[number]
        ends = part.ends(start, stop)
        self._check(part, size, ends)
        if self._whole and stop == part.count and ends[-1] != size:
            raise FormatError(
                f"{part.where} are truncated or of another file, or the tokens are (the last is {ends[-1]}, "
                f"expected {size}); copy or write both again"
            )
        return ends

    @staticmethod
    def _check(part: Part, size: int, ends: Ints) -> None:
        if not len(ends):
            return
        if (ends[1:] < ends[:-1]).any() or ends[0] < 0 or ends[-1] > size:
            back = np.flatnonzero(ends[1:] < ends[:-1])
            i = int(back[0]) + 1 if len(back) else 0 if ends[0] < 0 else len(ends) - 1
            before = f" after {ends[i - 1]}" if i else ""
            raise FormatError(
                f"{part.where} must ascend from 0 to the {size} tokens of their segment, found {ends[i]}"
                f"{before}: damaged, or the index of another file; copy or write both again"
            )

    def _part(self, number: int) -> Part:
        """A part that may open its file; before there are too many, all others release theirs."""
        if number not in self._used:
            if len(self._used) >= _OPEN:
                idle = list(self._used)
                self._used.clear()
                for other in idle:
                    self._parts[other].close()
            self._used.add(number)
        return self._parts[number]

    def _search(self, number: int, token: int) -> int:
        """The first document of a part that ends after ``token``; the part's count if there is none."""
        low, high = 0, self._parts[number].count
        while high - low > _BLOCK:
            probes = low + (high - low) * np.arange(1, _FAN, dtype=np.int64) // _FAN
            ends = self._node(number, low, high, probes)
            step = int(np.searchsorted(ends, token, "right"))
            if step < len(probes):
                high = int(probes[step])
            if step:
                low = int(probes[step - 1]) + 1
        if low == high:
            return low
        return low + int(np.searchsorted(self._read(number, low, high), token, "right"))

    def _node(self, number: int, low: int, high: int, probes: Ints) -> Ints:
        key = (number, low, high)
        ends = self._nodes.get(key)
        if ends is None:
            part = self._part(number)
            ends = part.pick(probes)
            self._check(part, self._sizes[number], ends)
            if len(self._nodes) >= _NODES:
                self._nodes.clear()
            self._nodes[key] = ends
        return ends

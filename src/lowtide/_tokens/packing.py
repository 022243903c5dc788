"""Packing: rows of whole documents, as full as possible, for ``order="packed"``.

Documents are packed group by group, neighbours together: pieces of at most one row, the largest first, each
row filled up by the largest piece that still fits (best fit). Where none fits any more, the smallest of the
others is truncated to fill the row and its tail is dropped. So every row is full, no row needs padding, and
few documents are truncated; ``dropped_tokens`` counts what is lost.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lowtide._io.extents import Ints
from lowtide._io.pending import Pending
from lowtide._permutation import BlockShuffled, key_of
from lowtide._tokens.documents import Ids
from lowtide._tokens.formats.documents import Documents
from lowtide._tokens.sampling import Epochs, Order
from lowtide.errors import ArgumentError

if TYPE_CHECKING:
    from lowtide._tokens.corpus import Corpus

_GROUP = 1024  # documents packed together
_KEPT = 64  # groups whose packing is remembered: more than a window of the shuffle touches
_BLOCK, _WINDOW = 64, 16  # rows, blocks: shuffled together, so that the same groups serve many rows

Row = list[tuple[int, int]]
"""Pieces of a row: (first token, tokens)."""


class Packed(Order):
    """Rows of whole documents, each once per epoch, in a new order every epoch."""

    name = "packed"

    def __init__(self, corpus: Corpus, length: int, seed: int) -> None:
        super().__init__(corpus, length, seed)
        self._documents = corpus.documents
        # It does not refer to self: the files of a corpus that was dropped are closed at once.
        self._group = lru_cache(_KEPT)(partial(_pack_group, self._documents, length + 1))
        self._firsts, self.dropped_tokens = self._plan()
        count = self.epoch_samples = int(self._firsts[-1])
        if not count:
            raise ArgumentError(
                f"{corpus.name}: its documents do not fill one row of {length + 1} tokens; "
                f"use a smaller length"
            )
        self._epochs = Epochs(count, lambda epoch: BlockShuffled(count, _BLOCK, _WINDOW, key_of(seed, epoch)))

    def _plan(self) -> tuple[Ints, int]:
        """First row of each group, from one pass over the documents' lengths; and the tokens dropped."""
        counts, dropped = [0], 0
        for group in range(-(-self._documents.count // _GROUP)):
            rows, lost = _pack_group(self._documents, self._length + 1, group)
            counts.append(len(rows))
            dropped += lost
        return np.cumsum(counts, dtype=np.int64), dropped

    def _pieces(self, first: int, last: int) -> list[Row]:
        """The pieces of the rows of samples ``first`` to ``last``."""
        rows = np.concatenate([rows for _, rows in self._epochs.split(first, last)])
        groups = np.searchsorted(self._firsts, rows, side="right") - 1
        within = rows - self._firsts[groups]
        return [
            self._group(group)[0][row] for group, row in zip(groups.tolist(), within.tolist(), strict=True)
        ]

    def submit(self, first: int, out: npt.NDArray[Any]) -> Pending[Any]:
        pieces = [piece for row in self._pieces(first, first + len(out)) for piece in row]
        starts, lengths = np.array(pieces, np.int64).T
        return self._corpus._segments.submit(starts, lengths, np.cumsum(lengths) - lengths, out)

    def document_ids(self, first: int, x: npt.NDArray[Any]) -> Ids:
        ids = np.zeros(x.shape, np.int32)
        for row, pieces in zip(ids, self._pieces(first, first + len(x)), strict=True):
            lengths = [length for _, length in pieces]
            row[:] = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)[: len(row)]
        return ids

    def containing(self, token: int, epoch: int) -> list[int]:
        group = self._documents.at(token) // _GROUP
        rows = [
            int(self._firsts[group]) + nth
            for nth, row in enumerate(self._group(group)[0])
            if any(start <= token < start + length for start, length in row)
        ]
        return self._epochs.numbers(np.array(rows, np.int64), epoch)


def _pack_group(documents: Documents, capacity: int, group: int) -> tuple[list[Row], int]:
    first = group * _GROUP
    return pack(documents.bounds(first, min(first + _GROUP, documents.count)), capacity)


def pack(bounds: Ints, capacity: int) -> tuple[list[Row], int]:
    """Rows of exactly ``capacity`` tokens from documents, and the number of tokens that are in none.

    >>> pack(np.array([[0, 5], [5, 8], [8, 10], [10, 21]]), capacity=5)
    ([[(0, 5)], [(10, 5)], [(15, 5)], [(5, 3), (8, 2)]], 1)
    """
    rows: list[Row] = []
    pieces: list[tuple[int, int]] = []  # (tokens, first token), ascending
    for start, stop in bounds.tolist():
        while stop - start >= capacity:
            rows.append([(start, capacity)])
            start += capacity
        if stop > start:
            pieces.append((stop - start, start))
    pieces.sort()
    dropped = 0
    while pieces:
        length, start = pieces.pop()
        row, free = [(start, length)], capacity - length
        while free and pieces:
            at = bisect_right(pieces, (free, 2**63)) - 1
            length, start = pieces.pop(max(at, 0))
            row.append((start, min(length, free)))
            dropped += max(0, length - free)
            free -= min(length, free)
        if free:  # nothing is left to fill the last row with
            dropped += capacity - free
        else:
            rows.append(row)
    return rows, dropped

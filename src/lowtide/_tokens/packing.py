"""Packing: rows made of whole documents, as full as they will go, with what is dropped stated.

Documents are packed group by group, neighbours together: pieces of at most one row, the largest first, each
row filled up by the largest piece that still fits (best fit). Where none fits any more, the smallest of the
others is cut to fill the row and its tail is dropped. So every row is full, no row needs padding, and few
documents are cut.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lowtide._io.extents import Ints
from lowtide._io.pending import Pending
from lowtide._permutation import BlockShuffled, key_of
from lowtide._tokens.document_ids import Ids
from lowtide.errors import ArgumentError

if TYPE_CHECKING:
    from lowtide._tokens.corpora import Corpus

_GROUP = 1024  # documents packed together
_KEPT = 64  # groups whose packing is remembered: more than a window of the shuffle touches
_BLOCK, _WINDOW = 64, 16  # rows, blocks: shuffled together, so that the same groups serve many rows

Row = list[tuple[int, int]]
"""Pieces of a row: (first token, tokens)."""


class PackedSource:
    """Samples that are packed rows, for ``order="packed"``."""

    def __init__(self, corpus: Corpus, length: int, seed: int) -> None:
        self._corpus = corpus
        self._documents = corpus.documents
        self._length, self._seed = length, seed
        self.dtype = corpus.dtype
        self._firsts, self.dropped_tokens = self._plan()
        self.epoch = int(self._firsts[-1])
        if not self.epoch:
            raise ArgumentError(
                f"{corpus.name}: its documents do not fill one row of {length + 1} tokens; "
                f"use a smaller length"
            )
        self._packed: OrderedDict[int, list[Row]] = OrderedDict()
        self._orders: dict[int, BlockShuffled] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Without what can be packed again, and a thread may be packing at the moment."""
        return {**self.__dict__, "_packed": OrderedDict(), "_orders": {}}

    def _plan(self) -> tuple[Ints, int]:
        """First row of each group, from one pass over the documents' lengths; and the tokens dropped."""
        counts, dropped = [0], 0
        for group in range(-(-self._documents.count // _GROUP)):
            rows, lost = self._pack(group)
            counts.append(len(rows))
            dropped += lost
        return np.cumsum(counts, dtype=np.int64), dropped

    def _pack(self, group: int) -> tuple[list[Row], int]:
        first = group * _GROUP
        bounds = self._documents.bounds(first, min(first + _GROUP, self._documents.count))
        return pack(bounds, self._length + 1)

    def _rows(self, group: int) -> list[Row]:
        rows = self._packed.get(group)
        if rows is None:
            rows = self._packed[group] = self._pack(group)[0]
            if len(self._packed) > _KEPT:
                self._packed.popitem(last=False)
        return rows

    def _order(self, epoch: int) -> BlockShuffled:
        order = self._orders.get(epoch)  # once: another thread may put that of its own epoch there
        if order is None:
            order = BlockShuffled(self.epoch, _BLOCK, _WINDOW, key_of(self._seed, epoch))
            self._orders = {epoch: order}
        return order

    def pieces(self, first: int, last: int) -> list[Row]:
        """What the rows of samples ``first`` to ``last`` are made of."""
        found: list[Row] = []
        while first < last:
            epoch, place = divmod(first, self.epoch)
            until = min(last, (epoch + 1) * self.epoch)
            for row in self._order(epoch)(place, place + until - first).tolist():
                group = int(np.searchsorted(self._firsts, row, side="right")) - 1
                found.append(self._rows(group)[row - int(self._firsts[group])])
            first = until
        return found

    def submit(self, first: int, out: npt.NDArray[Any]) -> Pending[Any]:
        flat = [piece for row in self.pieces(first, first + len(out)) for piece in row]
        starts = np.array([start for start, _ in flat], np.int64)
        lengths = np.array([length for _, length in flat], np.int64)
        return self._corpus.shards.submit_spans(starts, lengths, np.cumsum(lengths) - lengths, out)

    def document_ids(self, first: int, x: npt.NDArray[Any]) -> Ids:
        ids = np.zeros(x.shape, np.int32)
        for row, pieces in zip(ids, self.pieces(first, first + len(x)), strict=True):
            lengths = [length for _, length in pieces]
            row[:] = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)[: len(row)]
        return ids

    def samples(self, token: int, epoch: int) -> list[int]:
        group = self._documents.at(token) // _GROUP
        rows = [
            int(self._firsts[group]) + nth
            for nth, row in enumerate(self._rows(group))
            if any(start <= token < start + length for start, length in row)
        ]
        return sorted((self._order(epoch).places(np.array(rows, np.int64)) + epoch * self.epoch).tolist())

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedSource, (self._corpus, self._length, self._seed)

    def settings(self) -> dict[str, Any]:
        return {"order": "packed", "seed": self._seed, **self._corpus.fingerprint()}


def pack(bounds: Ints, capacity: int) -> tuple[list[Row], int]:
    """Rows of exactly ``capacity`` tokens from documents, and the number of tokens that are in none.

    >>> pack(np.array([[0, 5], [5, 8], [8, 10], [10, 21]]), capacity=5)
    ([[(0, 5)], [(10, 5)], [(15, 5)], [(5, 3), (8, 2)]], 1)
    """
    full: list[Row] = []
    pieces: list[tuple[int, int]] = []  # (tokens, first token), ascending
    for start, stop in bounds.tolist():
        while stop - start >= capacity:
            full.append([(start, capacity)])
            start += capacity
        if stop > start:
            pieces.append((stop - start, start))
    pieces.sort()
    dropped = 0
    rows = full
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

"""Stretches: windows of several lengths one after another, and still every token once per epoch.

The corpus is cut into blocks of the least common multiple of all lengths, and an epoch is an order of blocks.
A stretch of steps with one length takes the next blocks of that order, as many as it needs, cuts them into
its windows and shuffles these among all of its blocks of that epoch. So no token comes twice, whatever the
lengths are; where a length ends within a block, the rest of that block is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from lowtide._io.extents import Ints
from lowtide._permutation import Shuffled, key_of
from lowtide._tokens.sampling import Order, Samples, Windows
from lowtide.errors import ArgumentError

if TYPE_CHECKING:
    from lowtide._tokens.corpus import Corpus

_LARGEST = 64  # times the longest length: a block of more would leave out too much
_KEPT = 16  # permutations that are remembered, for all corpora
Lengths = list[tuple[int, int | None]]
"""Each length of a schedule, and the number of its samples; None for the last."""
Stretches = Sequence[tuple[Samples, int]]
"""The samples of each length of a schedule, and the number of the first one."""


class _InOrder:
    """Rows as they are."""

    def at(self, places: Ints) -> Ints:
        return places

    places = at


@lru_cache(_KEPT)
def _permutation(count: int, seed: int, *salts: int) -> Shuffled:
    for salt in salts:
        seed = key_of(seed, salt)
    return Shuffled(count, seed)


@dataclass(frozen=True, slots=True)
class Part:
    """What a stretch takes of one epoch."""

    epoch: int
    block: int
    """Its first block in the order of that epoch."""
    blocks: int
    first: int
    """The number of its first sample in the stretch."""


@dataclass(frozen=True, slots=True)
class Span:
    """Where a stretch is among the blocks of all epochs."""

    per_block: int
    """Windows in a block."""
    blocks: int
    """Blocks in an epoch."""
    start: int
    """The first block, counted through all epochs."""
    samples: int | None
    """Samples of the stretch; None without end."""

    @property
    def stop(self) -> int | None:
        """The first block of the next stretch."""
        return None if self.samples is None else self.start + -(-self.samples // self.per_block)

    def part(self, epoch: int) -> Part:
        """What it takes of an epoch."""
        start, stop = max(self.start, epoch * self.blocks), (epoch + 1) * self.blocks
        if self.stop is not None:
            stop = min(stop, self.stop)
        first = (start - self.start) * self.per_block
        return Part(epoch, start - epoch * self.blocks, max(0, stop - start), first)

    def epochs(self, numbers: Ints) -> Ints:
        """The epochs of samples."""
        return (self.start + numbers // self.per_block) // self.blocks


class Stretch(Windows):
    """The windows of one stretch, numbered from 0 on."""

    name = "stretch"

    def __init__(
        self, corpus: Corpus, length: int, seed: int, order: str, block: int, span: Span, shuffled: bool
    ) -> None:
        super().__init__(corpus, length, seed)
        self._order, self._block, self._span, self._shuffled = order, block, span, shuffled

    def __reduce__(self) -> tuple[Any, ...]:
        own = (self._order, self._block, self._span, self._shuffled)
        return type(self), (self._corpus, self._length, self._seed, *own)

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "order": self._order}

    def in_epoch(self, epoch: int) -> int:
        """Samples that it has in an epoch."""
        part = self._span.part(epoch)
        room = part.blocks * self._span.per_block
        return room if self._span.samples is None else max(0, min(room, self._span.samples - part.first))

    def starts_at(self, numbers: Ints) -> Ints:
        starts = np.empty(len(numbers), np.int64)
        epochs = self._span.epochs(numbers)
        for epoch in np.unique(epochs).tolist():
            inside = epochs == epoch
            part = self._span.part(epoch)
            # Steps that are read ahead may be behind the end of the stretch, where they are not used.
            room = max(1, part.blocks * self._span.per_block)
            windows = self._windows(part).at((numbers[inside] - part.first) % room)
            blocks, within = np.divmod(windows, self._span.per_block)
            places = self._blocks(epoch).at((blocks + part.block) % self._span.blocks)
            starts[inside] = places * self._block + within * self._length + self._phase(epoch)
        return starts % self.tokens

    def containing(self, token: int, epoch: int) -> list[int]:
        if not self.in_epoch(epoch):
            return []
        part = self._span.part(epoch)
        place = token - self._phase(epoch)
        before = place - 1
        if self._shuffled:  # a ring
            place, before = place % self.tokens, before % self.tokens
        # It is also the last target of the window that ends just before it.
        places = {place, before} if before % self._block % self._length == self._length - 1 else {place}
        numbers = set()
        for one in places:
            block, within = divmod(one, self._block)
            if not 0 <= block < self._span.blocks:
                continue
            nth = int(self._blocks(epoch).places(np.array([block]))[0]) - part.block
            if 0 <= nth < part.blocks:
                window = nth * self._span.per_block + within // self._length
                numbers.add(int(self._windows(part).places(np.array([window]))[0]))
        return sorted(part.first + number for number in numbers)

    def _phase(self, epoch: int) -> int:
        """Where the first block of an epoch starts: another place in each epoch."""
        return key_of(self._seed, 2 * epoch) % self._block if self._shuffled else 0

    def _blocks(self, epoch: int) -> Shuffled | _InOrder:
        if not self._shuffled:
            return _InOrder()
        return _permutation(self._span.blocks, self._seed, 2 * epoch + 1)

    def _windows(self, part: Part) -> Shuffled | _InOrder:
        if not self._shuffled or self._span.per_block == 1:  # windows that are blocks are shuffled already
            return _InOrder()
        count = max(1, part.blocks * self._span.per_block)
        return _permutation(count, self._seed, 2 * part.epoch + 1, part.block + 1)


def scheduled(kind: type[Order], corpus: Corpus, lengths: Lengths, seed: int) -> Stretches:
    """The samples of a corpus in an order, for each length of a schedule."""
    if len(lengths) == 1:
        return [(kind(corpus, lengths[0][0], seed), 0)]
    if kind.lengths == "one":
        raise ArgumentError(
            f"order {kind.name!r} has one length for all steps, got {[length for length, _ in lengths]}; "
            "pass one, or another order such as 'shuffle'"
        )
    if kind.lengths == "numbered":
        firsts = np.cumsum([0, *(count or 0 for _, count in lengths)]).tolist()
        return [
            (kind(corpus, length, seed), first) for (length, _), first in zip(lengths, firsts, strict=False)
        ]
    shuffled = kind.lengths == "shuffled blocks"
    return [(one, 0) for one in _stretches(corpus, lengths, seed, kind.name, shuffled)]


def _stretches(corpus: Corpus, lengths: Lengths, seed: int, order: str, shuffled: bool) -> list[Stretch]:
    """The windows of each length, one stretch after another."""
    longest = max(length for length, _ in lengths)
    block = math.lcm(*(length for length, _ in lengths))
    if block > _LARGEST * longest:
        raise ArgumentError(
            f"lengths of a schedule must have a common multiple of at most {_LARGEST} times the longest, got "
            f"{[length for length, _ in lengths]} with {block}; use lengths that divide each other"
        )
    tokens = len(corpus) if shuffled else len(corpus) - 1
    blocks = tokens // block
    if not blocks or len(corpus) < block + 1:
        raise ArgumentError(
            f"{corpus.name}: has {len(corpus)} tokens, too few for one block of {block} (the least common "
            "multiple of all lengths) and its target; use shorter lengths"
        )
    result = []
    start: int | None = 0
    for length, samples in lengths:
        assert start is not None  # only the last stretch has no end
        span = Span(block // length, blocks, start, samples)
        result.append(Stretch(corpus, length, seed, order, block, span, shuffled))
        start = span.stop
    return result

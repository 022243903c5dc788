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
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from lowtide._io.extents import Ints
from lowtide._permutation import Shuffled, key_of
from lowtide._tokens.sampling import Order, Samples, Windows
from lowtide.errors import ArgumentError

if TYPE_CHECKING:
    from lowtide._tokens.corpus import Corpus

_LARGEST = 64  # times the longest length: a block of more would leave out too much
_KEPT = 4  # permutations that are remembered
Lengths = list[tuple[int, int | None]]
"""Each length of a schedule, and the number of its samples; None for the last."""
Stretches = Sequence[tuple[Samples, int]]
"""The samples of each length of a schedule, and the number of the first one."""


class Permutation(Protocol):
    """An order of rows that is computed."""

    def at(self, places: Ints, /) -> Ints: ...
    def places(self, rows: Ints, /) -> Ints: ...


class _InOrder:
    """Rows as they are."""

    def at(self, places: Ints, /) -> Ints:
        return places

    def places(self, rows: Ints, /) -> Ints:
        return rows


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
    epoch: int
    block: int
    """The first block, and its epoch."""
    samples: int | None
    """Samples of the stretch; None without end."""

    @property
    def _head(self) -> int:
        """Samples that the rest of the first epoch has room for."""
        return (self.blocks - self.block) * self.per_block

    def part(self, nth: int) -> Part:
        """What it takes of the n-th epoch, counted from its first."""
        first = 0 if not nth else self._head + (nth - 1) * self.blocks * self.per_block
        block = 0 if nth else self.block
        blocks = self.blocks - block
        if self.samples is not None:
            needed = -(-(self.samples - first) // self.per_block)
            blocks = min(blocks, needed) if needed > 0 else 0
        return Part(self.epoch + nth, block, blocks, first)

    def parts_of(self, numbers: Ints) -> Ints:
        """Which of its epochs samples belong to, counted from its first."""
        behind = numbers - self._head
        return np.where(behind < 0, 0, 1 + behind // (self.blocks * self.per_block))

    def end(self) -> tuple[int, int]:
        """The epoch and the block at which the next stretch starts."""
        assert self.samples is not None
        last = 0
        if self.samples > self._head:
            last = 1 + (self.samples - self._head - 1) // (self.blocks * self.per_block)
        part = self.part(last)
        block = part.block + part.blocks
        return (part.epoch + 1, 0) if block == self.blocks else (part.epoch, block)


class Stretch(Windows):
    """The windows of one stretch, numbered from 0 on."""

    name = "stretch"

    def __init__(
        self, corpus: Corpus, length: int, seed: int, order: str, block: int, span: Span, shuffled: bool
    ) -> None:
        super().__init__(corpus, length, seed)
        self._order, self._block, self._span, self._shuffled = order, block, span, shuffled
        self._orders: dict[tuple[int, int], Permutation] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        own = (self._order, self._block, self._span, self._shuffled)
        return type(self), (self._corpus, self._length, self._seed, *own)

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "order": self._order}

    def in_epoch(self, epoch: int) -> int:
        """Samples that it has in an epoch."""
        if epoch < self._span.epoch:
            return 0
        part = self._span.part(epoch - self._span.epoch)
        room = part.blocks * self._span.per_block
        return room if self._span.samples is None else max(0, min(room, self._span.samples - part.first))

    def starts_at(self, numbers: Ints) -> Ints:
        starts = np.empty(len(numbers), np.int64)
        parts = self._span.parts_of(numbers)
        for nth in np.unique(parts).tolist():
            inside = parts == nth
            part = self._span.part(nth)
            # Steps that are read ahead may lie behind the end of the stretch, where nobody asks for them.
            room = max(1, part.blocks * self._span.per_block)
            windows = self._windows(part).at((numbers[inside] - part.first) % room)
            blocks, within = np.divmod(windows, self._span.per_block)
            places = self._blocks(part.epoch).at((blocks + part.block) % self._span.blocks)
            starts[inside] = places * self._block + within * self._length + self._phase(part.epoch)
        return starts % self.tokens

    def containing(self, token: int, epoch: int) -> list[int]:
        if not self.in_epoch(epoch):
            return []
        part = self._span.part(epoch - self._span.epoch)
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

    def _blocks(self, epoch: int) -> Permutation:
        return self._kept((epoch, -1), self._span.blocks, 2 * epoch + 1)

    def _windows(self, part: Part) -> Permutation:
        if self._span.per_block == 1:  # blocks are shuffled already
            return _InOrder()
        return self._kept((part.epoch, part.block), part.blocks * self._span.per_block, 2 * part.epoch + 1)

    def _kept(self, key: tuple[int, int], count: int, salt: int) -> Permutation:
        if not self._shuffled:
            return _InOrder()
        order = self._orders.get(key)
        if order is None:
            seed = key_of(self._seed, salt)
            order = Shuffled(max(1, count), seed if key[1] < 0 else key_of(seed, key[1] + 1))
            # Another dict, since several threads may read this one.
            self._orders = {**dict(list(self._orders.items())[1 - _KEPT :]), key: order}
        return order


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
    place = (0, 0)
    for length, samples in lengths:
        span = Span(block // length, blocks, *place, samples)
        result.append(Stretch(corpus, length, seed, order, block, span, shuffled))
        if samples is not None:
            place = span.end()
    return result

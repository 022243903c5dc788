"""Samplers: where in the corpus the window of each sample begins, as a pure function of its number.

Samples are numbered through all epochs. A sampler computes any range of them and stores none.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from lowtide._io.extents import Ints
from lowtide._permutation import BlockShuffled, Shuffled, key_of, mix
from lowtide._tokens.formats.documents import Documents

BLOCK = 2**20  # order="blocks": bytes that are read in one go
BUFFER = 16 * 2**20  # order="blocks": bytes that are shuffled together


class Sampler(Protocol):
    """Sample numbers to window starts."""

    epoch: int
    """Samples in an epoch."""

    def starts(self, first: int, last: int) -> Ints:
        """Where the windows of samples ``first`` to ``last`` begin."""

    def starts_at(self, numbers: Ints) -> Ints:
        """Where the windows of some samples begin, in any order."""

    def samples(self, token: int, epoch: int) -> list[int]:
        """The samples of an epoch whose window begins at ``token`` or reaches it."""


class ShuffleSampler:
    """Windows that do not overlap, each once an epoch, in a new order and with a new phase every epoch.

    The corpus is a ring: windows of any phase then cover every token, but for the fewer than ``length``
    that are left when it is no multiple of ``length``.
    """

    def __init__(self, tokens: int, length: int, seed: int) -> None:
        self.epoch = tokens // length
        self.tokens, self.length, self.seed = tokens, length, seed
        self._orders: dict[int, Shuffled | BlockShuffled] = {}

    def phase(self, epoch: int) -> int:
        """Where the first window of an epoch begins."""
        return key_of(self.seed, 2 * epoch) % self.length

    def order(self, epoch: int) -> Shuffled | BlockShuffled:
        """The permutation of an epoch's windows."""
        orders = self._orders  # one look: another thread may put those of its own epoch there
        order = orders.get(epoch)
        if order is None:
            order = self._make_order(key_of(self.seed, 2 * epoch + 1))
            before = orders.get(epoch - 1)
            self._orders = {epoch: order} if before is None else {epoch - 1: before, epoch: order}
        return order

    def _make_order(self, seed: int) -> Shuffled | BlockShuffled:
        return Shuffled(self.epoch, seed)

    def starts(self, first: int, last: int) -> Ints:
        parts = [np.empty(0, np.int64)]
        while first < last:
            epoch, place = divmod(first, self.epoch)
            until = min(last, (epoch + 1) * self.epoch)
            windows = self.order(epoch)(place, place + until - first)
            parts.append((windows * self.length + self.phase(epoch)) % self.tokens)
            first = until
        return np.concatenate(parts)

    def starts_at(self, numbers: Ints) -> Ints:
        epochs, places = np.divmod(numbers, self.epoch)
        starts = np.empty(len(numbers), np.int64)
        for epoch in np.unique(epochs).tolist():
            mine = epochs == epoch
            starts[mine] = self.order(epoch).at(places[mine]) * self.length + self.phase(epoch)
        return starts % self.tokens

    def samples(self, token: int, epoch: int) -> list[int]:
        at = (token - self.phase(epoch)) % self.tokens
        # The token may also be the last target of the window before.
        windows = {at // self.length, (at // self.length - 1) % self.epoch if at % self.length == 0 else -1}
        if at == self.epoch * self.length:  # just behind the last window: its last target
            windows.add(self.epoch - 1)
        inside = np.array([window for window in windows if 0 <= window < self.epoch], np.int64)
        return sorted((self.order(epoch).places(inside) + epoch * self.epoch).tolist())


class BlockSampler(ShuffleSampler):
    """As ``ShuffleSampler``, but blocks of neighbours are permuted, then windows within a buffer."""

    def __init__(self, tokens: int, length: int, seed: int, itemsize: int) -> None:
        super().__init__(tokens, length, seed)
        self.block = max(1, min(BLOCK // (length * itemsize), self.epoch))
        self.window = max(1, BUFFER // (self.block * length * itemsize))

    def _make_order(self, seed: int) -> BlockShuffled:
        return BlockShuffled(self.epoch, self.block, self.window, seed)


class RandomSampler:
    """Anywhere, with replacement, as nanoGPT draws."""

    def __init__(self, tokens: int, length: int, seed: int) -> None:
        self.epoch = tokens // length
        self.tokens, self.length = tokens, length
        self._key = np.uint64(key_of(seed, 0))

    def starts(self, first: int, last: int) -> Ints:
        return self.starts_at(np.arange(first, last))

    def starts_at(self, numbers: Ints) -> Ints:
        # Two rounds: neighbouring numbers under related keys must not give related places.
        hashed = mix(mix(numbers.astype(np.uint64) + self._key) + self._key)
        return (hashed % np.uint64(self.tokens - self.length)).astype(np.int64)

    def samples(self, token: int, epoch: int) -> list[int]:
        numbers = []
        for first in range(epoch * self.epoch, (epoch + 1) * self.epoch, 2**16):
            last = min(first + 2**16, (epoch + 1) * self.epoch)
            starts = self.starts(first, last)
            numbers += (np.flatnonzero((starts <= token) & (token <= starts + self.length)) + first).tolist()
        return numbers


class SequentialSampler:
    """From the beginning to the end, and again."""

    def __init__(self, tokens: int, length: int) -> None:
        self.epoch = (tokens - 1) // length
        self.length = length

    def starts(self, first: int, last: int) -> Ints:
        return self.starts_at(np.arange(first, last, dtype=np.int64))

    def starts_at(self, numbers: Ints) -> Ints:
        return numbers % self.epoch * self.length

    def samples(self, token: int, epoch: int) -> list[int]:
        window, within = divmod(token, self.length)
        windows = [window - 1, window] if within == 0 else [window]
        return [epoch * self.epoch + one for one in windows if 0 <= one < self.epoch]


class DocumentSampler:
    """Windows that begin where documents begin: each document once an epoch, in a new order every epoch."""

    def __init__(self, documents: Documents, tokens: int, length: int, seed: int) -> None:
        self.epoch = documents.count
        self._documents = documents
        self._shuffle = ShuffleSampler(documents.count, 1, seed)
        self.length = length
        self.tokens = tokens

    def starts(self, first: int, last: int) -> Ints:
        numbers = self._shuffle.starts(first, last)
        return self._documents.starts(numbers)

    def starts_at(self, numbers: Ints) -> Ints:
        return self._documents.starts(self._shuffle.starts_at(numbers))

    def samples(self, token: int, epoch: int) -> list[int]:
        """Those of documents that begin at most a window before the token."""
        last = self._documents.at(token)
        first = self._documents.at(max(0, token - self.length))
        numbers = np.arange(first, last + 1, dtype=np.int64)
        reach = numbers[self._documents.starts(numbers) + self.length >= token]
        return sorted((self._shuffle.order(epoch).places(reach) + epoch * self.epoch).tolist())

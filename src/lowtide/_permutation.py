"""Orders: permutations of the rows that are computed and never stored.

An order is a permutation of ``range(n)`` of which any part can be computed alone. A shuffled epoch over
10**12 rows therefore needs no more memory than one over ten, and starting in the middle costs nothing.
The same seed gives the same order on every machine and every version of NumPy.
"""

from __future__ import annotations

import math
import operator
from typing import Protocol

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
_ALL = 2**64 - 1
_U64 = npt.NDArray[np.uint64]
_ROUNDS = 6
_SMALL = 4096  # rows up to which an order is a table, and every permutation equally likely


class Order(Protocol):
    """A permutation of ``range(n)``."""

    n: int

    def __call__(self, start: int, stop: int) -> Ints:
        """The rows at places ``start`` to ``stop``."""

    def places(self, rows: Ints) -> Ints:
        """The inverse: the places of ``rows``."""


class Sequential:
    """The rows in the order of the file.

    >>> Sequential(10)(3, 6)
    array([3, 4, 5])
    """

    def __init__(self, n: int) -> None:
        self.n = n

    def __call__(self, start: int, stop: int) -> Ints:
        return np.arange(start, stop, dtype=np.int64)

    def places(self, rows: Ints) -> Ints:
        return np.asarray(rows, np.int64)


class Shuffled:
    """A keyed pseudo-random permutation: a Feistel network over a rectangle just larger than ``n``.

    A place is written as two digits, one below ``a`` and one below ``b``, with ``a * b`` barely at or above
    ``n``; each round adds a keyed hash of one digit to the other (Black and Rogaway 2002, "Ciphers with
    arbitrary finite domains"). The few results at or beyond ``n`` are sent through again until they fall
    below it ("cycle walking"), which keeps it a permutation.

    >>> order = Shuffled(10**12, seed=0)
    >>> rows = order(999_999_999_000, 10**12)
    >>> len(set(rows.tolist())), bool((order.places(rows) == np.arange(999_999_999_000, 10**12)).all())
    (1000, True)
    """

    def __init__(self, n: int, seed: int = 0) -> None:
        self.n = n
        if n <= _SMALL:
            # On so few rows a Feistel network favours some permutations; sorting by a hash does not.
            # The hashes all differ, since `mix` is a bijection: every way to sort gives the same table.
            self._table = np.argsort(mix(np.arange(n, dtype=np.uint64) + np.uint64(key_of(seed, 0))))
            return
        self._a = np.uint64(math.isqrt(n - 1) + 1)
        self._b = np.uint64(-(-n // int(self._a)))
        self._keys = [np.uint64(key_of(seed, salt)) for salt in range(_ROUNDS)]

    def __call__(self, start: int, stop: int) -> Ints:
        if self.n <= _SMALL:
            return self._table[start:stop].copy()
        return self._walk(np.arange(start, stop, dtype=np.uint64))

    def at(self, places: Ints) -> Ints:
        """The rows at the given places, in any order."""
        if self.n <= _SMALL:
            return self._table[places]
        return self._walk(np.array(places, np.uint64))

    def places(self, rows: Ints) -> Ints:
        if self.n <= _SMALL:
            return np.argsort(self._table)[rows]
        return self._walk(np.array(rows, np.uint64), inverse=True)

    def _walk(self, values: _U64, inverse: bool = False) -> Ints:
        values = self._network(values, inverse)
        outside = values >= self.n
        while outside.any():
            values[outside] = self._network(values[outside], inverse)
            outside = values >= self.n
        return values.view(np.int64)

    def _network(self, values: _U64, inverse: bool) -> _U64:
        left = values // self._b
        right = values - left * self._b
        rounds = list(enumerate(self._keys))
        for i, key in reversed(rounds) if inverse else rounds:
            if i % 2:
                digit = _digit(left, key, self._b)
                right = _wrap(right + (self._b - digit if inverse else digit), self._b)
            else:
                digit = _digit(right, key, self._a)
                left = _wrap(left + (self._a - digit if inverse else digit), self._a)
        return left * self._b + right


class Kept:
    """An order that computes thousands of places at once and keeps them, so that a small chunk is a slice.

    A few places take about as long as a thousand; a place in a block of 16,384 takes half the time of one in
    a block of 4,096.

    >>> order = Kept(Shuffled(10**6, seed=0))
    >>> bool((order(10, 20) == Shuffled(10**6, seed=0)(10, 20)).all())
    True
    """

    def __init__(self, order: Order, block: int = 4 * _SMALL) -> None:
        self.n = order.n
        self._order = order
        self._block = block
        self._last: tuple[int, Ints] = (0, np.empty(0, np.int64))

    def __call__(self, start: int, stop: int) -> Ints:
        if stop - start >= self._block:
            return self._order(start, stop)
        first, rows = self._last  # both at once, since several threads may ask
        if start < first or stop > first + len(rows):
            first, rows = start, self._order(start, min(self.n, start + self._block))
            rows.flags.writeable = False
            self._last = (first, rows)
        return rows[start - first : stop - first]

    def places(self, rows: Ints) -> Ints:
        return self._order.places(rows)

    def __getstate__(self) -> dict[str, object]:
        """All but the block, which can be computed again."""
        return {**self.__dict__, "_last": (0, np.empty(0, np.int64))}


class BlockShuffled:
    """Blocks of neighbouring rows in a shuffled order, then rows shuffled within a window of blocks.

    A read is one block long, and one window of blocks is held in memory. ``window`` is its number of blocks.

    >>> order = BlockShuffled(1000, block=10, window=4, seed=0)
    >>> sorted(order(0, 1000).tolist()) == list(range(1000))
    True
    """

    def __init__(self, n: int, block: int, window: int, seed: int = 0) -> None:
        self.n = n
        self.block = block
        self.window = window
        self.window_rows = block * window
        self._seed = seed
        self._blocks = -(-n // block)
        self._order = Shuffled(self._blocks, key_of(seed, 0))
        # The last block may be short. Places after it, wherever it comes, move up by the rows that it lacks.
        self._lack = self._blocks * block - n
        self._short = int(self._order.places(np.array([self._blocks - 1]))[0]) if n else 0
        self._last: tuple[int, Ints] = (-1, np.empty(0, np.int64))

    def __call__(self, start: int, stop: int) -> Ints:
        parts = [np.empty(0, np.int64)]
        while start < stop:
            window = self.window_at(start)
            first, last = self.window_bounds(window)
            end = min(stop, last)
            parts.append(self._part(window, start - first, end - first))
            start = end
        return np.concatenate(parts)

    def _part(self, window: int, first: int, last: int) -> Ints:
        """The rows at places ``first`` to ``last`` of a window."""
        if self.window_rows > _SMALL:
            return self._unshuffled(window)[self.window_shuffle(window)(first, last)]
        # Small batches need the same window many times, and computing it takes longer than reading them.
        number, rows = self._last  # both at once, since several threads may ask
        if number != window:
            rows = self._unshuffled(window)[self.window_shuffle(window)(0, self.window_rows)]
            self._last = (window, rows)
        return rows[first:last]

    def _unshuffled(self, window: int) -> Ints:
        runs = [(starts[:, None] + np.arange(run)).ravel() for starts, run in self.window_runs(window)]
        return np.concatenate(runs)

    def at(self, places: Ints) -> Ints:
        """The rows at the given places, in any order."""
        windows = np.array([self.window_at(place) for place in places.tolist()], np.int64)
        result = np.empty(len(places), np.int64)
        for window in np.unique(windows).tolist():
            which = windows == window
            within = places[which] - self.window_bounds(window)[0]
            result[which] = self._unshuffled(window)[self.window_shuffle(window).at(within)]
        return result

    def places(self, rows: Ints) -> Ints:
        rows = np.asarray(rows, np.int64)
        at = self._order.places(rows // self.block)
        window = at // self.window
        within = (at % self.window) * self.block + rows % self.block
        # Rows after the short block, in the same window, are closer to the start of the window.
        behind = (window == self._short // self.window) & (at > self._short)
        within -= np.where(behind, self._lack, 0)
        result = np.empty(len(rows), np.int64)
        for number in np.unique(window).tolist():
            which = window == number
            result[which] = self.window_bounds(number)[0] + self.window_shuffle(number).places(within[which])
        return result

    def window_at(self, place: int) -> int:
        """The window in which a place falls."""
        window = place // self.window_rows
        # Windows after the one with the short block start earlier by what it lacks.
        return window + 1 if place >= self.window_bounds(window)[1] else window

    def window_bounds(self, window: int) -> tuple[int, int]:
        """The first place of a window, and the first place after it."""
        return self._border(window), self._border(window + 1)

    def _border(self, window: int) -> int:
        blocks = min(window * self.window, self._blocks)
        return blocks * self.block - (self._lack if blocks > self._short else 0)

    def window_runs(self, window: int) -> list[tuple[Ints, int]]:
        """The window's blocks in the order in which they are read, as (first rows, rows in each)."""
        first = window * self.window
        starts = self._order(first, min(first + self.window, self._blocks)) * self.block
        short = self._short - first
        if not self._lack or not 0 <= short < len(starts):
            return [(starts, self.block)]
        parts = [(starts[:short], self.block), (starts[short : short + 1], self.block - self._lack)]
        return [part for part in [*parts, (starts[short + 1 :], self.block)] if len(part[0])]

    def window_shuffle(self, window: int) -> Shuffled:
        """The permutation of the rows of ``window_runs``."""
        first, last = self.window_bounds(window)
        return Shuffled(last - first, key_of(self._seed, window + 1))


def _digit(values: _U64, key: np.uint64, base: np.uint64) -> _U64:
    """A keyed hash of each value, scaled to ``0 … base - 1`` (``base`` below 2**32)."""
    mixed = mix(values + key)
    mixed >>= np.uint64(32)
    mixed *= base
    mixed >>= np.uint64(32)
    return mixed


def _wrap(values: _U64, base: np.uint64) -> _U64:
    """Values below ``2 * base`` modulo ``base``: where the subtraction underflows, its result is huge."""
    smaller: _U64 = np.minimum(values, values - base)
    return smaller


def mix(values: _U64) -> _U64:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014): every bit out depends on every bit in."""
    values ^= values >> np.uint64(30)
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


def mix_one(value: int) -> int:
    """``mix`` of one integer, which is taken modulo 2**64."""
    value &= _ALL
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _ALL
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _ALL
    return value ^ value >> 31


def key_of(seed: int, salt: int) -> int:
    """A 64-bit key from a seed of any size or sign, and a salt."""
    seed = operator.index(seed)  # NumPy's integers would overflow below
    words = 2 * seed if seed >= 0 else -2 * seed - 1
    state = operator.index(salt)
    while True:
        state = mix_one(state + 0x9E3779B97F4A7C15) + (words & _ALL)
        words >>= 64
        if not words:
            return mix_one(mix_one(state + 0x9E3779B97F4A7C15))

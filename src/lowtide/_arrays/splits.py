"""Splits: parts of an array at random, computed from a seed.

Rows are permuted within blocks of 256 neighbours, and every block is divided in the same proportion. So a
part needs no index, its rows are found by arithmetic, and a pass over it goes through the file in order.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lowtide._arrays.selections import Masked, Selection
from lowtide._io.extents import Ints
from lowtide._permutation import Shuffled, key_of, mix, mix_one
from lowtide._sizes import whole
from lowtide.errors import ArgumentError, IndexingError

if TYPE_CHECKING:
    from lowtide._arrays.deriving import Rowwise, V

_BLOCK = 256  # rows; a row's place in its block is two digits below 16
_ROUNDS = 6
_CLASSES = 2**16  # labels with more values are not classes
_LABELS = 2**18  # labels at once
_SAFE = 3 * 10**9  # rows up to which the square of a row number fits an int64


class Local(Selection):
    """All rows, permuted within blocks of 256 neighbours.

    A Feistel network on two digits; the function of a round is a table of 16 digits, one keyed hash.

    >>> sorted(Local(1000, seed=3)(np.arange(1000)).tolist()) == list(range(1000))
    True
    """

    fields = ("n", "seed")

    def __init__(self, n: int, seed: int) -> None:
        self.n, self.seed = n, seed
        self._keys = [np.uint64(key_of(seed, salt)) for salt in range(_ROUNDS)]
        self._tail = n - n % _BLOCK  # the last block is short, and small enough for a table
        self._table = self._tail + Shuffled(n % _BLOCK, seed)(0, n % _BLOCK)

    def __call__(self, numbers: Ints) -> Ints:
        blocks = (numbers // _BLOCK).astype(np.uint64)
        left, right = numbers // 16 % 16, numbers % 16
        for i, key in enumerate(self._keys):
            tables = mix(blocks + key)
            if i % 2:
                right = (right + _digit(tables, left)) % 16
            else:
                left = (left + _digit(tables, right)) % 16
        rows: Ints = numbers - numbers % _BLOCK + left * 16 + right
        short = numbers >= self._tail
        if short.any():
            rows[short] = self._table[numbers[short] - self._tail]
        return rows

    def at(self, number: int) -> int:
        if number >= self._tail:
            return int(self._table[number - self._tail])
        block, place = divmod(number, _BLOCK)
        left, right = divmod(place, 16)
        for i, key in enumerate(self._keys):
            table = mix_one(block + int(key))
            if i % 2:
                right = right + (table >> 4 * left) & 15
            else:
                left = left + (table >> 4 * right) & 15
        return block * _BLOCK + left * 16 + right


def _digit(tables: npt.NDArray[np.uint64], places: Ints) -> Ints:
    digits: Ints = (tables >> (places.astype(np.uint64) * np.uint64(4)) & np.uint64(15)).astype(np.int64)
    return digits


class Share(Selection):
    """``n`` of ``total`` rows, evenly spread, or, with ``rest``, the others.

    >>> Share(10, 4, False)(np.arange(4)), Share(10, 6, True)(np.arange(6))
    (array([2, 4, 7, 9]), array([0, 1, 3, 5, 6, 8]))
    """

    fields = ("total", "n", "rest")

    def __init__(self, total: int, n: int, rest: bool) -> None:
        self.total, self.n, self.rest = total, n, rest

    def __call__(self, numbers: Ints) -> Ints:
        wide = numbers.astype(object) if self.total > _SAFE else numbers
        rows = wide * self.total // self.n if self.rest else ((wide + 1) * self.total - 1) // self.n
        return rows.astype(np.int64)

    def at(self, number: int) -> int:
        return number * self.total // self.n if self.rest else ((number + 1) * self.total - 1) // self.n


class Fold(Selection):
    """Every ``folds``-th row from ``number`` on, or, with ``rest``, the others.

    >>> Fold(7, 3, 1, False)(np.arange(2)), Fold(7, 3, 1, True)(np.arange(5))
    (array([1, 4]), array([0, 2, 3, 5, 6]))
    """

    fields = ("total", "folds", "number", "rest")

    def __init__(self, total: int, folds: int, number: int, rest: bool) -> None:
        self.total, self.folds, self.number, self.rest = total, folds, number, rest
        size = len(range(number, total, folds))
        self.n = total - size if rest else size

    def __call__(self, numbers: Any) -> Any:
        if not self.rest:
            return self.number + numbers * self.folds
        turn, place = divmod(numbers, self.folds - 1)
        return turn * self.folds + place + (place >= self.number)

    at = __call__


def split(
    array: Rowwise[V], fractions: Sequence[float], seed: int, shuffle: bool, stratify: Any
) -> tuple[V, ...]:
    """The parts of an array or a zip; see :meth:`Array.split`."""
    sizes = _sizes(array.path, array._row_count(), fractions)
    if stratify is not None:
        if not shuffle:
            raise ArgumentError("stratify divides each class at random; leave shuffle=False out")
        parts = _stratified(array, stratify, seed, sizes, len(sizes))
        return tuple(array._rows_view(part) for part in parts)
    if not shuffle:
        borders = np.cumsum([0, *sizes]).tolist()
        return tuple(array.rows(start, start + size) for start, size in zip(borders, sizes, strict=False))
    views, total = [], sum(sizes)
    rest = array._rows_view(Local(total, whole("seed", seed)))
    for size in sizes[:-1]:
        views.append(rest._rows_view(Share(total, size, False)))
        rest = rest._rows_view(Share(total, total - size, True))
        total -= size
    return (*views, rest)


class Folds(Sequence[Any]):
    """``array.folds(...)``: as many pairs of views, ``(train, validation)``, as there are folds."""

    def __init__(self, array: Rowwise[Any], folds: int, seed: int, stratify: Any) -> None:
        self._array = array
        self._count = count = whole("folds", folds, least=2)
        total = array._row_count()
        if count > total:
            raise ArgumentError(f"{array.path}: {total} rows cannot be divided into {count} folds")
        self._permutation = Local(total, whole("seed", seed))
        self._parts: list[Masked] | None = None
        if stratify is not None:
            self._parts = _stratified(array, stratify, seed, [], count)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[one] for one in range(self._count)[number]]
        try:
            number = range(self._count)[operator.index(number)]
        except (IndexError, TypeError):
            raise IndexingError(f"{self._array.path}: there is no fold {number!r} of {self._count}") from None
        total = self._permutation.n
        if self._parts is not None:
            part = self._parts[number]
            rest = np.invert(part.bits[: -(-total // 8)])
            if total % 8:
                rest[-1] &= 0xFF << -total % 8 & 0xFF  # bits behind the last row
            views = (Masked(rest, total - part.n), part)
            return tuple(self._array._rows_view(view) for view in views)
        permuted = self._array._rows_view(self._permutation)
        return tuple(permuted._rows_view(Fold(total, self._count, number, rest)) for rest in (True, False))

    def __repr__(self) -> str:
        return f"<{self._count} folds of {self._array!r}>"


def _sizes(path: str, total: int, fractions: Sequence[float]) -> list[int]:
    """Rows of each part: fractions that add up to less than 1 leave the rest to one more."""
    for fraction in fractions:
        number = isinstance(fraction, int | float | np.number) and not isinstance(fraction, bool)
        if not number or not 0 < fraction < 1:
            raise ArgumentError(f"{path}: a fraction must be above 0 and below 1, got {fraction!r}")
    if not fractions or sum(fractions) > 1 + 1e-9:
        raise ArgumentError(f"{path}: fractions must add up to at most 1, got {list(fractions)}")
    borders = [round(total * float(border)) for border in np.cumsum(fractions)]
    if sum(fractions) > 1 - 1e-9:
        borders[-1] = total
    else:
        borders.append(total)
    sizes: list[int] = np.diff([0, *borders]).tolist()
    return sizes


class _Dealer:
    """Deals the rows of each class out to parts, 256 rows of a class at a time.

    It keeps one bit per row and part and, for each class, a count and the rows that are fewer than 256.
    """

    def __init__(self, total: int, seed: int, sizes: list[int], parts: int) -> None:
        self.bits = np.zeros((parts, -(-total // 8)), np.uint8)
        self._key = np.uint64(key_of(seed, 0))
        self._borders = np.cumsum(sizes)[:-1] / max(1, total) if sizes else None
        self._counts = np.zeros(parts, np.int64)  # rows of each part
        self._dealt: dict[Any, int] = {}
        self._waiting: dict[Any, Ints] = {}

    def add(self, label: Any, rows: Ints) -> None:
        """Some more rows of a class."""
        if label in self._waiting:
            rows = np.concatenate((self._waiting[label], rows))
        ready = len(rows) // _BLOCK * _BLOCK
        for first in range(0, ready, _BLOCK):
            self._deal(label, rows[first : first + _BLOCK])
        self._waiting[label] = rows[ready:]
        if len(self._waiting) > _CLASSES:
            raise ArgumentError(f"stratify takes classes, got more than {_CLASSES} different labels")

    def finish(self) -> list[Masked]:
        for label, rows in self._waiting.items():
            self._deal(label, rows)
        return [Masked(mask, int(self._counts[part])) for part, mask in enumerate(self.bits)]

    def _deal(self, label: Any, rows: Ints) -> None:
        rows = rows[np.argsort(mix(rows.astype(np.uint64) + self._key))]
        before = self._dealt.get(label, 0)
        self._dealt[label] = after = before + len(rows)
        if self._borders is None:
            parts = (before + np.arange(len(rows))) % len(self.bits)
        else:
            cuts = np.round(after * self._borders) - np.round(before * self._borders)
            parts = np.searchsorted(np.maximum.accumulate(cuts), np.arange(len(rows)), side="right")
        np.bitwise_or.at(self.bits, (parts, rows // 8), (128 >> (rows % 8)).astype(np.uint8))
        self._counts += np.bincount(parts, minlength=len(self.bits))


def _stratified(array: Rowwise[Any], labels: Any, seed: int, sizes: list[int], parts: int) -> list[Masked]:
    """Masks of the parts, each with its share of every class, in one pass over the labels."""
    total = array._row_count()
    if np.shape(labels) != (total,):
        raise ArgumentError(
            f"{array.path}: stratify must have one label per row (shape {np.shape(labels)}, expected "
            f"({total},)); pass an array of one dimension"
        )
    dealer = _Dealer(total, whole("seed", seed), sizes, parts)
    row = 0
    for chunk in _chunks(labels):
        values, which = np.unique(chunk, return_inverse=True)
        order = np.argsort(which, kind="stable")
        borders = np.searchsorted(which[order], np.arange(1, len(values)))
        for value, rows in zip(values.tolist(), np.split(order, borders), strict=True):
            dealer.add(value, row + rows)
        row += len(chunk)
    return dealer.finish()


def _chunks(labels: Any) -> Iterator[npt.NDArray[Any]]:
    if hasattr(labels, "chunks"):
        yield from labels.chunks(_LABELS)
        return
    array = np.asarray(labels)
    for first in range(0, len(array), _LABELS):
        yield array[first : first + _LABELS]

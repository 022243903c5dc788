"""Orders: the kinds of passes over the rows of an array.

To add one, write a class with a name and a permutation, and a line in ``ORDERS``.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from lowtide._arrays.lookahead import Lookahead
from lowtide._io.extents import AHEAD
from lowtide._io.pending import Outcome, Pending, combined
from lowtide._permutation import BlockShuffled, Ints, Kept, Order, Sequential, Shuffled
from lowtide.errors import ArgumentError

if TYPE_CHECKING:
    from lowtide._arrays.array import Array

OrderName = Literal["sequential", "shuffle", "blocks"]
Shuffle = bool | Literal["blocks"]

# Of blocks, in rows: arrays with equally many rows then have one order, whatever a row's size.
_BLOCK = 256  # rows read in one go
_HINTS = 4 * 2**20
_WINDOW = 16 * 2**20  # blocks: a window up to this size is held in memory
_TRIALS = 4  # chunks of one read per row, before anything else is tried on what is cached
_PATIENCE = 1.0  # seconds
_SHORTEST = 4 * 2**20  # a lookahead of less finds hardly any neighbours
_BLOCKS_PER_WINDOW = 16  # what is shuffled together; with fewer, neighbours would stay neighbours


class RowOrder:
    """A pass over the rows of an array: which row comes when, and how the rows are read.

    One thread at a time calls ``submit``, or waits for what it returned.
    """

    name: str
    permutation: Order

    def __init__(self, array: Array, seed: int) -> None:
        self.array = array
        self._ahead = AHEAD
        self._piece = 2**15
        # Whether nearly all of the last read was in the page cache. The first read finds out.
        self._cached = True

    @property
    def settings(self) -> dict[str, Any]:
        """What the order depends on besides rows, seed and epoch."""
        return {}

    def window_nbytes(self, spare: int, *, bounded: bool) -> int:
        """How much of ``spare`` bytes of memory it uses besides the chunks.

        If it is not ``bounded``, no budget was given, and an order may use more if it cannot do without.
        """
        return 0

    def limit(self, ahead: int, window: int) -> None:
        """Use at most ``ahead`` bytes of page cache for hints, and ``window`` bytes besides the chunks."""
        self._ahead = ahead
        # Each row being placed takes some 100 bytes besides itself: offsets, targets, requests.
        self._piece = min(2**15, max(256, ahead // 128))

    def release(self) -> None:
        """Give back the memory of the window."""

    def rows(self, start: int, stop: int) -> Ints:
        """The numbers of the rows at places ``start`` to ``stop``."""
        numbers = np.empty(stop - start, np.int64)
        for first in range(start, stop, self._piece):
            last = min(stop, first + self._piece)
            numbers[first - start : last - start] = self.permutation(first, last)
        return numbers

    def submit(self, start: int, stop: int, out: npt.NDArray[Any]) -> Pending[Any]:
        """Read the rows at places ``start`` to ``stop``: at once if the last ones were cached."""
        if self._cached:
            self._read(start, stop, out)
            return Pending.of(None)
        return Pending(self._read, start, stop, out)

    def _read(self, start: int, stop: int, out: npt.NDArray[Any]) -> None:
        outcomes, started = [], time.perf_counter()
        for first in range(start, stop, self._piece):
            last = min(stop, first + self._piece)
            part = out[first - start : last - start]
            # What is cached need not be read in the order of the file.
            ordered = not self._cached
            outcomes.append(
                self.array._read_ordered(self.permutation, first, last, part, self._ahead, ordered=ordered)
            )
        self._learn(combined(outcomes), stop - start, time.perf_counter() - started)

    def _learn(self, outcome: Outcome, rows: int, seconds: float) -> None:
        self._cached = outcome.cached


class SequentialOrder(RowOrder):
    """Row after row."""

    name = "sequential"

    def __init__(self, array: Array, seed: int) -> None:
        super().__init__(array, seed)
        self.permutation = Sequential(len(array))

    def submit(self, start: int, stop: int, out: npt.NDArray[Any]) -> Pending[Any]:
        # Reads of several chunks at once would be out of order, and the kernel would not read ahead.
        if not (self._cached or self.array._overlaps):
            return Pending(self.array._read_rows, start, stop, out)
        pending = self.array._submit_rows(start, stop, out)
        self._cached = pending.done
        return pending


class ShuffledOrder(RowOrder):
    """An order that looks uniformly random and is never stored."""

    name = "shuffle"

    def __init__(self, array: Array, seed: int) -> None:
        super().__init__(array, seed)
        self.permutation = Kept(Shuffled(len(array), seed))
        self._lookahead: Lookahead | None = None
        # Seconds per row, one read each, from the device and from the page cache, and how often measured.
        self._seconds = {False: math.inf, True: math.inf}
        self._measured = {False: 0, True: 0}

    def window_nbytes(self, spare: int, *, bounded: bool) -> int:
        array = self.array
        if array.nbytes <= spare:
            return array.nbytes
        return 0 if not array._by_runs or spare < _SHORTEST else spare

    def limit(self, ahead: int, window: int) -> None:
        super().limit(ahead, window)
        # Sweeps need few hints: the rest of their memory is better spent on rows, unless pages are mapped.
        memory = window + (max(0, ahead - _HINTS) if self.array._parallel else 0)
        self._lookahead = Lookahead(self.array, self.permutation, memory) if window else None

    def release(self) -> None:
        if self._lookahead is not None:
            self._lookahead.release()

    def _learn(self, outcome: Outcome, rows: int, seconds: float) -> None:
        super()._learn(outcome, rows, seconds)
        cached = outcome.cached
        self._seconds[cached] = min(self._seconds[cached], seconds / rows)
        self._measured[cached] += 1
        if self._lookahead is not None and outcome.late and not cached:
            self._lookahead.device.learn(outcome.late, outcome.late * self.array.row_nbytes, seconds)

    def submit(self, start: int, stop: int, out: npt.NDArray[Any]) -> Pending[Any]:
        ahead, cached = self._lookahead, self._cached
        if ahead is None:
            return super().submit(start, stop, out)
        if ahead.whole and ahead.holds(start, stop):
            return ahead.dealt(start, stop, out)
        # The first rows are read one by one: they tell what a read costs. In the page cache that is so little
        # that one measurement is not enough.
        known = self._measured[cached] >= (_TRIALS if cached else 1)
        if ahead.whole or not ahead.due or (known and ahead.pays(self._seconds[cached], cached=cached)):
            # A thread helps where there is a device to wait for, and more than once.
            done = ahead.whole or cached
            return Pending(self._read_ahead, ahead, start, stop, out, done=done)
        ahead.release()
        return super().submit(start, stop, out)

    def _read_ahead(self, ahead: Lookahead, start: int, stop: int, out: npt.NDArray[Any]) -> None:
        # How long a chunk may wait while the first sweep fills memory.
        alone = min(self._seconds.values()) * (stop - start)
        cached = ahead.read(start, stop, out, max(alone, _PATIENCE))
        self._cached = self._cached if cached is None else cached


class _Window(NamedTuple):
    """A window of blocks in memory, and where the rows that come next are in it."""

    number: int
    rows: npt.NDArray[Any]
    picks: Ints


class _Loading(NamedTuple):
    """A window of blocks that is being read."""

    number: int
    rows: npt.NDArray[Any]
    pendings: list[Pending[Any]]


class BlockOrder(RowOrder):
    """Blocks of neighbouring rows are permuted, then the rows within windows of blocks.

    A window is held in memory if there is room. Else its rows are read one by one, in the same order. For an
    array in a bucket the next window is read meanwhile, if there is room for two.
    """

    name = "blocks"
    permutation: BlockShuffled

    def __init__(self, array: Array, seed: int) -> None:
        super().__init__(array, seed)
        self.permutation = BlockShuffled(len(array), _BLOCK, _BLOCKS_PER_WINDOW, seed)
        self._holds_window = self._holds_two = False
        self.release()

    @property
    def settings(self) -> dict[str, Any]:
        return {"block": self.permutation.block, "window": self.permutation.window}

    def window_nbytes(self, spare: int, *, bounded: bool) -> int:
        nbytes = min(self.permutation.window_rows, len(self.array)) * self.array.row_nbytes
        most = min(_WINDOW, spare) if bounded else _WINDOW
        has_next = self.array._overlaps and len(self.array) > self.permutation.window_rows
        if nbytes > most:
            return 0
        return 2 * nbytes if has_next and (2 * nbytes <= most or not bounded) else nbytes

    def limit(self, ahead: int, window: int) -> None:
        super().limit(ahead, window)
        self._holds_window = window > 0
        rows = min(self.permutation.window_rows, len(self.array))
        self._holds_two = self.array._overlaps and window >= 2 * rows * self.array.row_nbytes > 0

    def release(self) -> None:
        self._held: _Window | None = None
        self._next: _Loading | None = None
        self._spare: npt.NDArray[Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Settings alone: what was read can be read again."""
        return {**self.__dict__, "_held": None, "_next": None, "_spare": None}

    def submit(self, start: int, stop: int, out: npt.NDArray[Any]) -> Pending[Any]:
        if self._holds_window:
            return Pending(self._read_from_windows, start, stop, out)
        return super().submit(start, stop, out)

    def _read_from_windows(self, start: int, stop: int, out: npt.NDArray[Any]) -> None:
        done = 0
        while start < stop:
            window = self.permutation.window_at(start)
            first, last = self.permutation.window_bounds(window)
            held = self._held
            if held is None or held.number != window:
                held = self._load_window(window)
            end = min(stop, last)
            if self._holds_two and self._next is None and last < self.permutation.n:
                self._next = self._start_window(window + 1)
            picks = held.picks[start - first : end - first]
            np.take(held.rows, picks, axis=0, out=out[done : done + len(picks)], mode="clip")
            done += len(picks)
            start = end

    def _load_window(self, window: int) -> _Window:
        """Read the blocks of a window, each in one go, one after another into memory."""
        old, self._held = self._held, None  # a fork may copy this in the middle of what follows
        spare = None if old is None else old.rows
        if self._holds_two:
            loading, self._next = self._next, None
            if loading is None or loading.number != window:
                loading = self._start_window(window)
            for pending in loading.pendings:
                pending.wait()
            rows, self._spare = loading.rows, spare
        else:
            rows, at = self._memory() if spare is None else spare, 0
            for starts, run in self.permutation.window_runs(window):
                until = at + len(starts) * run
                self.array._read_runs(starts, run, rows[at:until], self._ahead)
                at = until
        first, last = self.permutation.window_bounds(window)
        picks = self.permutation.window_shuffle(window)(0, last - first)  # once, not for each chunk
        self._held = held = _Window(window, rows, picks)
        return held

    def _start_window(self, window: int) -> _Loading:
        """Submit the reads of the blocks of a window, into memory that is not in use."""
        rows, self._spare = self._memory() if self._spare is None else self._spare, None
        pendings, at = [], 0
        for starts, run in self.permutation.window_runs(window):
            targets = at + np.arange(len(starts), dtype=np.int64) * run
            rows_each = np.full(len(starts), run, np.int64)
            pendings.append(self.array._submit_runs(starts, targets, rows_each, rows))
            at += len(starts) * run
        return _Loading(window, rows, pendings)

    def _memory(self) -> npt.NDArray[Any]:
        """For the longest window."""
        return self.array._memory(min(self.permutation.window_rows, self.permutation.n))


ORDERS: list[type[RowOrder]] = [SequentialOrder, ShuffledOrder, BlockOrder]


def order_kind(order: object, shuffle: object) -> type[RowOrder]:
    """The kind that ``order`` names, or its shorthand ``shuffle`` (True, False or "blocks")."""
    if order is not None and shuffle is not None:
        raise ArgumentError(
            f"order and shuffle are the same setting, got order={order!r} and shuffle={shuffle!r}; "
            f"pass one of them"
        )
    name = order if order is not None else _name_of(shuffle)
    for kind in ORDERS:
        if kind.name == name:
            return kind
    names = ", ".join(repr(kind.name) for kind in ORDERS)
    raise ArgumentError(f"order must be one of {names}, got {order!r}")


def _name_of(shuffle: object) -> str:
    # NumPy's booleans, and 0 and 1 from a command line, are booleans too.
    if isinstance(shuffle, str) and shuffle == "blocks":
        return "blocks"
    if shuffle is None:
        return "sequential"
    if isinstance(shuffle, bool | int | np.bool_ | np.integer) and shuffle in (0, 1):
        return "shuffle" if shuffle else "sequential"
    raise ArgumentError(f"shuffle must be False, True or 'blocks', got {shuffle!r}")

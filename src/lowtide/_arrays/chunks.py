"""Chunks: once through an array, in order or shuffled, with memory that stays where you said."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from lowtide._io.buffers import Buffers
from lowtide._io.extents import AHEAD
from lowtide._io.prefetch import Prefetcher
from lowtide._permutation import BlockShuffled, Ints, Order, Sequential, Shuffled, key_of
from lowtide._readonly import ReadOnly
from lowtide._sizes import format_size, parse_size, whole
from lowtide.errors import ArgumentError, BudgetError, BusyError, ClosedError, StateError

if TYPE_CHECKING:
    from lowtide._arrays.array import Array

DEFAULT_BUDGET = 64 * 2**20
_WINDOW = 16 * 2**20  # shuffle="blocks": a window up to this size is held in memory
# Of shuffle="blocks", in rows: arrays with equally many rows then have one order, whatever a row's size.
_BLOCK = 256  # rows read in one go
_BLOCKS_A_WINDOW = 16  # what is shuffled together; with fewer, neighbours would stay neighbours

Shuffle = bool | Literal["blocks"]


class Chunks(ReadOnly, Iterator[Any]):
    """The iterator that :meth:`Array.chunks` returns: one pass over the rows.

    A second loop over the same object is an error: call :meth:`Array.chunks` again, with the next ``epoch``
    for another order. Each item is a chunk, or with ``with_rows=True`` a pair ``(rows, chunk)``.

    ``len`` is the number of chunks still to come, so ``tqdm`` and ``rich.progress.track`` show a true bar.
    ``state_dict()`` is a few integers; loaded into an iterator with the same settings it goes on exactly
    where the other one stopped, at once, however far that was. Leaving a ``with`` block, ``close()`` or
    dropping the iterator ends its thread.

    >>> chunks = a.chunks(1, shuffle=True)
    >>> first, second = next(chunks), next(chunks)
    >>> state = chunks.state_dict()
    >>> again = a.chunks(1, shuffle=True)
    >>> again.load_state_dict(state)
    >>> len(again), bool((next(again) == next(chunks)).all())
    (2, True)
    >>> a.chunks(3, shuffle=True, seed=7)
    <lowtide.Chunks of '...a.npy', rows=3, shuffle=True, seed=7, epoch=0, next 0 of 2>
    """

    _remedy = "call array.chunks(...) again with other arguments"

    def __init__(
        self,
        array: Array,
        rows: int | None,
        *,
        budget: int | str | None,
        shuffle: Shuffle,
        seed: int,
        epoch: int,
        drop_last: bool,
        prefetch: int,
        reuse: bool,
        with_rows: bool,
    ) -> None:
        if not array.shape:
            raise ArgumentError(f"{array.path}: an array with no dimensions has no rows to go through")
        rows = None if rows is None else whole("rows", rows, least=1)
        prefetch = whole("prefetch", prefetch, least=0)
        seed, epoch = whole("seed", seed), whole("epoch", epoch, least=0)
        shuffle = _checked(shuffle)
        order = _order(shuffle, len(array), seed if not epoch else key_of(seed, epoch))
        self._plan = _Plan(array, rows, budget, order, drop_last, prefetch, reuse, with_rows)
        self._epoch = epoch
        self._settings: dict[str, Any] = {
            "rows": self._plan.rows,
            "shuffle": shuffle,
            "seed": seed,
            "epoch": epoch,
            "drop_last": bool(drop_last),
            "shape": list(array.shape),
            "dtype": str(array.dtype),
        }
        if isinstance(order, BlockShuffled):
            self._settings |= {"block": order.block, "window": order.window}
        self._prefetch = prefetch
        self._reuse = bool(reuse)
        self._consumer: tuple[int, int] | None = None
        self._unchecked = True
        self._thread = get_ident()
        self._start_at(0)

    @property
    def rows(self) -> int:
        """Rows in a chunk; the last one may have fewer."""
        return self._plan.rows

    @property
    def nbytes_in_flight(self) -> int:
        """Memory that the pass may hold at once: chunks, the window of a block shuffle, hints."""
        return self._plan.in_flight

    def __len__(self) -> int:
        return self._plan.count - self._source.position

    def __repr__(self) -> str:
        settings = ", ".join(
            f"{name}={self._settings[name]!r}" for name in ("rows", "shuffle", "seed", "epoch")
        )
        state = ", closed" if self._closed else ", exhausted" if self._ended else ""
        return (
            f"<lowtide.Chunks of {self._plan.array.path!r}, {settings}, "
            f"next {self._source.position} of {self._plan.count}{state}>"
        )

    def __iter__(self) -> Chunks:
        # Not in another thread, which may have come too late to share a pass, and not to a consumer that has
        # come back again and again, such as a loop that takes four at a time by islice.
        if self._ended and not self._closed and get_ident() == self._thread and self._loops <= 1:
            raise ClosedError(
                f"{self._plan.array.path}: these chunks are exhausted (all {self._plan.count} were given); "
                f"call array.chunks(..., epoch={self._epoch + 1}) for another pass"
            )
        self._loops += not self._ended
        return self

    def __next__(self) -> Any:
        if self._closed:
            raise ClosedError("the chunks were closed; ask the array for new ones")
        if self._reuse:
            self._check_consumer()
        if self._unchecked:
            self._unchecked = False
            self._plan.array.check_file()
        try:
            return self._source.next()
        except StopIteration:
            if not self._ended:
                self._end()
                self._plan.array.check_file()  # what was read may be newer than the last check
            raise

    def _check_consumer(self) -> None:
        """One thread only: the next chunk of another one would overwrite what this one holds."""
        consumer = (os.getpid(), get_ident())
        if self._consumer is None or self._consumer[0] != consumer[0]:
            self._consumer = consumer
        elif self._consumer != consumer:
            raise BusyError(
                f"{self._plan.array.path}: another thread uses these chunks with reuse=True, and the next "
                f"one would overwrite its chunk; share chunks with reuse=False, or give each thread its own"
            )

    def state_dict(self) -> dict[str, Any]:
        """Where the pass stands, and the settings that it must be continued with."""
        return {"position": self._source.position, **self._settings}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken; an error says what differs when it does not fit."""
        state = {"epoch": 0} | state  # version 0.1 had no other
        wrong = [
            f"{key} was {state.get(key)!r} and is {value!r}"
            for key, value in self._settings.items()
            if state.get(key) != value
        ]
        if wrong:
            raise StateError(
                f"{self._plan.array.path}: the state was saved with other settings: {'; '.join(wrong)}"
            )
        position = state.get("position")
        if not isinstance(position, int) or not 0 <= position <= self._plan.count:
            raise StateError(f"the state's position is {position!r}, expected 0 to {self._plan.count}")
        self._end()
        self._start_at(position)

    def _start_at(self, position: int) -> None:
        self._closed = False
        self._ended = False
        self._loops = 0
        self._unchecked = True
        plan = self._plan
        self._source: Prefetcher[Any] = Prefetcher(
            plan.item, position, plan.count, self._prefetch, at_once=plan.item_at_once
        )

    def close(self) -> None:
        """End the prefetch thread and free what it made ahead; idempotent."""
        self._closed = True
        self._end()

    def _end(self) -> None:
        self._ended = True
        self._source.close()
        self._plan.buffers.clear()

    def __enter__(self) -> Chunks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Plan:
    """How a pass is cut up, and how one of its chunks is made. Knows nothing of the iterator."""

    def __init__(
        self,
        array: Array,
        rows: int | None,
        budget: int | str | None,
        order: Order,
        drop_last: bool,
        prefetch: int,
        reuse: bool,
        with_rows: bool,
    ) -> None:
        self.array = array
        self.order = order
        self._total = total = len(array)
        # One chunk is in the caller's hands; without reuse the loop still holds it while the next is made.
        self._buffers = prefetch + (1 if reuse else 2)
        self._with_rows = with_rows
        # A row costs its bytes in every buffer; its number is in a new array for every chunk.
        self._row_cost = self._buffers * array.row_nbytes + (8 * (prefetch + 2) if with_rows else 0)
        window = min(order.window_rows, total) * array.row_nbytes if isinstance(order, BlockShuffled) else 0
        # A window that has no room is not held: its rows are read one by one, in the same order.
        self._holds_window = isinstance(order, BlockShuffled) and window <= _WINDOW
        self._ahead = AHEAD
        if budget is not None or rows is None:
            size = DEFAULT_BUDGET if budget is None else parse_size(budget)
            self._ahead = min(AHEAD, size // 4)
            if self._fitting(size) < (rows or 1):
                raise self._too_small(size, rows or 1)
            roomy = 2 * window <= size - self._ahead and self._fitting(size, window) >= (rows or 1)
            self._holds_window = self._holds_window and roomy
            rows = rows or max(1, min(self._fitting(size, window if self._holds_window else 0), total))
        self.rows = rows
        self.count = total // self.rows if drop_last else -(-total // self.rows)
        held = min(self.rows, total)
        self.in_flight = held * self._row_cost + (window if self._holds_window else 0) + self._ahead
        # Each row being placed costs some 100 bytes beside itself: offsets, targets, requests.
        self._piece = min(2**15, max(256, self._ahead // 128))
        self.buffers = Buffers(held * array.row_nbytes, most=self._buffers)
        self._ring: list[npt.NDArray[Any]] = []
        self._reuse = reuse
        self._untried = True
        self._window = -1
        self._window_rows = np.empty((0, *array.shape[1:]), array.dtype)
        self._picks: Ints = np.empty(0, np.int64)

    def __getstate__(self) -> dict[str, Any]:
        """Settings alone: what was read can be read again."""
        return {**self.__dict__, "_ring": [], "_window": -1, "_window_rows": self._window_rows[:0]}

    def _fitting(self, budget: int, window: int = 0) -> int:
        """Rows that each buffer may hold beside the hints and a window of so many bytes."""
        ahead = min(AHEAD, budget // 4)
        return (budget - ahead - window) // max(1, self._row_cost)

    def _too_small(self, size: int, rows: int) -> BudgetError:
        least = bisect_left(range(2**62), rows, key=self._fitting)
        what = "one row" if rows == 1 else f"chunks of {rows} rows"
        return BudgetError(
            f"{self.array.path}: a budget of {format_size(size)} ({size} bytes) is too small for {what} of "
            f"{self.array.row_nbytes} bytes in {self._buffers} buffers; the smallest that works is "
            f"{least} bytes ({format_size(least)}), or less with a lower prefetch"
        )

    def item(self, number: int) -> Any:
        """What the iterator gives: a chunk, or its rows' numbers and the chunk."""
        chunk = self._chunk(number)
        return (self._numbers(number), chunk) if self._with_rows else chunk

    def item_at_once(self, number: int) -> Any | None:
        """The same if it can be had by a plain copy from the page cache."""
        chunk = self._chunk_at_once(number)
        return (self._numbers(number), chunk) if self._with_rows and chunk is not None else chunk

    def _numbers(self, number: int) -> Ints:
        start, stop = self._bounds(number)
        numbers = np.empty(stop - start, np.int64)
        for first in range(start, stop, self._piece):
            last = min(stop, first + self._piece)
            numbers[first - start : last - start] = self.order(first, last)
        return numbers

    def _chunk(self, number: int) -> npt.NDArray[Any]:
        """Make one chunk. Called by one thread at a time, mostly in order."""
        start, stop = self._bounds(number)
        out = self._buffer(number, stop - start)
        if isinstance(self.order, Sequential):
            self.array.stream(start, stop, out)
            return out
        for first in range(start, stop, self._piece):
            last = min(stop, first + self._piece)
            part = out[first - start : last - start]
            if isinstance(self.order, BlockShuffled) and self._holds_window:
                self._read_from_windows(self.order, first, last, part)
            else:
                self.array.read_ordered(self.order, first, last, part, self._ahead)
        return out

    def _chunk_at_once(self, number: int) -> npt.NDArray[Any] | None:
        if not isinstance(self.order, Sequential):
            if self._holds_window or not (self._untried or self.array.was_cached):
                return None
            self._untried = False  # the first must be waited for anyway, and tells about the others
            return self._chunk(number)
        start, stop = self._bounds(number)
        out = self._buffer(number, stop - start)
        return out if self.array.stream(start, stop, out, wait=False) else None

    def _bounds(self, number: int) -> tuple[int, int]:
        return number * self.rows, min(self._total, (number + 1) * self.rows)

    def _buffer(self, number: int, rows: int) -> npt.NDArray[Any]:
        shape = (rows, *self.array.shape[1:])
        if not self._reuse:
            return self.buffers.empty(shape, self.array.dtype)
        while len(self._ring) < self._buffers:
            rows_held = min(self.rows, len(self.array))
            self._ring.append(self.buffers.empty((rows_held, *shape[1:]), self.array.dtype))
        return self._ring[number % self._buffers][:rows]

    def _read_from_windows(self, order: BlockShuffled, start: int, stop: int, out: npt.NDArray[Any]) -> None:
        done = 0
        while start < stop:
            window = order.window_at(start)
            first, last = order.window_bounds(window)
            if window != self._window:
                self._load_window(order, window)
            end = min(stop, last)
            picked = self._picks[start - first : end - first]
            np.take(self._window_rows, picked, axis=0, out=out[done : done + len(picked)], mode="clip")
            done += len(picked)
            start = end

    def _load_window(self, order: BlockShuffled, window: int) -> None:
        """Read a window's blocks, each in one go, one after another into memory."""
        self._window = -1  # before anything else: a fork may copy this in the middle of what follows
        if not len(self._window_rows):
            # Once, for the longest, and not by malloc: it might keep what was freed, and passes would add up.
            rows = min(order.window_rows, order.n)
            once = Buffers(rows * self.array.row_nbytes, most=0)
            self._window_rows = once.empty((rows, *self.array.shape[1:]), self.array.dtype)
        at = 0
        for starts, run in order.window_runs(window):
            until = at + len(starts) * run
            self.array.read_runs(starts, run, self._window_rows[at:until], self._ahead)
            at = until
        self._picks = order.window_shuffle(window)(0, at)  # once, and not for every chunk again
        self._window = window


def _checked(shuffle: object) -> Shuffle:
    """NumPy's booleans, and 0 and 1 from a command line, are booleans too."""
    if isinstance(shuffle, str) and shuffle == "blocks":
        return "blocks"
    if isinstance(shuffle, bool | int | np.bool_ | np.integer) and shuffle in (0, 1):
        return bool(shuffle)
    raise ArgumentError(f"shuffle must be False, True or 'blocks', got {shuffle!r}")


def _order(shuffle: Shuffle, total: int, seed: int) -> Order:
    if shuffle == "blocks":
        return BlockShuffled(total, _BLOCK, _BLOCKS_A_WINDOW, seed)
    return Shuffled(total, seed) if shuffle else Sequential(total)

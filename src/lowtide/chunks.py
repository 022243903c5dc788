"""Chunks: once through an array, in order or shuffled, with memory that stays where you said."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from lowtide.buffers import Buffers
from lowtide.errors import ArgumentError, BudgetError, ClosedError, StateError
from lowtide.extents import AHEAD
from lowtide.orders import BlockShuffled, Order, Sequential, Shuffled
from lowtide.prefetch import Prefetcher
from lowtide.sizes import format_size, parse_size, whole

if TYPE_CHECKING:
    from lowtide.array import Array

DEFAULT_BUDGET = 64 * 2**20
_WINDOW = 16 * 2**20  # shuffle="blocks": what is shuffled together, when no budget says otherwise
_BLOCK = 2**20  # shuffle="blocks": one read
_BLOCKS_A_WINDOW = 16  # at least so many, or neighbours would stay neighbours

Shuffle = bool | Literal["blocks"]


class Chunks(Iterator[npt.NDArray[Any]]):
    """The iterator that :meth:`Array.chunks` returns: one pass over the rows.

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
    """

    def __init__(
        self,
        array: Array,
        rows: int | None,
        *,
        budget: int | str | None,
        shuffle: Shuffle,
        seed: int,
        drop_last: bool,
        prefetch: int,
        reuse: bool,
    ) -> None:
        if not array.shape:
            raise ArgumentError(f"{array.path}: an array with no dimensions has no rows to go through")
        rows = None if rows is None else whole("rows", rows, least=1)
        prefetch = whole("prefetch", prefetch, least=0)
        self._plan = _Plan(array, rows, budget, shuffle, whole("seed", seed), drop_last, prefetch, reuse)
        self._prefetch = prefetch
        self._unchecked = True
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

    def __iter__(self) -> Chunks:
        return self

    def __next__(self) -> npt.NDArray[Any]:
        if self._closed:
            raise ClosedError("the chunks were closed; ask the array for new ones")
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

    def state_dict(self) -> dict[str, Any]:
        """Where the pass stands, and the settings that it must be continued with."""
        return {"position": self._source.position, **self._plan.settings}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken; an error says what differs when it does not fit."""
        settings = self._plan.settings
        wrong = [
            f"{key} was {state.get(key)!r} and is {value!r}"
            for key, value in settings.items()
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
        self._unchecked = True
        plan = self._plan
        self._source: Prefetcher[npt.NDArray[Any]] = Prefetcher(
            plan.chunk, position, plan.count, self._prefetch, at_once=plan.chunk_at_once
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
        shuffle: Shuffle,
        seed: int,
        drop_last: bool,
        prefetch: int,
        reuse: bool,
    ) -> None:
        self.array = array
        self._total = total = len(array)
        width = array.row_nbytes
        # One chunk is in the caller's hands; without reuse the loop still holds it while the next is made.
        self._buffers = prefetch + (1 if reuse else 2)
        self._blocks = shuffle == "blocks"
        self._ahead, window = AHEAD, _WINDOW
        if budget is not None or rows is None:
            size = DEFAULT_BUDGET if budget is None else parse_size(budget)
            self._ahead, window, fitting = self._shares(size)
            if fitting < (rows or 1):
                raise self._too_small(size, rows or 1)
            rows = rows or max(1, min(fitting, total))
        self.rows = rows
        self.count = total // self.rows if drop_last else -(-total // self.rows)
        self.order = _order(shuffle, total, width, window, seed)
        self.settings: dict[str, Any] = {
            "rows": self.rows,
            "shuffle": shuffle,
            "seed": seed,
            "drop_last": drop_last,
            "shape": list(array.shape),
            "dtype": str(array.dtype),
        }
        held = 0
        if isinstance(self.order, BlockShuffled):
            self.settings |= {"block": self.order.block, "window": self.order.window}
            held = self.order.window_rows * width
        size = min(self.rows, total) * width
        self.in_flight = self._buffers * size + held + self._ahead
        # Each row being placed costs some 100 bytes beside itself: offsets, targets, requests.
        self._piece = min(2**15, max(256, self._ahead // 128))
        self.buffers = Buffers(size, most=self._buffers)
        self._ring: list[npt.NDArray[Any]] = []
        self._reuse = reuse
        self._untried = True
        self._window = -1
        self._window_rows = np.empty((0, *array.shape[1:]), array.dtype)

    def __getstate__(self) -> dict[str, Any]:
        """Settings alone: what was read can be read again."""
        return {**self.__dict__, "_ring": [], "_window": -1, "_window_rows": self._window_rows[:0]}

    def _shares(self, budget: int) -> tuple[int, int, int]:
        """How a budget is divided: bytes of hints, bytes of a window of blocks, rows a buffer may hold."""
        width = max(1, self.array.row_nbytes)
        ahead = min(AHEAD, budget // 4)
        # A window holds one row at least, however small its share is.
        window = max(width, min(_WINDOW, (budget - ahead) // 2)) if self._blocks else 0
        return ahead, window, (budget - ahead - window) // (width * self._buffers)

    def _too_small(self, size: int, rows: int) -> BudgetError:
        least = bisect_left(range(2**62), rows, key=lambda budget: self._shares(budget)[2])
        what = "one row" if rows == 1 else f"chunks of {rows} rows"
        return BudgetError(
            f"{self.array.path}: a budget of {format_size(size)} ({size} bytes) is too small for {what} of "
            f"{self.array.row_nbytes} bytes in {self._buffers} buffers; the smallest that works is "
            f"{least} bytes ({format_size(least)}), or less with a lower prefetch"
        )

    def chunk(self, number: int) -> npt.NDArray[Any]:
        """Make one chunk. Called by one thread at a time, mostly in order."""
        start, stop = self._bounds(number)
        out = self._buffer(number, stop - start)
        if isinstance(self.order, Sequential):
            self.array.stream(start, stop, out)
            return out
        for first in range(start, stop, self._piece):
            last = min(stop, first + self._piece)
            part = out[first - start : last - start]
            if isinstance(self.order, BlockShuffled):
                self._read_from_windows(self.order, first, last, part)
            else:
                self.array.read_ordered(self.order, first, last, part, self._ahead)
        return out

    def chunk_at_once(self, number: int) -> npt.NDArray[Any] | None:
        """One chunk if it can be had by a plain copy from the page cache."""
        if isinstance(self.order, Shuffled) and (self._untried or self.array.was_cached):
            self._untried = False  # the first must be waited for anyway, and tells about the others
            return self.chunk(number)
        if not isinstance(self.order, Sequential):
            return None
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
            picked = order.window_shuffle(window)(start - first, end - first)
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
        self._window = window


def _order(shuffle: Shuffle, total: int, width: int, window: int, seed: int) -> Order:
    if shuffle is False:
        return Sequential(total)
    if shuffle is True:
        return Shuffled(total, seed)
    if shuffle == "blocks":
        block = max(1, min(_BLOCK, window // _BLOCKS_A_WINDOW) // max(1, width))
        return BlockShuffled(total, block, max(1, window // max(1, block * width)), seed)
    raise ArgumentError(f"shuffle must be False, True or 'blocks', got {shuffle!r}")

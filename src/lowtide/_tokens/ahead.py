"""Ahead: the windows of several steps, read together and dealt out one step after another.

The windows of the next steps are known, since an order is computed. While files are in the page cache, a few
steps are read at once, which saves the fixed cost of a read. If they are not, and there is a budget, the
windows of as many steps as it holds are sorted by their places, joined over gaps that are cheaper to read
than to skip, and read in long runs. The batches are the same.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lowtide._io.buffers import Buffers
from lowtide._io.costs import Costs
from lowtide._io.extents import Ints
from lowtide._io.pending import Outcome, Pending

if TYPE_CHECKING:
    from lowtide._tokens.sampling import Windows

_TOGETHER = 9 * 2**16  # bytes of cached tokens that are read at once: they stay in the processor's cache
_WINDOWS = 255  # windows that are cached and read at once
_STAGE = 4 * 2**20  # bytes read at once, windows and the gaps between them
_INDEX = 32  # bytes per window while a budget is filled: its place, its rank among the places, its number
_SHORTEST = 2**20  # bytes; a smaller budget finds hardly any neighbours

Tokens = npt.NDArray[Any]


class Ahead:
    """The tokens of consecutive steps, read before they are needed.

    Any thread may submit any step. Only steps in order are read ahead, by one thread at a time; other
    threads, and steps out of order, get None and are read alone.

    Parameters
    ----------
    samples
        The windows.
    batch_size
        Windows of a step, of all ranks.
    rows
        First and last of the windows of this rank.
    together
        Whether cached steps are read several at a time.
    budget
        Bytes of memory for steps that are not cached; 0 reads each of them by itself.
    origin
        The sample that step 0 would start with.
    """

    def __init__(
        self,
        samples: Windows,
        batch_size: int,
        rows: tuple[int, int],
        together: bool,
        budget: int,
        origin: int = 0,
    ) -> None:
        self._samples, self._batch_size, self._rows, self._origin = samples, batch_size, rows, origin
        count, width = rows[1] - rows[0], samples.length + 1
        self._shape = count, width
        nbytes = count * width * samples.dtype.itemsize
        # Fewer windows than are read by several threads: handing over would cost more than it saves.
        self._together = max(1, min(_TOGETHER // nbytes, _WINDOWS // count)) if together else 1
        self._buffers = Buffers(self._together * nbytes, most=2)
        self._dealing = Buffers(nbytes, most=3)
        self._budget = budget
        stage = min(_STAGE, budget // 8)
        self._budgeted = (budget - stage) // (nbytes + count * _INDEX) if budget >= _SHORTEST else 0
        self._stage_tokens = max(stage // samples.dtype.itemsize, width)
        self.costs = Costs()
        self._lock = threading.Lock()
        self._next = -1
        self._cached: bool | None = None  # None until a step has shown it
        self._learned = 0.0
        self._first = self._last = 0
        self._tokens: Tokens | None = None
        self._picks: npt.NDArray[np.int32] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Settings alone: what was read can be read again.
        settings = self._batch_size, self._rows, self._together > 1, self._budget, self._origin
        return Ahead, (self._samples, *settings)

    def release(self) -> None:
        """Release what was read ahead."""
        if self._lock.acquire(blocking=False):
            self._first = self._last = 0
            self._tokens = self._picks = None
            self._lock.release()

    def submit(self, step: int) -> Pending[Tokens] | None:
        """The tokens of a step, as a view of memory that nothing else changes; None to read it alone."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            in_order, self._next = step == self._next, step + 1
            if self._first <= step < self._last:
                return Pending.of(self._dealt(step))
            if not in_order:
                return None
            if self._cached and self._together > 1:
                self._load(step)
                return Pending.of(self._dealt(step))
            if self._cached is False and self._budgeted > 1:
                return Pending(self._load_and_deal, step)
            return None
        finally:
            self._lock.release()

    def learn(self, submitted: float, outcome: Outcome) -> None:
        """Learn from the outcome of a step that was read alone and ``submitted`` at that time."""
        self._cached = outcome.cached
        now = time.perf_counter()
        if outcome.late and not outcome.cached:
            nbytes = outcome.late * self._shape[1] * self._samples.dtype.itemsize
            # Several may be under way: what the device did for another one is not counted twice.
            self.costs.learn(outcome.late, nbytes, now - max(submitted, self._learned))
        self._learned = now

    def _dealt(self, step: int) -> Tokens:
        assert self._tokens is not None
        count = self._shape[0]
        rows = slice((step - self._first) * count, (step - self._first + 1) * count)
        if self._picks is None:
            return self._tokens[rows]
        out = self._dealing.empty(self._shape, self._samples.dtype)
        return np.take(self._tokens, self._picks[rows], axis=0, out=out, mode="clip")

    def _load(self, step: int) -> None:
        """Read a few steps in their order."""
        count = self._together * self._shape[0]
        self._last = self._first = 0  # a failure must not leave anything that is half overwritten
        self._tokens = self._picks = None
        tokens = self._buffers.empty((count, self._shape[1]), self._samples.dtype)
        if self._shape[0] == self._batch_size:
            outcome: Outcome = self._samples.submit(self._origin + step * self._batch_size, tokens).wait()
        else:
            starts = self._samples.starts_at(self._numbers(step, step + self._together))
            outcome = self._samples.segments.submit_windows(starts, tokens).wait()
        self._cached = outcome.cached
        self._tokens, self._first, self._last = tokens, step, step + self._together

    def _numbers(self, first: int, last: int) -> Ints:
        """The samples of this rank in some steps."""
        steps = np.arange(first, last, dtype=np.int64)[:, None] * self._batch_size + self._origin
        return (steps + np.arange(*self._rows, dtype=np.int64)).ravel()

    def _load_and_deal(self, step: int) -> Tokens:
        with self._lock:
            if not self._first <= step < self._last:
                self._load_sorted(step, step + self._budgeted)
            return self._dealt(step)

    def _load_sorted(self, first: int, last: int) -> None:
        """Read the windows of many steps in the order of the files."""
        memory = self._tokens if self._picks is not None else None
        self._last = self._first = 0
        self._tokens = self._picks = None
        starts = self._samples.starts_at(self._numbers(first, last))
        order = np.argsort(starts, kind="stable")
        picks = np.empty(len(order), np.int32)
        picks[order] = np.arange(len(order), dtype=np.int32)
        starts = starts[order]
        del order
        if memory is None:
            # Once, and not by malloc: it might keep what was freed, and passes would add up.
            shape = len(starts), self._shape[1]
            nbytes = shape[0] * shape[1] * self._samples.dtype.itemsize
            memory = Buffers(nbytes, most=0).empty(shape, self._samples.dtype)
        stage = np.empty(self._stage_tokens, self._samples.dtype)
        done = 0
        while done < len(starts):
            done += self._read_runs(starts[done:], memory[done:], stage)
        self._tokens, self._picks, self._first, self._last = memory, picks, first, last

    def _read_runs(self, starts: Ints, out: Tokens, stage: Tokens) -> int:
        """Read as many of the windows as the stage holds together with the gaps between them."""
        width, item = self._shape[1], self._samples.dtype.itemsize
        starts = starts[: len(stage) // 2 + 1]
        steps = np.diff(starts, prepend=starts[0])
        apart = (steps - width) * item > self.costs.gap
        apart[0] = True
        # The place of each in the stage: neighbours share tokens, and a run is as long as its windows reach.
        places = np.cumsum(np.where(apart, width, steps)) - width
        count = max(1, int(np.searchsorted(places + width, len(stage), side="right")))
        starts, places = starts[:count], places[:count]
        runs = np.flatnonzero(apart[:count])
        targets, total = places[runs], int(places[-1]) + width
        started = time.perf_counter()
        outcome = self._samples.segments.submit(
            starts[runs], np.diff(targets, append=total), targets, stage
        ).wait()
        if not outcome.cached:
            self.costs.learn(len(runs), total * item, time.perf_counter() - started)
        else:
            self._cached = True
        # Not np.take, which would copy every window that there might be.
        out[:count] = np.lib.stride_tricks.sliding_window_view(stage[:total], width)[places]
        return count

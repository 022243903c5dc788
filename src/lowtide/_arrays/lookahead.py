"""Lookahead: the rows of many shuffled chunks, read together in the order of the file.

The rows of the next chunks are known, since an order is computed. They are read as an elevator serves its
floors: a sweep goes through the file again and again, and takes along the rows that are wanted soon, joined
over gaps that are cheaper to read than to skip. A row goes to the memory that an earlier one has left, so a
sweep serves twice as many rows as fit, and no chunk has to wait for a whole sweep. Chunks are dealt out of
memory, in the same exact order. On a disk with 3,000 operations per second one read per row is 3 MB/s,
whatever its bandwidth: there memory buys speed. Where the page cache holds the file, and on fast devices, one
read per row may be faster: what reads cost is measured, and decides.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lowtide._io.costs import LONG, Costs
from lowtide._io.pending import Outcome, Pending, combined
from lowtide._io.threads import in_threads, workers_for
from lowtide._permutation import Ints, Order

if TYPE_CHECKING:
    from lowtide._arrays.array import Array

_STAGE = 4 * 2**20  # bytes read at once, rows and the gaps between them
_COPY = 2**18  # bytes copied at once to where they belong
_SHARED = 2**21  # bytes that threads copy together: for less, to hand over may take longer than to copy
_INDEX = 48  # bytes per row in memory, for what is known and not read, and for where each place's row is
_KNOWN = 1.9  # places known per row in memory; with 2.0 rows would be read at the moment they are wanted
_ROUNDS = 32  # parts of a sweep
_PIECE = 2**15  # rows whose numbers are computed at once
_SORTED = 2**16  # rows whose runs are found at once
_DENSE = 4096  # bytes from row to row up to which reading through what is cached is as fast as a read
_DEALT, _COPIED = 1e-7, 1e-10  # seconds to sort and deal out a row, and to copy a byte


class RowCosts(Costs):
    """Costs of reads, and what they make of a sweep."""

    measured: float | None = None
    """Seconds per row of recent sweeps."""

    def per_row(self, width: int, spacing: float) -> float:
        """Seconds per row of a sweep whose rows of ``width`` bytes are ``spacing`` rows apart on average.

        Measured, if there was one; else expected, with gaps of random length.
        """
        if self.measured is not None:
            return self.measured
        between = max(spacing - 1, 1e-6)
        limit = self.gap / width
        read = math.exp(-limit / between)  # of the rows, as the first of a run
        through = between * (1 - read) - limit * read  # rows in gaps that are read through
        return read * self.per_read + (1 + through) * width * self.per_byte + _DEALT + 2 * width * _COPIED


class _Part(NamedTuple):
    """What was read for some rows."""

    rows: int
    reads: int
    nbytes: int
    outcome: Outcome


def _total(parts: Sequence[_Part]) -> _Part:
    return _Part(
        sum(part.rows for part in parts),
        sum(part.reads for part in parts),
        sum(part.nbytes for part in parts),
        combined(part.outcome for part in parts),
    )


class Lookahead:
    """Rows that come soon at places of an order, in memory before they are asked for.

    Parameters
    ----------
    array
        The array whose rows are read.
    order
        Which row comes when.
    nbytes
        Memory for the rows, their index and what is read at once.
    """

    def __init__(self, array: Array, order: Order, nbytes: int) -> None:
        self.array = array
        self._order = order
        self.device, self.cache = RowCosts(), RowCosts(1e-6, 2e-10)
        self._costs = self.device
        width = array.row_nbytes
        self._parts = workers_for(_SORTED, nbytes) if array._parallel else 1
        self._stage_rows = max(1, min(_STAGE, nbytes // 8) // self._parts // width)
        self.whole = array.nbytes <= nbytes
        """Whether all rows fit: then the file is read once, in order, and no index is needed."""
        fitting = (nbytes - self._parts * self._stage_rows * width) // (width + _INDEX)
        # Row and place share an integer of 64 bits.
        fitting = min(fitting, len(array), 2 ** (61 - len(array).bit_length()), 2**30)
        self.rows = len(array) if self.whole else max(4, fitting)
        self._most_known = int(_KNOWN * self.rows)
        self._ring_rows = self._most_known + self.rows
        self._bits = self._ring_rows.bit_length()
        self.release()

    def release(self) -> None:
        """Give the memory back. A read in progress has its own reference."""
        self._rows: npt.NDArray[Any] | None = None
        self._next = self._known = 0  # places: the next one to deal, and the first that is not known yet
        self._head = self._swept = 0  # rows of the file: where the sweep is, and how far it has gone in all
        self.due = True
        """Whether it is time to look if it pays: at the start, and after each sweep."""
        self._pending: Ints = np.empty(0, np.int64)  # row << bits | place in the ring: known and not read
        self._slots = np.empty(0, np.int32)  # where each place's row is in memory, -1 if nowhere: the ring
        self._free = np.empty(0, np.int32)
        self._idle = 0  # the first so many of them

    def pays(self, seconds: float, *, cached: bool) -> bool:
        """Whether sweeps are faster than ``seconds`` per row, from the page cache or from the device."""
        costs = self.cache if cached else self.device
        width, spacing = self.array.row_nbytes, max(1.0, len(self.array) / self._most_known)
        # In the page cache the difference is small, and a sweep that does not pay is a large part of a pass.
        if cached and width * spacing > _DENSE:
            return False
        margin = 1.25 if cached and costs.measured is None else 1.1
        self.due = not margin * costs.per_row(width, spacing) < seconds
        return not self.due

    def __getstate__(self) -> dict[str, Any]:
        """Settings alone: what was read can be read again."""
        copy = object.__new__(Lookahead)
        copy.release()
        return {**self.__dict__, **copy.__dict__}

    def holds(self, start: int, stop: int) -> bool:
        """Whether the rows at places ``start`` to ``stop`` are in memory."""
        if self._rows is None or (self.whole and stop > start):
            return self._rows is not None
        if start != self._next or stop > self._known:
            return False
        return bool((self._slots[np.arange(start, stop) % self._ring_rows] >= 0).all())

    def read(self, start: int, stop: int, out: npt.NDArray[Any], patience: float = math.inf) -> bool | None:
        """Fill ``out`` with the rows at places ``start`` to ``stop``.

        The sweep continues until memory is full, for ``patience`` seconds at most. Then what is still
        missing is read row by row.

        Returns whether what was read was in the page cache; None if nothing was read.
        """
        if self.whole:
            if self._rows is None:
                self._rows = self._load_all()
            self._gather(self._rows, start, stop, out)
            return None
        outcomes, piece = [], max(1, self.rows // 4)
        state = self._rows, self._next
        memory = state[0] if state[0] is not None else self.array._memory(self.rows)
        if state[0] is None or start != state[1]:
            self.release()
            self._start(start)
        self._rows = None  # a fork, or a failure, must not leave anything that is half overwritten
        for first in range(start, stop, piece):
            last = min(stop, first + piece)
            deadline = time.perf_counter() + patience * (last - first) / (stop - start)
            while self._extend(last) and time.perf_counter() < deadline:
                outcomes.append(self._sweep(memory))
            outcomes.append(self._deal(first, last, memory, out[first - start : last - start]))
        self._rows = memory
        outcome = combined(outcomes)
        return outcome.cached if outcome.total else None

    def dealt(self, start: int, stop: int, out: npt.NDArray[Any]) -> Pending[None]:
        """``read``, of rows that are all in memory: several threads may deal at once."""
        assert self._rows is not None
        return Pending(self._gather, self._rows, start, stop, out, done=True, beside=True)

    def _gather(self, rows: npt.NDArray[Any], start: int, stop: int, out: npt.NDArray[Any]) -> None:
        self._take(rows, self._order(start, stop), out)

    def _start(self, place: int) -> None:
        self._next = self._known = place
        self._slots = np.full(self._ring_rows, -1, np.int32)
        self._free = np.arange(self.rows, dtype=np.int32)
        self._idle = self.rows
        self.due = False

    def _extend(self, stop: int) -> bool:
        """Take the next places into account; whether there is a row to read and memory for it.

        The first sweep takes more of them the further it is, as if there had been sweeps before.
        """
        is_full = self._idle <= self.rows // _ROUNDS * 2
        if is_full and stop <= self._known:
            return False  # not for each chunk, but before a round: all that are known are sorted
        count = len(self.array)
        most = min(self._most_known, self._most_known * self._swept // count)
        known = min(count, max(stop, self._next + most))
        if known > self._known:
            parts = [self._pending]
            for some in _pieces(self._known, known):
                places = np.arange(some.start, some.stop) % self._ring_rows
                parts.append(np.sort(self._order(some.start, some.stop) << self._bits | places))
            self._pending = np.concatenate(parts)
            self._pending.sort(kind="stable")  # merges what is sorted already
            self._known = known
        return len(self._pending) > 0 and not is_full

    def _sweep(self, memory: npt.NDArray[Any]) -> Outcome:
        """Go one round further through the file, and read the rows that are known."""
        started, count = time.perf_counter(), len(self.array)
        reach = min(count, self._head + -(-count // _ROUNDS))
        first, last = np.searchsorted(self._pending, [self._head << self._bits, reach << self._bits]).tolist()
        if last - first > self._idle:
            last = first + self._idle
            reach = int(self._pending[last] >> self._bits)
        numbers = self._pending[first:last] >> self._bits
        places = self._pending[first:last] & (2**self._bits - 1)
        slots = self._free[self._idle - len(numbers) : self._idle]
        borders = np.linspace(0, len(numbers), self._parts + 1).astype(int).tolist()
        parts = [(a, b) for a, b in pairwise(borders) if b > a]
        tasks = [partial(self._read_part, numbers[a:b], slots[a:b], memory) for a, b in parts]
        _, reads, nbytes, outcome = _total(in_threads(tasks))
        seconds = time.perf_counter() - started
        self._slots[places] = slots
        self._idle -= len(numbers)
        self._pending = np.concatenate((self._pending[:first], self._pending[last:]))
        self._swept += reach - self._head
        self._head = reach % count
        if reads:
            self._costs = self.cache if outcome.cached else self.device
            self._costs.learn(reads, nbytes, seconds)
        if self._swept >= count and len(numbers):  # the first one finds fewer
            # What it takes to deal the rows out is not in it yet.
            per_row = seconds / len(numbers) + _DEALT + self.array.row_nbytes * _COPIED
            before = self._costs.measured
            self._costs.measured = per_row if before is None else before + (per_row - before) / _ROUNDS
            self.due = self.due or not self._head
        return outcome

    def _deal(self, first: int, last: int, memory: npt.NDArray[Any], out: npt.NDArray[Any]) -> Outcome:
        """Fill ``out`` from memory, and with reads of what is not there."""
        places = np.arange(first, last) % self._ring_rows
        slots = self._slots[places]
        np.take(memory, slots, axis=0, out=out, mode="clip")
        missing, outcome = np.flatnonzero(slots < 0), Outcome()
        if len(missing):
            keys = self._order(first, last)[missing] << self._bits | places[missing]
            order = np.argsort(keys)
            keys, missing = keys[order], missing[order]
            self._pending = np.delete(self._pending, np.searchsorted(self._pending, keys))
            ones = np.ones(len(missing), np.int64)
            started = time.perf_counter()
            outcome = self.array._submit_runs(keys >> self._bits, missing, ones, out).wait()
            if outcome.late and not outcome.cached:
                seconds = time.perf_counter() - started
                self.device.learn(outcome.late, outcome.late * self.array.row_nbytes, seconds)
        present = slots[slots >= 0]
        self._free[self._idle : self._idle + len(present)] = present
        self._idle += len(present)
        self._slots[places] = -1
        self._next = last
        return outcome

    def _take(self, rows: npt.NDArray[Any], numbers: Ints, out: npt.NDArray[Any]) -> None:
        """Copy rows that are in memory, by several threads if that takes longer than to start them."""
        parts = self._parts if out.nbytes >= _SHARED else 1
        borders = [len(out) * i // parts for i in range(parts + 1)]
        tasks = [partial(np.take, rows, numbers[a:b], 0, out[a:b], "clip") for a, b in pairwise(borders)]
        in_threads(tasks)

    def _load_all(self) -> npt.NDArray[Any]:
        """All rows, in the order of the file: each thread reads the next ones."""
        rows = self.array._memory(self.rows)
        pieces = iter(range(0, self.rows, self._stage_rows))
        in_threads([partial(self._read_pieces, rows, pieces) for _ in range(self._parts)])
        return rows

    def _read_pieces(self, out: npt.NDArray[Any], pieces: Iterator[int]) -> None:
        for first in pieces:
            last = min(self.rows, first + self._stage_rows)
            self.array._read_rows(first, last, out[first:last])

    def _read_part(self, numbers: Ints, slots: npt.NDArray[np.int32], memory: npt.NDArray[Any]) -> _Part:
        """Read rows, sorted by number, to their slots."""
        stage = self.array._memory(self._stage_rows)
        parts = []
        start, some = 0, 1024
        while start < len(numbers):
            end = start + some
            parts.append(self._read_runs(numbers[start:end], slots[start:end], memory, stage))
            start += parts[-1].rows
            some = min(_SORTED, 5 * parts[-1].rows // 4 + 64)  # not many more than fit
        return _total(parts)

    def _read_runs(
        self,
        numbers: Ints,
        slots: npt.NDArray[np.int32],
        memory: npt.NDArray[Any],
        stage: npt.NDArray[Any],
    ) -> _Part:
        """Read as many of the rows as the stage holds together with the gaps between them."""
        width, costs = self.array.row_nbytes, self._costs
        steps = np.ones(len(numbers), np.int64)
        np.subtract(numbers[1:], numbers[:-1], out=steps[1:])
        apart = steps > costs.gap // width + 1
        apart[0] = True
        ends = np.cumsum(np.where(apart, 1, steps))  # rows in the stage, up to and with each of them
        count = max(1, int(np.searchsorted(ends, len(stage), side="right")))
        ends, numbers = ends[:count], numbers[:count]
        runs = np.flatnonzero(apart[:count])
        targets, total = ends[runs] - 1, int(ends[-1])
        lengths = np.diff(targets, append=total)
        straight = len(runs) == count  # each by itself: the rows can go where they belong
        into, targets = (memory, slots[:count].astype(np.int64)) if straight else (stage[:total], targets)
        if total * width >= LONG * len(runs) and not self.array._drops:
            # In order, with the kernel's own read-ahead, which creates large pages: twice as fast. What it
            # reads beyond the last run would stay in the page cache.
            late = 0
            for start, target, length in zip(
                numbers[runs].tolist(), targets.tolist(), lengths.tolist(), strict=True
            ):
                pending = self.array._submit_rows(start, start + length, into[target : target + length])
                late += not pending.done
                pending.wait()
            outcome = Outcome(late, len(runs))
        else:
            outcome = self.array._submit_runs(numbers[runs], targets, lengths, into).wait()
        if not straight:
            for some in _pieces(0, count, max(1, _COPY // width)):
                memory[slots[some]] = stage[ends[some] - 1]
        return _Part(count, len(runs), total * width, outcome)


def _pieces(start: int, stop: int, length: int = _PIECE) -> list[slice]:
    return [slice(i, min(stop, i + length)) for i in range(start, stop, length)]

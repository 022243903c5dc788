"""Chunks: one pass over an array, in order or shuffled, within a memory budget."""

from __future__ import annotations

import operator
import os
from bisect import bisect_left
from collections.abc import Iterator
from threading import get_ident
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from lowtide._arrays.orders import OrderName, RowOrder, Shuffle, order_kind
from lowtide._closing import Closing
from lowtide._io.buffers import Buffers
from lowtide._io.extents import AHEAD
from lowtide._io.pending import Pending
from lowtide._io.prefetch import Prefetcher
from lowtide._permutation import key_of
from lowtide._printable import changes
from lowtide._ranks import Rank, ranks
from lowtide._readonly import ReadOnly
from lowtide._sizes import format_size, parse_size, whole
from lowtide.errors import ArgumentError, BudgetError, BusyError, ClosedError, IndexingError, StateError

if TYPE_CHECKING:
    from lowtide._arrays.array import Array
    from lowtide._arrays.deriving import Rowwise

DEFAULT_BUDGET = 64 * 2**20
_TOGETHER = 8  # chunks


class Chunks(ReadOnly, Closing, Iterator[Any]):
    """The iterator that :meth:`Array.chunks` returns: one pass over the rows.

    A second loop over the same object is an error: call :meth:`Array.chunks` again, with the next ``epoch``
    for another order. Each item is a chunk, or with ``with_rows=True`` a pair ``(rows, chunk)``.

    ``len`` is the number of chunks still to come, so ``tqdm`` and ``rich.progress.track`` show a true bar.
    ``state_dict()`` is a few integers. An iterator with the same settings, on any number of ranks, continues
    from it exactly where the other one stopped, without reading what came before. ``chunks[i]`` is chunk
    number ``i``, read on its own. Leaving a ``with`` block, ``close()`` or dropping the iterator ends its
    thread.

    >>> chunks = a.chunks(1, shuffle=True)
    >>> first, second = next(chunks), next(chunks)
    >>> state = chunks.state_dict()
    >>> again = a.chunks(1, shuffle=True)
    >>> again.load_state_dict(state)
    >>> len(again), bool((next(again) == next(chunks)).all())
    (2, True)
    >>> a.chunks(3, shuffle=True, seed=7)
    <lowtide.Chunks of '...a.npy', rows=3, order='shuffle', ... at most 16.0 MiB in flight, next 0 of 2>
    """

    _remedy = "call array.chunks(...) again with other arguments"

    def __init__(
        self,
        array: Rowwise[Any],
        rows: int | None,
        *,
        budget: int | str | None,
        order: OrderName | None,
        shuffle: Shuffle | None,
        seed: int,
        epoch: int,
        drop_last: bool,
        prefetch: int,
        reuse: bool,
        with_rows: bool,
        rank: Rank = None,
        world_size: int | None = None,
    ) -> None:
        rows = None if rows is None else whole("rows", rows, least=1)
        prefetch = whole("prefetch", prefetch, least=0)
        seed, epoch = whole("seed", seed), whole("epoch", epoch, least=0)
        kind = order_kind(order, shuffle)
        self._plan: Plan = array._pass(
            kind,
            seed if not epoch else key_of(seed, epoch),
            rows,
            budget=budget,
            drop_last=drop_last,
            prefetch=prefetch,
            reuse=reuse,
            with_rows=with_rows,
            ranks=_ranks(rank, world_size, rows),
        )
        self._epoch = epoch
        self._settings: dict[str, Any] = {
            "rows": self._plan.rows,
            "order": kind.name,
            "seed": seed,
            "epoch": epoch,
            "drop_last": bool(drop_last),
            **self._plan.settings,
        }
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
            f"{name}={self._settings[name]!r}" for name in ("rows", "order", "seed", "epoch")
        )
        state = ", closed" if self._closed else ", exhausted" if self._ended else ""
        return (
            f"<lowtide.Chunks of {self._plan.path!r}, {settings}, "
            f"at most {format_size(self._plan.in_flight)} in flight, "
            f"next {self._source.position} of {self._plan.count}{state}>"
        )

    def __getitem__(self, number: int) -> Any:
        """Chunk ``number`` of the pass, which depends only on the settings.

        It is read on its own, and the position of the iterator does not change.
        """
        count = self._plan.count
        number = operator.index(number)
        if not -count <= number < count:
            raise IndexingError(f"{self._plan.path}: chunk {number} is out of bounds for {count} chunks")
        return self._plan.read(number % count)

    def __iter__(self) -> Chunks:
        # Not in another thread, which may have come too late to share the pass, and not after several loops,
        # such as those of a consumer that takes four chunks at a time with islice.
        if self._ended and not self._closed and get_ident() == self._thread and self._loops <= 1:
            raise ClosedError(
                f"{self._plan.path}: these chunks are exhausted (all {self._plan.count} were given); "
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
            self._plan.check()
        try:
            return self._source.next_numbered()[1]
        except StopIteration:
            if not self._ended:
                self._end()
                self._plan.check()  # what was read may be newer than the last check
            raise

    def _check_consumer(self) -> None:
        """One thread only: the next chunk of another one would overwrite what this one holds."""
        consumer = (os.getpid(), get_ident())
        if self._consumer is None or self._consumer[0] != consumer[0]:
            self._consumer = consumer
        elif self._consumer != consumer:
            raise BusyError(
                f"{self._plan.path}: another thread uses these chunks with reuse=True, and the next "
                f"one would overwrite its chunk; share chunks with reuse=False, or give each thread its own"
            )

    def state_dict(self) -> dict[str, Any]:
        """The position of the pass, and the settings that are needed to continue it."""
        return {"position": self._source.position, **self._settings}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where ``state`` was saved.

        Parameters
        ----------
        state : dict
            What ``state_dict`` returned, for the same array and settings.

        Raises
        ------
        StateError
            The state is of other data or settings; the message lists what differs.
        """
        # Version 0.1 had no epochs, and named orders by their shorthand.
        shuffle = state.get("shuffle", False)
        order = "shuffle" if shuffle is True else "sequential" if shuffle is False else shuffle
        state = {"epoch": 0, "order": order} | state
        if wrong := changes(state, self._settings, self._settings):
            raise StateError(
                f"{self._plan.path}: the state was saved with other settings: {'; '.join(wrong)}"
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
        self._source: Prefetcher[Any] = Prefetcher(
            self._plan.submit, position, self._plan.count, self._prefetch, self._plan.together
        )

    def close(self) -> None:
        """End the prefetch thread and free what it read ahead; idempotent."""
        self._closed = True
        self._end()

    def _end(self) -> None:
        self._ended = True
        self._source.close()
        self._plan.release()


def _ranks(rank: Rank, world_size: int | None, rows: int | None) -> tuple[int, int]:
    number, count = ranks(rank, world_size)
    if count > 1 and (rows is None or rows < count):
        raise ArgumentError(
            f"rows counts the rows of a chunk of all ranks together: pass rows of at least {count} for "
            f"{count} ranks, got {rows}"
        )
    return number, count


class Plan:
    """Divides a pass into chunks, and reads one of them. Knows nothing of the iterator."""

    def __init__(
        self,
        array: Array,
        kind: type[RowOrder],
        key: int,
        rows: int | None,
        *,
        budget: int | str | None,
        drop_last: bool,
        prefetch: int,
        reuse: bool,
        with_rows: bool,
        ranks: tuple[int, int],
        arrays: int = 1,
    ) -> None:
        if not array.shape:
            raise ArgumentError(f"{array.path}: an array with no dimensions has no rows to go through")
        self.array = array
        self._order = order = kind(array, key)
        self._rank, self._world_size = ranks
        self._total = total = len(array)
        # One chunk is in the caller's hands; without reuse the loop still holds it while the next is read.
        self._buffers = prefetch + (1 if reuse else 2)
        self._with_rows = with_rows
        # A row costs its bytes in every buffer; its number is in a new array for every chunk.
        self._row_cost = self._buffers * array.row_nbytes + (8 * (prefetch + 2) if with_rows else 0)
        # Arrays that are read together share the default.
        size = DEFAULT_BUDGET // arrays if budget is None else parse_size(budget)
        ahead = self._ahead(size)
        held = max(1, min(self._share(rows), total)) if rows else 1
        self.least = bisect_left(range(2**62), held, key=self._fitting)
        """The smallest budget for these rows."""
        if self._fitting(size) < held:
            if budget is not None or rows is None:
                raise self._too_small(size, held)
            size, ahead = AHEAD + held * self._row_cost, AHEAD  # chunks of that size were requested
        # Without a number of rows, chunks get half of the budget, and the rest is there to look ahead.
        spare = (size - ahead) // 2 if rows is None else size - ahead - held * self._row_cost
        window = order.window_nbytes(spare, bounded=budget is not None or rows is None)
        rows = rows or max(1, min(self._fitting(size, window), total))
        order.limit(ahead, window)
        self.rows = rows
        self.count = total // self.rows if drop_last else -(-total // self.rows)
        self._held = held = min(self._share(self.rows), total)
        self.in_flight = held * self._row_cost + window + ahead
        self.together = 1
        """Chunks that several threads take from memory at once, if all rows are there."""
        nbytes = held * array.row_nbytes
        if 0 < array.nbytes <= window and nbytes and arrays == 1 and not (reuse or with_rows):
            self.together = max(1, min(_TOGETHER, self.count, 1 + (size - self.in_flight) // nbytes))
            self.in_flight += (self.together - 1) * nbytes
        self.buffers = Buffers(nbytes, most=self._buffers + self.together - 1)
        self._ring: list[npt.NDArray[Any]] = []
        self._reuse = reuse

    def __getstate__(self) -> dict[str, Any]:
        """Settings alone: what was read can be read again."""
        return {**self.__dict__, "_ring": []}

    def release(self) -> None:
        """Give back the memory that no chunk holds."""
        self.buffers.clear()
        self._order.release()

    def _ahead(self, budget: int) -> int:
        """Bytes that hints may take of a budget."""
        return min(AHEAD, budget // 4)

    def _fitting(self, budget: int, window: int = 0) -> int:
        """Rows that each buffer may hold besides the hints and a window of ``window`` bytes."""
        return (budget - self._ahead(budget) - window) // max(1, self._row_cost)

    def _too_small(self, size: int, rows: int) -> BudgetError:
        what = "one row" if rows == 1 else f"chunks of {rows} rows"
        return BudgetError(
            f"{self.array.path}: a budget of {format_size(size)} ({size} bytes) is too small for {what} of "
            f"{self.array.row_nbytes} bytes in {self._buffers} buffers; the smallest that works is "
            f"{self.least} bytes ({format_size(self.least)}), or less with a lower prefetch"
        )

    @property
    def path(self) -> str:
        return self.array.path

    @property
    def settings(self) -> dict[str, Any]:
        """What a saved state is compared with."""
        return {"shape": list(self.array.shape), "dtype": str(self.array.dtype), **self._order.settings}

    def check(self) -> None:
        """Raise if the file was replaced or written to."""
        self.array._check_file()

    def _share(self, rows: int) -> int:
        """The most rows that one rank has of ``rows`` of all ranks."""
        return -(-rows // self._world_size)

    def _places(self, number: int) -> tuple[int, int]:
        """Where this rank's rows of a chunk are in the order of all rows."""
        start, stop = number * self.rows, min(self._total, (number + 1) * self.rows)
        count, rank, ranks = stop - start, self._rank, self._world_size
        return start + count * rank // ranks, start + count * (rank + 1) // ranks

    def row_numbers(self, number: int) -> npt.NDArray[Any]:
        """The numbers of the rows of a chunk."""
        return self._order.rows(*self._places(number))

    def submit(self, number: int) -> Pending[Any]:
        """Start to read a chunk. Called by one thread at a time, mostly in order."""
        start, stop = self._places(number)
        out = self._buffer(number, stop - start)
        pending = self._order.submit(start, stop, out)
        if self._with_rows:
            return pending.then(lambda _: (self._order.rows(start, stop), out))
        if pending.done and not pending.beside:
            pending.wait()
            return Pending.of(out)
        return pending.then(lambda _: out)

    def read(self, number: int) -> Any:
        """Read a chunk on its own, by its row numbers, without what the pass has in memory."""
        rows = self.row_numbers(number)
        chunk = self.array.take(rows)
        return (rows, chunk) if self._with_rows else chunk

    def _buffer(self, number: int, rows: int) -> npt.NDArray[Any]:
        shape = (rows, *self.array.shape[1:])
        if not self._reuse:
            return self.buffers.empty(shape, self.array.dtype)
        while len(self._ring) < self._buffers:
            self._ring.append(self.buffers.empty((self._held, *shape[1:]), self.array.dtype))
        return self._ring[number % self._buffers][:rows]

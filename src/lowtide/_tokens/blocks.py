"""Blocks: ``order="blocks"``, for disks on which only long reads are fast."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from lowtide._io.buffers import Buffers
from lowtide._io.extents import Ints
from lowtide._io.pending import Pending
from lowtide._io.remote.diskcache import USES, Use
from lowtide._permutation import BlockShuffled, key_of
from lowtide._tokens.sampling import Epochs, LengthsKind, Shuffle

if TYPE_CHECKING:
    from lowtide._tokens.corpus import Corpus

BLOCK = 2**20  # bytes of one read
BUFFER = 16 * 2**20  # bytes that are shuffled together


class _Loading(NamedTuple):
    """A window of blocks whose reads were submitted."""

    content: tuple[int, int]
    """Epoch, and window of its permutation."""
    buffer: npt.NDArray[Any]
    pendings: list[Pending[Any]]
    starts: Ints
    """Where in the buffer each sample starts, in the order of the window."""


class Blocks(Shuffle):
    """As ``Shuffle``, but blocks of neighbours are permuted, then windows within a buffer of blocks.

    Whole blocks are read into the buffer, and windows are copied from there. For a corpus in a bucket the
    next buffer is read at the same time: its blocks are known.
    """

    name = "blocks"
    reads_ahead = False
    lengths: ClassVar[LengthsKind] = "one"

    def __init__(self, corpus: Corpus, length: int, seed: int) -> None:
        super().__init__(corpus, length, seed)
        count, item = self.epoch_samples, corpus.dtype.itemsize
        block = max(1, min(BLOCK // (length * item), count))
        window = max(1, BUFFER // (block * length * item))
        self._epochs = Epochs(
            count, lambda epoch: BlockShuffled(count, block, window, key_of(seed, 2 * epoch + 1))
        )
        self._windows = self._epochs[0].window_at(count - 1) + 1
        self._overlaps = corpus._segments.overlaps and self._windows > 1
        self._unlock()

    def _unlock(self) -> None:
        self._lock = threading.RLock()  # the prefetch thread and the caller may both use the buffer
        self._inside = False
        self._content = (-1, -1)
        self._last = -1  # the first sample of the last read
        self._next: _Loading | None = None
        self._buffer: npt.NDArray[Any] | None = None  # in use
        self._idle: npt.NDArray[Any] | None = None
        self._view: npt.NDArray[Any] = np.empty((0, 0), self.dtype)
        self._starts: Ints = np.empty(0, np.int64)
        self._pid = os.getpid()

    def submit(self, first: int, out: npt.NDArray[Any]) -> Pending[Any]:
        """Everything is done by ``wait``: most batches come from blocks that are in the buffer."""
        return Pending(self._read, first, out)

    def _read(self, first: int, out: npt.NDArray[Any]) -> None:
        if self._pid != os.getpid():
            self._unlock()  # a thread of the parent may have held the lock, in the middle of loading
        with self._lock:
            if self._inside:  # a signal handler or finalizer interrupted this very thread: not from here
                Blocks(self._corpus, self._length, self._seed).submit(first, out).wait()
                return
            self._inside = True
            try:
                self._take(first, out)
            finally:
                self._inside = False

    def _take(self, first: int, out: npt.NDArray[Any]) -> None:
        row = 0
        while row < len(out):
            epoch, place = divmod(first + row, self.epoch_samples)
            order: BlockShuffled = self._epochs[epoch]
            window = order.window_at(place)
            start, end = order.window_bounds(window)
            count = min(len(out) - row, end - place)
            if self._content != (epoch, window):
                self._load(epoch, window)
            out[row : row + count] = self._view[self._starts[place - start : place - start + count]]
            row += count
        # A caller that reads several batches will need the next window; a single batch may be all.
        if self._overlaps and self._next is None and 0 <= self._last < first:
            self._next = self._start(*self._following(*self._content))
        self._last = first

    def _load(self, epoch: int, window: int) -> None:
        loading, self._next = self._next, None
        self._content = (-1, -1)
        if self._buffer is not None:
            self._view = np.empty((0, 0), self.dtype)
            self._idle, self._buffer = self._buffer, None
        if loading is None or loading.content != (epoch, window):
            loading = self._start(epoch, window)  # another one that was being read is not needed
        else:
            # Into the buffer that was just left, so that requests are always under way.
            self._next = self._start(*self._following(epoch, window))
        for pending in loading.pendings:
            pending.wait()
        self._view = np.lib.stride_tricks.sliding_window_view(loading.buffer, self._length + 1)
        self._buffer, self._starts = loading.buffer, loading.starts
        self._content = loading.content

    def _following(self, epoch: int, window: int) -> tuple[int, int]:
        """Epoch and window of the blocks that come next."""
        return (epoch, window + 1) if window + 1 < self._windows else (epoch + 1, 0)

    def _start(self, epoch: int, window: int) -> _Loading:
        """Submit the reads of each block, with the one token that its last window's target needs."""
        order: BlockShuffled = self._epochs[epoch]
        length, phase = self._length, self.phase(epoch)
        runs = order.window_runs(window)
        size = sum(len(starts) * (run * length + 1) for starts, run in runs)
        buffer = self._spare(size)
        pendings, places, at = [], [], 0
        for starts, run in runs:
            width = run * length + 1
            part = buffer[at : at + len(starts) * width].reshape(len(starts), width)
            positions = (starts * length + phase) % self.tokens
            with self._uses(epoch, window, positions, width):
                pendings.append(self._corpus._segments.submit_windows(positions, part))
            places.append((at + np.arange(len(starts))[:, None] * width + np.arange(run) * length).ravel())
            at += len(starts) * width
        picks = order.window_shuffle(window)(0, sum(map(len, places)))
        return _Loading((epoch, window), buffer, pendings, np.concatenate(places)[picks])

    @contextmanager
    def _uses(self, epoch: int, window: int, positions: Ints, width: int) -> Iterator[None]:
        """Announce when blocks are read again, for a cache that keeps what is used soonest."""
        if not self._overlaps:
            yield
            return
        order: BlockShuffled = self._epochs[epoch + 1]
        samples = (positions - self.phase(epoch + 1)) % self.tokens // self._length
        places = order.places(np.minimum(samples, self.epoch_samples - 1))
        later = [(epoch + 1) * self._windows + order.window_at(place) for place in places.tolist()]
        now, nbytes = epoch * self._windows + window, width * self.dtype.itemsize
        token = USES.set(lambda target: Use(now, later[target // nbytes]))
        try:
            yield
        finally:
            USES.reset(token)

    def _spare(self, size: int) -> npt.NDArray[Any]:
        """Memory for a window: that of the one before if it is as long."""
        idle, self._idle = self._idle, None
        if idle is not None and len(idle) == size:
            return idle
        del idle  # released before there is another
        # Not by malloc: it might keep what was freed, and windows would add up.
        return Buffers(size * self.dtype.itemsize, most=0).empty((size,), self.dtype)

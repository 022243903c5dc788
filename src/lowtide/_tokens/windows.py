"""Windows: samples read from the shards, one by one or from a buffer of whole blocks."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide._io.extents import Ints
from lowtide._io.pending import Pending
from lowtide._permutation import BlockShuffled
from lowtide._tokens.samplers import BlockSampler, Sampler
from lowtide._tokens.shards import Shards

_PLANNED = 4096  # samples whose places are computed at once: a batch at a time would cost more than reading


class Windows:
    """Reads each window from its place."""

    def __init__(self, shards: Shards, sampler: Sampler) -> None:
        self._shards = shards
        self._sampler = sampler
        self._planned: tuple[int, Ints] = (-1, np.empty(0, np.int64))

    def submit(self, first: int, out: npt.NDArray[Any]) -> Pending[Any]:
        """Start to fill each row of ``out`` with one sample, from number ``first`` on."""
        return self._shards.submit_windows(self._starts(first, first + len(out)), out)

    def _starts(self, first: int, last: int) -> Ints:
        page, begin = divmod(first, _PLANNED)
        if begin + last - first > _PLANNED:
            middle = (page + 1) * _PLANNED
            return np.concatenate((self._starts(first, middle), self._starts(middle, last)))
        planned, starts = self._planned
        if planned != page:
            starts = self._sampler.starts(page * _PLANNED, (page + 1) * _PLANNED)
            self._planned = (page, starts)
        return starts[begin : begin + last - first]


class BlockWindows:
    """Reads whole blocks of windows into a buffer, each in one go, and takes windows from there."""

    def __init__(self, shards: Shards, sampler: BlockSampler) -> None:
        self._shards = shards
        self._sampler = sampler
        self._unlock()
        self._held: tuple[int, int] = (-1, -1)
        self._buffer: npt.NDArray[Any] = np.empty(0, shards.dtype)
        self._starts: Ints = np.empty(0, np.int64)
        self._view: npt.NDArray[Any] = np.empty((0, 0), shards.dtype)

    def _unlock(self) -> None:
        self._lock = threading.RLock()  # the prefetch thread and the caller may both want the buffer
        self._inside = False
        self._pid = os.getpid()

    def read(self, first: int, out: npt.NDArray[Any]) -> None:
        """Fill each row of ``out`` with one sample, from number ``first`` on."""
        if self._pid != os.getpid():
            self._unlock()  # a thread of the parent may have held the lock, in the middle of loading
            self._held = (-1, -1)
        with self._lock:
            if self._inside:  # a signal handler or finalizer reads while its own thread does: not from here
                BlockWindows(self._shards, self._sampler).read(first, out)
                return
            self._inside = True
            try:
                self._read(first, out)
            finally:
                self._inside = False

    def _read(self, first: int, out: npt.NDArray[Any]) -> None:
        done = 0
        while done < len(out):
            epoch, place = divmod(first + done, self._sampler.epoch)
            order = self._sampler.order(epoch)
            assert isinstance(order, BlockShuffled)
            window = order.window_at(place)
            begin, end = order.window_bounds(window)
            count = min(len(out) - done, end - place)
            if self._held != (epoch, window):
                self._load(epoch, order, window)
            starts = self._starts[place - begin : place - begin + count]
            out[done : done + count] = self._view[starts]
            done += count

    def submit(self, first: int, out: npt.NDArray[Any]) -> Pending[Any]:
        """All of it is left for later: most batches come from blocks that are here."""
        return Pending(self.read, first, out)

    def _load(self, epoch: int, order: BlockShuffled, window: int) -> None:
        """Each block with the one token that its last window's target needs."""
        length, phase = self._sampler.length, self._sampler.phase(epoch)
        runs = order.window_runs(window)
        size = sum(len(starts) * (run * length + 1) for starts, run in runs)
        if len(self._buffer) != size:
            self._buffer = np.empty(0, self._buffer.dtype)  # free before asking
            self._view = np.empty((0, 0), self._buffer.dtype)
            self._buffer = np.empty(size, self._buffer.dtype)
        self._held = (-1, -1)
        places, at = [], 0
        for starts, run in runs:
            width = run * length + 1
            part = self._buffer[at : at + len(starts) * width].reshape(len(starts), width)
            self._shards.submit_windows((starts * length + phase) % self._sampler.tokens, part).wait()
            places.append((at + np.arange(len(starts))[:, None] * width + np.arange(run) * length).ravel())
            at += len(starts) * width
        self._starts = np.concatenate(places)[order.window_shuffle(window)(0, sum(map(len, places)))]
        self._view = np.lib.stride_tricks.sliding_window_view(self._buffer, length + 1)
        self._held = (epoch, window)

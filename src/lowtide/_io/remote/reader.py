"""The reader ``remote``: range requests, bounded by their bytes, copied into the caller's memory."""

from __future__ import annotations

import os
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lowtide import errors
from lowtide._io.extents import AHEAD, LONGEST, Bytes, Extents
from lowtide._io.identity import Identity
from lowtide._io.pending import Outcome, Pending
from lowtide._io.remote import client, pool, requests
from lowtide._io.remote.address import Options, options_for, parse, remember
from lowtide._io.remote.diskcache import SHORTEST, USES, Use, object_key, open_cache
from lowtide._sizes import format_size

GAP = 2**15
"""Bytes between two extents that are fetched too: it takes less time than another request."""


class Run(NamedTuple):
    """One request, and the extents that it serves."""

    start: int
    stop: int
    extents: Extents
    use: Use = Use()
    """The times of this use and of the next, if known."""

    @property
    def shift(self) -> int | None:
        """From a byte of the object to its place in the buffer; None if it is not copied in one piece."""
        shifts = self.extents.targets - self.extents.offsets
        is_whole = self.extents.nbytes == self.stop - self.start and (shifts == shifts[0]).all()
        return int(shifts[0]) if is_whole else None

    def widened(self, size: int) -> Run:
        """A short run with the bytes around it, in an object of ``size`` bytes."""
        if self.stop - self.start >= SHORTEST:
            return self
        stop = min(size, -(-self.stop // SHORTEST) * SHORTEST)
        return self._replace(start=self.start // SHORTEST * SHORTEST, stop=max(stop, self.stop))

    def copy(self, at: int, data: Any, out: Bytes) -> None:
        """Copy bytes of the object from ``at`` on to where they belong."""
        source = np.frombuffer(data, np.uint8)
        end = at + len(source)
        for offset, target, length in self.extents.rows():
            first, last = max(offset, at), min(offset + length, end)
            if first < last:
                out[target + first - offset : target + last - offset] = source[first - at : last - at]


def runs_of(extents: Extents, gap: int = GAP) -> list[Run]:
    """Extents as requests: sorted, joined over small gaps, and cut if they are long.

    >>> extents = Extents(np.array([100, 0, 2**20]), np.array([0, 10, 20]), np.array([10, 10, 10]))
    >>> [run[:2] for run in runs_of(extents)]
    [(0, 110), (1048576, 1048586)]
    """
    extents = extents.cut()
    if len(extents) > 1 and (np.diff(extents.offsets) < 0).any():
        extents = extents[np.argsort(extents.offsets, kind="stable")]
    starts, ends = extents.offsets, np.maximum.accumulate(extents.offsets + extents.lengths)
    apart = (np.flatnonzero(starts[1:] - ends[:-1] > gap) + 1).tolist()
    runs = []
    for first, last in zip([0, *apart], [*apart, len(starts)], strict=True):
        while first < last:
            # A little more is not worth another request: blocks of tokens are a MiB and one token.
            count = int(np.searchsorted(ends[first:last], starts[first] + LONGEST + gap, side="right"))
            some = extents[first : first + max(1, count)]
            runs.append(Run(int(starts[first]), int((some.offsets + some.lengths).max()), some))
            first += len(some)
    return runs


class RemoteReader:
    """Reads an object by range requests; several are under way at once, within ``in_flight`` bytes.

    If the identity of the object is not known yet, it is taken from the first answer. From then on every
    request asks for this object, so that bytes of another one are never returned.
    """

    name = "remote"
    parallel = False  # one read is many requests already
    overlaps = True
    drops = False  # the page cache contains nothing of it

    def __init__(
        self, path: str, size: int, identity: Identity | None, options: Options | None = None
    ) -> None:
        self.path, self._size = path, size
        options = options or (identity.options if identity else None)
        self.options: Options = options or options_for(parse(path))
        if identity is not None and identity.options is not None:
            remember(parse(path), identity.options)
        self._etag = identity.etag if identity else None
        self._modified_ns = identity.mtime_ns if identity else 0
        self._cache = None if self.options.cache is None else open_cache(*self.options.cache)
        self.how = f"range requests, {format_size(self.options.in_flight)} in flight"
        if self._cache is not None:
            self.how += f", {format_size(self._cache.limit)} of cache in {self._cache.folder}"

    def submit(
        self, extents: Extents, out: Bytes, *, ahead: int = AHEAD, sequential: bool = False
    ) -> Pending[Outcome]:
        if not len(extents):
            return Pending.of(Outcome())
        uses, has_room = None, False
        if self._cache is not None:
            uses, has_room = USES.get(), self._cache.has_room()
        # Short runs are fetched with the bytes around them while the cache has room; no two share a block.
        runs = runs_of(extents, SHORTEST if has_room else GAP)
        if has_room:
            runs = [run.widened(self._size) for run in runs]
        if uses is not None:
            runs = [run._replace(use=uses(int(run.extents.targets[0]))) for run in runs]
        transfer = _Transfer(self, runs, out)
        return Pending(transfer.wait, len(extents))

    def fill(self, extents: Extents, out: Bytes, ahead: int = AHEAD) -> Outcome:
        return self.submit(extents, out).wait()

    def read(self, offset: int, out: npt.NDArray[Any], *, sequential: bool = False) -> None:
        if out.nbytes:
            self.submit(Extents.of_range(offset, out.nbytes), out.reshape(-1).view(np.uint8)).wait()

    def fetch(self, start: int, stop: int, take: requests.Take) -> None:
        """Pass on the bytes of one request, if they are of the object that was opened."""
        meta = client.fetch(self.path, self.options, start, stop, self._etag, self._modified_ns, take)
        self._check(meta)

    def transfer(self, run: Run, out: Bytes, batch: pool.Batch) -> None:
        """Copy the bytes of a run to their places, from the cache as far as it has them."""
        take = partial(_take, batch, run, out)
        cache = self._cache
        if cache is None or self._etag is None:
            self.fetch(run.start, run.stop, take)
            return
        key, shift = object_key(self.path, self._etag), run.shift
        for start, stop in cache.read(key, run.start, run.stop, take, run.use):
            if stop - start < SHORTEST:
                self.fetch(start, stop, take)
                continue
            copies: list[bytes | bytearray] = []
            if shift is None:  # with bytes between the extents, or some more than once
                copies.append(bytearray(stop - start))
                self.fetch(start, stop, partial(_take_and_keep, take, start, copies[0]))
            else:
                self.fetch(start, stop, take)
                # A caller that has given up may use its buffer for something else.
                batch.guarded(partial(_keep, copies, out[start + shift : stop + shift]))
            for data in copies:
                cache.write(key, start, memoryview(data), run.use)

    def _check(self, meta: requests.Meta) -> None:
        if meta.size < self._size:
            raise errors.TruncatedFileError(
                f"{self.path}: was truncated since it was opened ({meta.size} bytes, expected {self._size}); "
                "restore it and open it again"
            )
        requests.check_same(self.path, meta, self._etag, self._modified_ns)
        if self._etag is None and meta.etag is not None:
            self._etag, self._modified_ns = meta.etag, meta.modified_ns

    def check(self) -> None:
        """Do nothing: every answer is compared, and asking would be another request."""

    def close(self) -> None:
        """Nothing is open."""


class _Transfer:
    """The requests of one read. After it is dropped, nothing is written to the buffer."""

    def __init__(self, reader: RemoteReader, runs: list[Run], out: Bytes) -> None:
        self._reader, self._runs, self._out = reader, runs, out
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        tasks = [partial(_transfer, self._reader, run, self._out) for run in self._runs]
        usual = sum(run.stop - run.start for run in self._runs) // len(tasks)
        # As many as the bytes in flight allow, and two more for the remaining bytes.
        threads = min(pool.THREADS, self._reader.options.in_flight // max(1, usual) + 2)
        self._batch = pool.Batch(tasks, threads)

    def wait(self, extents: int) -> Outcome:
        if self._process != os.getpid():
            self._start()  # the threads that run it are in the parent
        self._batch.wait(self._reader.options.deadline, self._reader.path)
        return Outcome(extents, extents)

    def __del__(self) -> None:
        if self._process == os.getpid():  # else a thread of the parent may have held its lock
            self._batch.cancel()


def _take(batch: pool.Batch, run: Run, out: Bytes, at: int, data: Any) -> None:
    batch.guarded(lambda: run.copy(at, data, out))


def _keep(copies: list[bytes | bytearray], data: Bytes) -> None:
    copies.append(data.tobytes())


def _take_and_keep(take: requests.Take, start: int, copy: Any, at: int, data: Any) -> None:
    copy[at - start : at - start + len(data)] = data
    take(at, data)


def _transfer(reader: RemoteReader, run: Run, out: Bytes, batch: pool.Batch) -> None:
    nbytes, budget = run.stop - run.start, pool.BUDGET
    budget.acquire(nbytes, reader.options.in_flight)
    try:
        if not batch.cancelled:
            reader.transfer(run, out, batch)
    finally:
        budget.release(nbytes)
    pool.TRIMMER.count(nbytes)

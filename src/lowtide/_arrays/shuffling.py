"""Rewriting an array in a shuffled order, so that later passes over it can be sequential."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import numpy as np

from lowtide import errors
from lowtide._arrays import targets
from lowtide._arrays.array import Array
from lowtide._arrays.array import open as open_array
from lowtide._arrays.formats import npy
from lowtide._arrays.writer import Writer
from lowtide._io import store
from lowtide._io.atomic import Partial
from lowtide._io.extents import Ints
from lowtide._io.pagecache import evict
from lowtide._io.system import read_at, sync_data, write_at
from lowtide._permutation import Shuffled
from lowtide._sizes import format_size, parse_size, whole
from lowtide.errors import ArgumentError, BudgetError

_INDEX = 64  # bytes beside each row while it is being placed: its place, its number, sorts of both


def shuffle(
    array: Array | str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    seed: int = 0,
    budget: int | str = "256 MiB",
    progress: Callable[[int], None] = lambda nbytes: None,
) -> None:
    """Write the rows of ``array`` to ``path`` in a uniformly shuffled order, in bounded memory.

    The result is NPY when ``path`` ends in ``.npy``, else raw; its rows come in the order of
    ``array.chunks(shuffle=True, seed=seed)``. The first pass reads the array in order and deals its rows out
    to buckets of neighbouring places; the second sorts each bucket, which fits the budget, in place. So the
    disk sees only long reads and writes, and no space beyond the result is needed.

    It is published when complete; a run that dies leaves the old file, and the next one starts from the
    beginning. So ``path`` may even be the array's own file, which is then replaced.

    Parameters
    ----------
    array
        An open array, or a path that ``lowtide.open`` opens without other arguments.
    path
        The file to write. Symbolic links are followed, and an existing file is replaced. An address is
        written from front to back, so that the array is read in the shuffled order.
    seed
        The same seed gives the same order.
    budget
        The memory that it may use, such as ``"1 GiB"``.
    progress
        Called with bytes done, of ``2 * array.nbytes`` in all.

    Examples
    --------
    >>> lowtide.shuffle(a, tmp / "mixed.npy", seed=3)
    >>> sorted(np.load(tmp / "mixed.npy")[:, 0].tolist())
    [0, 3, 6, 9]
    """
    if isinstance(array, (str, os.PathLike)):
        with open_array(array, cache="drop") as opened:
            shuffle(opened, path, seed=seed, budget=budget, progress=progress)
        return
    if not isinstance(array, Array):
        raise ArgumentError(
            f"shuffle takes an array of lowtide.open or a path, got {type(array).__name__}; save it to a file"
        )
    if not array.shape:
        raise ArgumentError(f"{array.path}: an array with no dimensions has no rows to shuffle")
    key = whole("seed", seed)
    if store.is_address(path):
        _upload(array, str(path), key, budget, progress)
        return
    target, is_npy = targets.resolve(path)
    header = npy.make_header(array.dtype, array.shape) if is_npy else b""
    targets.recover(target)
    with errors.write_errors(target), Partial(target) as partial:
        job = _Shuffle(array, partial.fd, len(header), key, parse_size(budget), progress)
        write_at(partial.fd, memoryview(header), 0)
        if job.width and len(array):
            os.ftruncate(partial.fd, len(header) + array.nbytes)
            job.deal()
            job.sort()


def _upload(array: Array, path: str, seed: int, budget: int | str, progress: Callable[[int], None]) -> None:
    """To an object, which is written from front to back: rows are read in the shuffled order."""
    from lowtide._arrays.uploaded import Uploaded

    where, is_npy = targets.resolve(path)
    target = Uploaded(where, is_npy, array.dtype, array.shape[1:], rows=len(array))
    with Writer(target, "same_kind") as out:
        for chunk in array.chunks(shuffle=True, seed=seed, budget=budget):
            out.append(chunk)
            progress(2 * chunk.nbytes)


class _Shuffle:
    def __init__(
        self, array: Array, fd: int, start: int, seed: int, budget: int, progress: Callable[[int], None]
    ) -> None:
        self.width = array.row_nbytes
        self._array = array
        self._fd = fd
        self._start = start
        self._progress = progress
        self._order = Shuffled(len(array), seed)
        self._budget = budget
        # The second pass holds a bucket twice, as read and in order.
        self._bucket = budget * 3 // 4 // (2 * self.width + _INDEX)
        if self._bucket < 1:
            least = -(-(2 * self.width + _INDEX) * 4 // 3)
            raise BudgetError(
                f"{array.path}: a budget of {format_size(budget)} is too small to shuffle rows of "
                f"{self.width} bytes; the smallest that works is {least} bytes ({format_size(least)})"
            )

    def deal(self) -> None:
        """First pass: each row to the bucket of its place, in the order in which the rows come."""
        filled = np.zeros(-(-len(self._array) // self._bucket), np.int64)
        row = 0
        # The reader's ring holds three chunks; a fourth is the sorted copy.
        at_once = max(1, self._budget * 3 // 4 // (4 * self.width + _INDEX))
        for chunk in self._array.chunks(min(at_once, len(self._array)), prefetch=1):
            places = self._order.places(np.arange(row, row + len(chunk), dtype=np.int64))
            buckets = places // self._bucket
            order = np.argsort(buckets, kind="stable")
            numbers, firsts = np.unique(buckets[order], return_index=True)
            dealt = chunk[order].reshape(-1).view(np.uint8).data
            ends = [*firsts[1:].tolist(), len(chunk)]
            for bucket, first, end in zip(numbers.tolist(), firsts.tolist(), ends, strict=True):
                at = bucket * self._bucket + int(filled[bucket])
                write_at(self._fd, dealt[first * self.width : end * self.width], self._place(at))
                filled[bucket] += end - first
            self._settle()
            row += len(chunk)
            self._progress(chunk.nbytes)

    def sort(self) -> None:
        """Second pass: each bucket into its final order."""
        for first in range(0, len(self._array), self._bucket):
            last = min(len(self._array), first + self._bucket)
            dealt = np.empty((last - first, self.width), np.uint8)
            self._read(self._place(first), dealt.reshape(-1).data)
            # The rows lie in the order in which they were read: sorted by their old number.
            rows: Ints = self._order(first, last)
            ordered = np.empty_like(dealt)
            ordered[np.argsort(rows)] = dealt
            write_at(self._fd, ordered.reshape(-1).data, self._place(first))
            self._settle()
            self._progress(ordered.nbytes)

    def _place(self, row: int) -> int:
        return self._start + row * self.width

    def _read(self, offset: int, into: memoryview) -> None:
        while len(into):
            got = read_at(self._fd, into, offset)
            if not got:
                raise OSError(errno.EIO, "another program truncated the file while it was being written")
            into, offset = into[got:], offset + got

    def _settle(self) -> None:
        """Flush to disk and drop from the page cache, so that neither dirty nor clean pages pile up."""
        sync_data(self._fd)
        evict(self._fd)

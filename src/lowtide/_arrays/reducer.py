"""A reducer goes through an array once: pieces by several threads, results in the order of the rows."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from lowtide._arrays.rows import Rows
from lowtide._io.threads import in_threads, workers_for
from lowtide.errors import ArgumentError

if TYPE_CHECKING:
    from lowtide._arrays.array import Array

Axis = int | tuple[int, ...] | None
Progress = Callable[[int], object] | bool | None
Numbers = npt.NDArray[Any]
T = TypeVar("T")
_BUDGET = 16 * 2**20  # of a pass that reads ahead
_CHUNK = 2**21  # bytes that a thread reads at once
_PIECE = 2**19  # elements that are converted at once; threads that call NumPy more often wait for each other


class Reducer:
    """One pass: the axes that are reduced, the shape of the result, and the pieces."""

    def __init__(
        self, array: Rows, name: str, axis: Axis, out: None, keepdims: bool, progress: Progress
    ) -> None:
        array._check_open()
        self.array = cast("Array", array)
        self._name = name
        self._keepdims = keepdims
        self._progress = progress
        if out is not None:
            raise ArgumentError(f"{array.path}: {name} has no out=; assign what it returns")
        if progress not in (None, True, False) and not callable(progress):
            raise ArgumentError(
                f"{array.path}: progress must be True or a function that takes a number of bytes, "
                f"got {progress!r}"
            )
        if array.dtype.names or array.dtype.kind not in "biufc" + ("mM" if name in ("min", "max") else ""):
            fields = "; select a field first, as in array['x']" if array.dtype.names else ""
            raise ArgumentError(f"{array.path}: {name} of {array.dtype} is not defined{fields}")
        axes = range(array.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        wrong = [one for one in axes if not -array.ndim <= one < array.ndim]
        self.axes = tuple(sorted({one % array.ndim for one in axes})) if not wrong and array.ndim else ()
        if wrong or 0 not in self.axes:
            raise ArgumentError(
                f"{array.path}: axis must be None, 0 or a tuple with 0 among them, got {axis!r}; reduce "
                f"along other axes chunk by chunk, as in [chunk.{name}(axis=1) for chunk in array.chunks()]"
            )
        self.shape = tuple(n for i, n in enumerate(array.shape) if i not in self.axes)
        self.count = math.prod(array.shape[i] for i in self.axes)
        """Elements per element of the result."""

    def run(self, reduce: Callable[[Numbers], T], fold: Callable[[T], object]) -> None:
        """Call ``reduce`` with each piece, in several threads, and ``fold`` with the results, in order."""
        array = self.array
        if not array.size:
            return
        turn, numbers, results = threading.Lock(), count(), dict[int, list[T]]()
        folded, failed = 0, False

        def work() -> None:
            nonlocal folded, failed
            chunks = chunks_of_a_thread()
            try:
                while not failed:
                    with turn:
                        chunk, number = next(chunks, None), next(numbers)
                    if chunk is None:
                        return
                    result = [reduce(piece) for piece in self._pieces(chunk)]
                    with turn:
                        results[number] = result
                        while folded in results:
                            for some in results.pop(folded):
                                fold(some)
                            folded += 1
                        report(chunk.nbytes)
            except BaseException:
                failed = True  # an interrupt reaches one thread: the others must end too
                raise

        with (
            _reporting(self._progress, self._name, array.nbytes) as report,
            self._chunks() as chunks_of_a_thread,
        ):
            in_threads([work] * workers_for(-(-array.nbytes // _CHUNK), array.nbytes))

    @contextmanager
    def _chunks(self) -> Iterator[Callable[[], Iterator[Numbers]]]:
        """Chunks in order; each thread takes the next one when it is its turn.

        A thread reads for itself while others compute, and computes with what its own core has in its cache.
        Where only one thread may read, chunks are read ahead instead.
        """
        array = self.array
        if not array._parallel:
            with array.chunks(budget=max(_BUDGET, 8 * array.row_nbytes)) as ahead:
                yield lambda: ahead
            return
        rows = max(1, _CHUNK // array.row_nbytes)
        starts = iter(range(0, len(array), rows))

        def own() -> Iterator[Numbers]:
            memory = array._memory(rows)
            for start in starts:
                stop = min(len(array), start + rows)
                array._read_rows(start, stop, memory[: stop - start])
                yield memory[: stop - start]

        array._check_file()
        yield own
        array._check_file()  # what was read may be newer than the last check

    def _pieces(self, chunk: Numbers) -> Iterator[Numbers]:
        step = max(1, _PIECE // max(1, self.array.size // len(self.array)))
        return (chunk[first : first + step] for first in range(0, len(chunk), step))

    def result(self, value: Numbers, kind: np.dtype[Any]) -> Any:
        if self._keepdims:
            shape = [1 if i in self.axes else n for i, n in enumerate(self.array.shape)]
            value = np.asarray(value).reshape(shape)
        return np.asarray(value).astype(kind.newbyteorder("="))[()]


@contextmanager
def _reporting(progress: Progress, name: str, total: int) -> Iterator[Callable[[int], object]]:
    if progress is not True:
        yield progress if callable(progress) else lambda nbytes: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(True), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=total)
        yield lambda nbytes: bar.advance(task, nbytes)

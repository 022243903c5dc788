"""Reductions: sums, means, deviations, extremes and histograms in one pass with bounded memory.

An array is reduced piece by piece, by several threads, and what the pieces give is combined in the order of
the rows: results do not depend on the number of threads. Sums are in float64 (integers exactly); variances
of pieces are combined by the formula of Chan, Golub and LeVeque (1979), which does not subtract large numbers
of each other.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from lowtide._arrays import histograms
from lowtide._arrays.rows import Rows
from lowtide._io.threads import in_threads, workers_for
from lowtide._sizes import whole
from lowtide.errors import ArgumentError

if TYPE_CHECKING:
    from lowtide._arrays.array import Array

Axis = int | tuple[int, ...] | None
Progress = Callable[[int], object] | bool | None
Numbers = npt.NDArray[Any]
T = TypeVar("T")
_BUDGET = 16 * 2**20  # of a pass
_LONG_ROW = 512  # elements of a row that NumPy adds to another one at full speed
_PIECE = 2**18  # elements that are converted at once: in float64 they stay in the processor's cache


class Reductions(Rows):
    """The methods of an ``Array`` that go through it once and return a few numbers."""

    def sum(
        self, axis: Axis = None, dtype: npt.DTypeLike | None = None, out: None = None, *,
        keepdims: bool = False, progress: Progress = None,
    ) -> Any:  # fmt: skip
        """The sum over all elements or over rows, in one pass; see :meth:`mean` for the parameters.

        Parameters
        ----------
        axis, dtype, out, keepdims, progress
            As in :meth:`mean`. Integers are added exactly, modulo 2**64 as NumPy does.

        Examples
        --------
        >>> a.sum(), a.sum(axis=0)
        (np.int64(66), array([18, 22, 26]))
        """
        job = _Job(self, "sum", axis, out, keepdims, progress)
        kind = np.zeros(1, self.dtype).sum().dtype if dtype is None else np.dtype(dtype)
        return job.result(_total(job, _wide(kind)), kind)

    def mean(
        self, axis: Axis = None, dtype: npt.DTypeLike | None = None, out: None = None, *,
        keepdims: bool = False, progress: Progress = None,
    ) -> Any:  # fmt: skip
        """The mean over all elements or over rows, in one pass with bounded memory, as ``np.mean(a)``.

        Parameters
        ----------
        axis
            None for all elements, 0 for the rows, or a tuple of axes with 0 among them, such as ``(0, 1, 2)``
            for the channels of images.
        dtype
            The dtype of the result, by default NumPy's. It is computed in float64 in any case.
        out
            Must be None; it is there because NumPy passes it.
        keepdims
            Keep the axes that are reduced, with length 1.
        progress
            True shows a bar on standard error. A function is called with the number of bytes of each chunk,
            of ``a.nbytes`` in all, as ``tqdm(total=a.nbytes).update`` expects them.

        Examples
        --------
        >>> a.mean(), a.mean(axis=0)
        (np.float64(5.5), array([4.5, 5.5, 6.5]))
        """
        job = _Job(self, "mean", axis, out, keepdims, progress)
        kind = _mean_dtype(self.dtype, dtype)
        with np.errstate(divide="ignore", invalid="ignore"):
            return job.result(_total(job, _wide(kind)) / job.count, kind)

    def var(
        self, axis: Axis = None, dtype: npt.DTypeLike | None = None, out: None = None, ddof: float = 0, *,
        keepdims: bool = False, progress: Progress = None,
    ) -> Any:  # fmt: skip
        """The variance over all elements or over rows, in one pass; see :meth:`mean` for the parameters.

        Parameters
        ----------
        axis, dtype, out, keepdims, progress
            As in :meth:`mean`.
        ddof
            What is subtracted from the count of elements in the divisor.

        Examples
        --------
        >>> a.var(axis=0)
        array([11.25, 11.25, 11.25])
        """
        job = _Job(self, "var", axis, out, keepdims, progress)
        with np.errstate(divide="ignore", invalid="ignore"):
            variance = _squares(job) / np.float64(max(0.0, job.count - ddof))
        return job.result(variance, _real(_mean_dtype(self.dtype, dtype)))

    def std(
        self, axis: Axis = None, dtype: npt.DTypeLike | None = None, out: None = None, ddof: float = 0, *,
        keepdims: bool = False, progress: Progress = None,
    ) -> Any:  # fmt: skip
        """The standard deviation over all elements or over rows, in one pass.

        Parameters
        ----------
        axis, dtype, out, ddof, keepdims, progress
            As in :meth:`var`.

        Examples
        --------
        >>> a.std(axis=0).round(3)
        array([3.354, 3.354, 3.354])
        """
        variance = self.var(axis, np.complex128 if self.dtype.kind == "c" else np.float64, out, ddof,
                            keepdims=keepdims, progress=progress)  # fmt: skip
        kind = _real(_mean_dtype(self.dtype, dtype))
        return np.asarray(np.sqrt(variance)).astype(kind)[()]

    def min(
        self, axis: Axis = None, out: None = None, *, keepdims: bool = False, progress: Progress = None
    ) -> Any:
        """The smallest element, or that of each column, in one pass; NaN if there is one, as in NumPy.

        Parameters
        ----------
        axis, out, keepdims, progress
            As in :meth:`mean`.

        Examples
        --------
        >>> a.min(), a.min(axis=0)
        (np.int64(0), array([0, 1, 2]))
        """
        return _extreme(self, np.minimum, axis, out, keepdims, progress)

    def max(
        self, axis: Axis = None, out: None = None, *, keepdims: bool = False, progress: Progress = None
    ) -> Any:
        """The largest element, or that of each column, in one pass; NaN if there is one, as in NumPy.

        Parameters
        ----------
        axis, out, keepdims, progress
            As in :meth:`mean`.

        Examples
        --------
        >>> a.max(), a.max(axis=0)
        (np.int64(11), array([ 9, 10, 11]))
        """
        return _extreme(self, np.maximum, axis, out, keepdims, progress)

    def histogram(
        self,
        bins: int | npt.ArrayLike = 10,
        range: tuple[float, float] | None = None,
        *,
        progress: Progress = None,
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
        """Counts and edges of bins over all elements, as ``np.histogram`` gives them.

        Parameters
        ----------
        bins
            Their number, or their edges.
        range
            Smallest and largest value. Without it the array is gone through twice.
        progress
            As in :meth:`mean`.

        Examples
        --------
        >>> a.histogram(bins=3, range=(0, 12))[0]
        array([4, 4, 4])
        """
        job = _Job(self, "histogram", None, None, False, progress)
        if np.ndim(cast("Any", bins)) == 0:
            whole("bins", bins, least=1)
            if range is None and self.size:
                range = _limits(self)
        edges = np.histogram_bin_edges(np.zeros(0, self.dtype), bins, range)
        return histograms.counts(job, bins, range, edges), edges


class _Job:
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
        """Elements that become one."""

    def chunks(self) -> Iterator[Numbers]:
        array = self.array
        if not array.size:
            return
        with (
            _reporting(self._progress, self._name, array.nbytes) as report,
            array.chunks(budget=max(_BUDGET, 8 * array.row_nbytes)) as chunks,
        ):
            for chunk in chunks:
                yield chunk
                report(chunk.nbytes)

    def pieces(self, chunk: Numbers) -> list[Numbers]:
        step = max(1, _PIECE // max(1, self.array.size // len(self.array)))
        return [chunk[first : first + step] for first in range(0, len(chunk), step)]

    def reduced(self, reduce: Callable[[Numbers], T]) -> Iterator[T]:
        """What a function makes of each piece, in the order of the rows."""
        for chunk in self.chunks():
            yield from self.reduced_chunk(chunk, reduce)

    def reduced_chunk(self, chunk: Numbers, reduce: Callable[[Numbers], T]) -> list[T]:
        """The same for one chunk. Each thread takes the next piece: NumPy's loops run side by side."""
        pieces = self.pieces(chunk)
        remaining, results = deque(enumerate(pieces)), dict[int, T]()

        def work() -> None:
            # Not a share each: what reads ahead needs a core now and then, and one share would be late.
            with suppress(IndexError):
                while True:
                    number, piece = remaining.popleft()
                    results[number] = reduce(piece)

        in_threads([work] * workers_for(len(pieces), chunk.nbytes))
        return [results[number] for number in range(len(pieces))]

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


def _total(job: _Job, wide: np.dtype[Any]) -> Numbers:
    total = np.zeros(job.shape, wide)
    for some in job.reduced(lambda piece: _sum(piece.astype(wide, copy=False), job.axes)):
        total += some
    return total


def _sum(values: Numbers, axes: tuple[int, ...]) -> Numbers:
    """``values.sum(axis=axes)``. Of short rows several are taken as one: NumPy adds long rows faster."""
    width = values[:1].size
    together = 1 << (_LONG_ROW // max(1, width)).bit_length() >> 1
    if (
        axes != (0,)
        or values.ndim < 2
        or together < 2
        or len(values) % together
        or not values.flags.c_contiguous
    ):
        return np.asarray(values.sum(axis=axes))
    sums: Numbers = values.reshape(-1, together * width).sum(axis=0)
    return np.asarray(sums.reshape(together, *values.shape[1:]).sum(axis=0))


def _squares(job: _Job) -> Numbers:
    """The sum of the squared deviations from the mean.

    Pieces are shifted by the mean of what came before. Its distance from their own mean is then part of the
    variance, so that what is lost by subtracting it is lost beside a number as large.
    """
    wide = _wide(job.array.dtype if job.array.dtype.kind in "fc" else np.dtype(np.float64))
    width = max(1, math.prod(job.shape))

    def reduce(piece: Numbers, shift: Numbers) -> tuple[int, Numbers, Numbers]:
        with np.errstate(invalid="ignore", over="ignore"):  # of infinities
            shifted = piece.astype(wide)
            shifted -= shift
            total = _sum(shifted, job.axes)
            shifted *= shifted.conj() if wide.kind == "c" else shifted
            return piece.size // width, total, _sum(shifted.real, job.axes)

    mean, squares, count = np.zeros(job.shape, wide), np.zeros(job.shape, _real(wide)), 0
    for chunk in job.chunks():
        if not count:
            first = job.pieces(chunk)[0]
            mean = first.astype(wide).sum(axis=job.axes) / (first.size // width)
        pivot = np.where(np.isfinite(mean), mean, 0)
        shift = np.expand_dims(pivot, job.axes)
        with np.errstate(invalid="ignore", over="ignore"):
            for n, total, local in job.reduced_chunk(chunk, partial(reduce, shift=shift)):
                step = total / n + pivot - mean
                squares += local - (total * total.conj()).real / n
                squares += (step * step.conj()).real * (count / (count + n) * n)
                mean = mean + step * (n / (count + n))
                count += n
    return np.maximum(squares, 0) if count else np.full(job.shape, np.nan)


def _extreme(
    array: Reductions, ufunc: np.ufunc, axis: Axis, out: None, keepdims: bool, progress: Progress
) -> Any:
    job = _Job(array, ufunc.__name__[:3], axis, out, keepdims, progress)
    result = None
    for some in job.reduced(lambda piece: ufunc.reduce(piece, axis=job.axes)):
        result = some if result is None else ufunc(result, some)
    if result is None:
        if not job.count:
            raise ArgumentError(f"{array.path}: an array without elements has no minimum and no maximum")
        result = np.zeros(job.shape, array.dtype)
    return job.result(result, array.dtype)


def _limits(array: Reductions) -> tuple[Any, Any]:
    """The smallest and the largest element, in one pass."""
    job = _Job(array, "histogram", None, None, False, None)
    least, most = zip(*job.reduced(lambda piece: (piece.min(), piece.max())), strict=True)
    return np.min(least), np.max(most)


def _wide(kind: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which numbers of a dtype are added."""
    return np.promote_types(kind, np.float64) if kind.kind in "fc" else kind


def _mean_dtype(kind: np.dtype[Any], dtype: npt.DTypeLike | None) -> np.dtype[Any]:
    if dtype is not None:
        return np.dtype(dtype)
    return kind.newbyteorder("=") if kind.kind in "fc" else np.dtype(np.float64)


def _real(kind: np.dtype[Any]) -> np.dtype[Any]:
    return np.zeros(0, kind).real.dtype

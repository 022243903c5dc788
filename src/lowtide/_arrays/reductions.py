"""Reductions: sums, means, deviations, extremes and histograms in one pass with bounded memory.

An array is reduced piece by piece, by several threads, and the results of the pieces are combined in the
order of the rows: results do not depend on the number of threads. Sums are in float64 (integers exactly);
variances of pieces are combined by the formula of Chan, Golub and LeVeque (1979), which does not subtract
large numbers from each other.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from lowtide._arrays import histograms
from lowtide._arrays.reducer import Axis, Numbers, Progress, Reducer
from lowtide._arrays.rows import Rows
from lowtide._sizes import whole
from lowtide.errors import ArgumentError

_LONG_ROW = 512  # elements of a row that NumPy adds to another one at full speed


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
        job = Reducer(self, "sum", axis, out, keepdims, progress)
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
        job = Reducer(self, "mean", axis, out, keepdims, progress)
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
        job = Reducer(self, "var", axis, out, keepdims, progress)
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
            Smallest and largest value. Without it there is another pass to find them.
        progress
            As in :meth:`mean`.

        Examples
        --------
        >>> a.histogram(bins=3, range=(0, 12))[0]
        array([4, 4, 4])
        """
        job = Reducer(self, "histogram", None, None, False, progress)
        if np.ndim(cast("Any", bins)) == 0:
            whole("bins", bins, least=1)
            if range is None and self.size:
                range = _limits(self)
        edges = np.histogram_bin_edges(np.zeros(0, self.dtype), bins, range)
        return histograms.counts(job, bins, range, edges), edges


def _total(job: Reducer, wide: np.dtype[Any]) -> Numbers:
    total = np.zeros(job.shape, wide)
    job.run(lambda piece: _sum(piece.astype(wide, copy=False), job.axes), partial(np.add, total, out=total))
    return total


def _together(values: Numbers, axes: tuple[int, ...]) -> int:
    """How many rows to add as one: NumPy adds long rows faster."""
    width = values[:1].size
    together = 1 << (_LONG_ROW // max(1, width)).bit_length() >> 1
    fits = axes == (0,) and values.ndim > 1 and not len(values) % max(1, together)
    return together if fits and together > 1 and values.flags.c_contiguous else 1


def _sum(values: Numbers, axes: tuple[int, ...]) -> Numbers:
    """``values.sum(axis=axes)``."""
    together = _together(values, axes)
    if together == 1:
        return np.asarray(values.sum(axis=axes))
    sums: Numbers = values.reshape(len(values) // together, -1).sum(axis=0)
    return np.asarray(sums.reshape(together, *values.shape[1:]).sum(axis=0))


def _subtract(values: Numbers, shift: Numbers, axes: tuple[int, ...]) -> None:
    """Subtract ``shift`` along ``axes``, in place."""
    together = _together(values, axes)
    if together == 1:
        values -= np.expand_dims(shift, axes)
    else:
        rows = values.reshape(len(values) // together, -1)  # a view
        rows -= np.tile(shift.reshape(-1), together)


def _squares(job: Reducer) -> Numbers:
    """The sum of the squared deviations from the mean.

    Pieces are shifted by their first row. Its distance from their mean is part of the variance, so that the
    rounding error of the shift is small beside the result; for equal rows the result is exactly 0.
    """
    wide = _wide(job.array.dtype if job.array.dtype.kind in "fc" else np.dtype(np.float64))
    width = max(1, math.prod(job.shape))
    first = tuple(0 if axis in job.axes else slice(None) for axis in range(job.array.ndim))
    mean: Numbers = np.zeros(job.shape, wide)
    squares: Numbers = np.zeros(job.shape, _real(wide))
    rows = 0

    def reduce(piece: Numbers) -> tuple[int, Numbers, Numbers]:
        with np.errstate(invalid="ignore", over="ignore"):  # of infinities
            values, n = piece.astype(wide), piece.size // width
            shift = np.where(np.isfinite(values[first]), values[first], 0)
            _subtract(values, shift, job.axes)
            total = _sum(values, job.axes)
            values *= values.conj() if wide.kind == "c" else values
            return n, shift + total / n, _sum(values.real, job.axes) - (total * total.conj()).real / n

    def fold(some: tuple[int, Numbers, Numbers]) -> None:
        nonlocal mean, squares, rows
        n, local_mean, local_squares = some
        with np.errstate(invalid="ignore", over="ignore"):
            step = local_mean - mean
            squares = squares + local_squares + (step * step.conj()).real * (rows / (rows + n) * n)
            mean = mean + step * (n / (rows + n))
        rows += n

    job.run(reduce, fold)
    return np.maximum(squares, 0) if rows else np.full(job.shape, np.nan)


def _extreme(
    array: Reductions, ufunc: np.ufunc, axis: Axis, out: None, keepdims: bool, progress: Progress
) -> Any:
    job = Reducer(array, ufunc.__name__[:3], axis, out, keepdims, progress)
    result: Any = None

    def fold(some: Numbers) -> None:
        nonlocal result
        result = some if result is None else ufunc(result, some)

    job.run(lambda piece: ufunc.reduce(piece, axis=job.axes), fold)
    if result is None:
        if not job.count:
            raise ArgumentError(f"{array.path}: an array without elements has no minimum and no maximum")
        result = np.zeros(job.shape, array.dtype)
    return job.result(result, array.dtype)


def _limits(array: Reductions) -> tuple[Any, Any]:
    """The smallest and the largest element, in one pass."""
    job = Reducer(array, "histogram", None, None, False, None)
    limits: list[Any] = []

    def fold(some: tuple[Any, Any]) -> None:
        least, most = zip(*limits[:1], some, strict=True)
        limits[:] = [(np.min(least), np.max(most))]

    job.run(lambda piece: (piece.min(), piece.max()), fold)
    return cast("tuple[Any, Any]", limits[0])


def _wide(kind: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which numbers of a dtype are added."""
    return np.promote_types(kind, np.float64) if kind.kind in "fc" else kind


def _mean_dtype(kind: np.dtype[Any], dtype: npt.DTypeLike | None) -> np.dtype[Any]:
    if dtype is not None:
        return np.dtype(dtype)
    return kind.newbyteorder("=") if kind.kind in "fc" else np.dtype(np.float64)


def _real(kind: np.dtype[Any]) -> np.dtype[Any]:
    return np.zeros(0, kind).real.dtype

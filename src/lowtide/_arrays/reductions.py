"""Reductions: sums, means, deviations, extremes and histograms in one pass with bounded memory.

Sums are in float64 (integers exactly), pairwise within a chunk; means and variances of chunks are combined by
the formula of Chan, Golub and LeVeque (1979), which does not subtract large numbers of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from lowtide._arrays.rows import Rows
from lowtide._sizes import whole
from lowtide.errors import ArgumentError

if TYPE_CHECKING:
    from lowtide._arrays.array import Array

Axis = int | tuple[int, ...] | None
Progress = Callable[[int], None]
_BUDGET = 16 * 2**20  # of a pass
_PIECE = 2**18  # elements that are converted at once


class Reductions(Rows):
    """The methods of an ``Array`` that go through it once and return a few numbers."""

    def sum(
        self, axis: Axis = None, dtype: npt.DTypeLike | None = None, out: None = None, *,
        keepdims: bool = False, progress: Progress | None = None,
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
        total = np.zeros(job.shape, _wide(kind))
        for chunk in job.chunks(kind):
            total += chunk.sum(axis=job.axes)
        return job.result(total, kind)

    def mean(
        self, axis: Axis = None, dtype: npt.DTypeLike | None = None, out: None = None, *,
        keepdims: bool = False, progress: Progress | None = None,
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
            Called with the number of bytes of each chunk, of ``a.nbytes`` in all.

        Examples
        --------
        >>> a.mean(), a.mean(axis=0)
        (np.float64(5.5), array([4.5, 5.5, 6.5]))
        """
        job = _Job(self, "mean", axis, out, keepdims, progress)
        return job.result(_moments(job, squares=False)[0], _mean_dtype(self.dtype, dtype))

    def var(
        self, axis: Axis = None, dtype: npt.DTypeLike | None = None, out: None = None, ddof: float = 0, *,
        keepdims: bool = False, progress: Progress | None = None,
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
        _, squares, count = _moments(job, squares=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            variance = squares / np.float64(max(0.0, count - ddof))
        return job.result(variance, _real(_mean_dtype(self.dtype, dtype)))

    def std(
        self, axis: Axis = None, dtype: npt.DTypeLike | None = None, out: None = None, ddof: float = 0, *,
        keepdims: bool = False, progress: Progress | None = None,
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
        self, axis: Axis = None, out: None = None, *, keepdims: bool = False, progress: Progress | None = None
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
        self, axis: Axis = None, out: None = None, *, keepdims: bool = False, progress: Progress | None = None
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
        progress: Progress | None = None,
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
                range = (self.min(), self.max())
        edges = np.histogram_bin_edges(np.zeros(0, self.dtype), bins, range)
        counts = np.zeros(len(edges) - 1, np.int64)
        for chunk in job.chunks(None):
            counts += np.histogram(chunk, bins, range)[0]
        return counts, edges


class _Job:
    """One pass: the axes that are reduced, the shape of the result, and the chunks."""

    def __init__(
        self, array: Rows, name: str, axis: Axis, out: None, keepdims: bool, progress: Progress | None
    ) -> None:
        array._check_open()
        self.array = cast("Array", array)
        self._name = name
        self._keepdims = keepdims
        self._progress = progress
        if out is not None:
            raise ArgumentError(f"{array.path}: {name} has no out=; assign what it returns")
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

    def chunks(self, kind: np.dtype[Any] | None) -> Iterator[npt.NDArray[Any]]:
        """The array, chunk by chunk, in the dtype in which numbers of ``kind`` are added."""
        array = self.array
        budget = max(_BUDGET, 8 * array.row_nbytes)
        if not array.size:
            return
        with array.chunks(budget=budget) as chunks:
            step = max(1, _PIECE // max(1, array.size // len(array)))
            for chunk in chunks:
                for first in range(0, len(chunk), step):  # a piece in float64 stays in the processor's cache
                    piece = chunk[first : first + step]
                    yield piece if kind is None else piece.astype(_wide(kind), copy=False)
                if self._progress is not None:
                    self._progress(chunk.nbytes)

    def result(self, value: npt.NDArray[Any], kind: np.dtype[Any]) -> Any:
        if self._keepdims:
            shape = [1 if i in self.axes else n for i, n in enumerate(self.array.shape)]
            value = np.asarray(value).reshape(shape)
        return np.asarray(value).astype(kind.newbyteorder("="))[()]


def _moments(job: _Job, squares: bool) -> tuple[npt.NDArray[Any], npt.NDArray[Any], int]:
    """Mean, sum of squared deviations from it, and count."""
    kind = np.dtype(np.complex128 if job.array.dtype.kind == "c" else np.float64)
    mean, deviations, count = np.zeros(job.shape, kind), np.zeros(job.shape, np.float64), 0
    for chunk in job.chunks(kind):
        n = chunk.size // max(1, mean.size)
        if not n:
            continue
        local = chunk.mean(axis=job.axes, keepdims=True)
        if squares:
            apart = chunk - local
            apart *= apart.conj() if kind.kind == "c" else apart
            deviations += apart.real.sum(axis=job.axes)
        step = local.reshape(mean.shape) - mean
        count += n
        if squares:
            deviations += (step * step.conj()).real * ((count - n) / count * n)
        mean = mean + step * (n / count)
    if not count:
        return np.full(job.shape, np.nan), np.full(job.shape, np.nan), 0
    return mean, deviations, count


def _extreme(
    array: Reductions, ufunc: np.ufunc, axis: Axis, out: None, keepdims: bool, progress: Progress | None
) -> Any:
    job = _Job(array, ufunc.__name__[:3], axis, out, keepdims, progress)
    result = None
    for chunk in job.chunks(None):
        local = ufunc.reduce(chunk, axis=job.axes)
        result = local if result is None else ufunc(result, local)
    if result is None:
        if 0 in (array.shape[i] for i in job.axes):
            raise ValueError(f"{array.path}: an array without elements has no minimum and no maximum")
        result = np.zeros(job.shape, array.dtype)
    return job.result(result, array.dtype)


def _wide(kind: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which numbers of a dtype are added."""
    return {"f": np.dtype(np.float64), "c": np.dtype(np.complex128)}.get(kind.kind, kind)


def _mean_dtype(kind: np.dtype[Any], dtype: npt.DTypeLike | None) -> np.dtype[Any]:
    if dtype is not None:
        return np.dtype(dtype)
    return kind.newbyteorder("=") if kind.kind in "fc" else np.dtype(np.float64)


def _real(kind: np.dtype[Any]) -> np.dtype[Any]:
    return np.zeros(0, kind).real.dtype

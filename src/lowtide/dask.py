"""Dask: arrays on disk as Dask arrays, whose tasks carry a path and never the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lowtide._arrays.array import Array
from lowtide._sizes import parse_size
from lowtide.errors import ArgumentError, MissingExtraError

if TYPE_CHECKING:
    from dask.array import Array as DaskArray

__all__ = ["to_dask"]


def to_dask(array: Array, chunks: Any = "auto") -> DaskArray:
    """A Dask array over ``array``: each block is read when its task runs, by the process that runs it.

    A task carries the path and a few integers, so the workers must see the file under the same path; the
    scheduler need not. The name follows from the path, the size, the time of the last change and the layout:
    the same file gives the same keys in any process.

    Parameters
    ----------
    array
        An array of :func:`lowtide.open`. It may be closed afterwards.
    chunks
        As for ``dask.array.from_array``. ``"auto"`` (Dask's own ``array.chunk-size``) and sizes such as
        ``"64 MiB"`` make blocks that are contiguous in the file: whole rows, as many as fit.

    Examples
    --------
    >>> lazy = lowtide.to_dask(a, chunks=(2, 3))
    >>> lazy.chunks
    ((2, 2), (3,))
    >>> lazy.sum(axis=0).compute(scheduler="synchronous")
    array([18, 22, 26])
    """
    try:
        import dask.array
        from dask.base import tokenize
    except ImportError as error:
        raise MissingExtraError(
            f"lowtide.to_dask needs Dask's arrays, which cannot be imported ({error}): "
            "pip install 'lowtide[dask]'"
        ) from error
    if not isinstance(array, Array):
        raise ArgumentError(
            f"to_dask takes an array of lowtide.open, got {type(array).__name__}; "
            "use dask.array.from_array for arrays in memory"
        )
    if isinstance(chunks, str):
        chunks = _pieces(array, dask.config.get("array.chunk-size") if chunks == "auto" else chunks)
    source = _Unopened(array)
    blocks = dask.array.core.normalize_chunks(chunks, array.shape, dtype=array.dtype)
    result: DaskArray = dask.array.from_array(
        source,
        chunks=blocks,
        name=f"lowtide-{tokenize(source, blocks)}",
        meta=np.empty((0,) * array.ndim, array.dtype),
        inline_array=True,  # else it is a separate task, and its few hundred bytes go from worker to worker
    )
    return result


class _Unopened:
    """The pickle of an array, opened for each read.

    Unpickling an array opens it, and Dask's scheduler unpickles every graph: it would need the file. Opening
    takes some 50 µs, for a block of megabytes.
    """

    def __init__(self, array: Array) -> None:
        self._recipe = _Recipe.of(array)
        self._recipe.open().close()  # as every task will: a file that is gone or changed raises here
        self.shape = array.shape
        self.dtype = array.dtype
        self.ndim = array.ndim

    def __getitem__(self, index: Any) -> Any:
        with self._recipe.open() as array:
            return array[index]

    def __dask_tokenize__(self) -> Any:
        return self._recipe.token()


class _Recipe(NamedTuple):
    """How to open an array: the call in its pickle, with the source of a view as a recipe too."""

    restore: Callable[..., Array]
    arguments: tuple[Any, ...]

    @classmethod
    def of(cls, array: Array) -> _Recipe:
        restore, arguments = array.__reduce__()
        return cls(restore, tuple(cls.of(each) if isinstance(each, Array) else each for each in arguments))

    def open(self) -> Array:
        arguments = (each.open() if isinstance(each, _Recipe) else each for each in self.arguments)
        return self.restore(*arguments)

    def token(self) -> tuple[Any, ...]:
        arguments = (each.token() if isinstance(each, _Recipe) else each for each in self.arguments)
        return (self.restore.__qualname__, *arguments)


def _pieces(array: Array, size: int | str) -> tuple[int, ...]:
    """The largest blocks of at most ``size`` that are contiguous in the file, about equally large."""
    fits = parse_size(size) // max(1, array.itemsize)
    blocks = [1] * array.ndim
    # From the axis that varies fastest on disk to the slowest: whole axes while they fit, then a part of one.
    for axis in range(array.ndim) if array._in_columns else reversed(range(array.ndim)):
        length = max(1, array.shape[axis])
        parts = -(-length // max(1, fits))
        blocks[axis] = -(-length // parts)
        fits //= length
    return tuple(blocks)

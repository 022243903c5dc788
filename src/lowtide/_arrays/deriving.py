"""Views of an array: some of its rows, columns or fields, or another dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt

from lowtide._arrays.conversions import Astype, Columns, Conversion, Fields, is_names
from lowtide._arrays.rows import Rows
from lowtide._arrays.selections import Selection, Stride, selected
from lowtide._ranks import Rank
from lowtide.errors import ArgumentError, IndexingError

if TYPE_CHECKING:
    from lowtide._arrays.array import Array
    from lowtide._arrays.chunks import Chunks
    from lowtide._arrays.orders import OrderName, RowOrder, Shuffle

V = TypeVar("V", bound="Rowwise[Any]")


class Rowwise(Generic[V]):
    """What arrays and zips have in common: views of some of their rows, of type ``V``, and passes."""

    @property
    def path(self) -> str:
        """The file, or the first of them."""
        raise NotImplementedError

    def _row_count(self) -> int:
        """The number of rows; an error if there can be no views of them."""
        raise NotImplementedError

    def _rows_view(self, selection: Selection) -> V:
        raise NotImplementedError

    def _pass(self, kind: type[RowOrder], key: int, rows: int | None, **options: Any) -> Any:
        """How a pass reads its chunks: a ``Plan``, or what has the methods of one."""
        raise NotImplementedError

    def chunks(
        self,
        rows: int | None = None,
        *,
        budget: int | str | None = None,
        order: OrderName | None = None,
        shuffle: Shuffle | None = None,
        seed: int = 0,
        epoch: int = 0,
        drop_last: bool = False,
        prefetch: int = 1,
        reuse: bool = False,
        with_rows: bool = False,
        rank: Rank = None,
        world_size: int | None = None,
    ) -> Chunks:
        """Go through all rows once, ``rows`` at a time, with flat memory; see :class:`lowtide.Chunks`.

        The order depends on the number of rows, ``order``, ``seed`` and ``epoch`` alone. Two arrays of the
        same length, such as features and labels, therefore stay together; :func:`lowtide.zip` reads them as
        one, in chunks that are tuples or dicts.

        Parameters
        ----------
        rows
            Rows per chunk. The last chunk may have fewer.
        budget
            Memory for everything in flight: the chunk in your hands, ``prefetch`` chunks read ahead and the
            hints to the kernel, of all arrays of a zip together. By default ``"64 MiB"``, and more only if
            ``rows`` alone take more. With both, ``rows`` must fit. A shuffled pass uses the rest to read the
            rows of many chunks together, where it finds that this is faster: more memory, more speed. An
            array that fits is read once.
        order
            ``"sequential"``, by default: row after row. ``"shuffle"``: an order that looks uniformly random
            and is never stored. ``"blocks"``: blocks of 256 neighbouring rows are permuted, then the rows
            within windows of 16 blocks. That is less random, but reads are longer, which suits slow disks.
        shuffle
            A shorthand for ``order``: ``True`` is ``"shuffle"``, ``False`` is ``"sequential"``, and
            ``"blocks"`` is itself. Pass one of the two.
        seed
            An integer of any size. The same seed gives the same order, also in the next epoch.
        epoch
            An integer >= 0. Pass the number of the epoch for a new order in each of them.
        drop_last
            Leave out a last chunk that has fewer rows.
        prefetch
            Chunks that a thread reads ahead; 0 is without a thread.
        reuse
            Give one of a ring of buffers, which the next step of the loop overwrites, instead of a new array:
            faster, but copy what you keep. One thread only: another one that asks gets a ``BusyError``.
        with_rows
            Give pairs ``(rows, chunk)``, where ``rows`` are the row numbers of the chunk, as int64.
        rank
            Which of ``world_size`` processes this is, from 0. Each reads its part of every chunk. ``"auto"``
            takes both from ``torch.distributed`` or, under ``torchrun``, from the environment.
        world_size
            Processes that share the pass. ``rows`` are then those of all of them together, so that the order
            and the state do not depend on their number: a run may stop on two and resume on three.

        Examples
        --------
        >>> for chunk in a.chunks(3): print(chunk.sum())
        36
        30
        >>> for rows, chunk in a.chunks(2, shuffle=True, seed=1, epoch=3, with_rows=True):
        ...     print(rows, bool((chunk == a[rows]).all()))
        [3 1] True
        [2 0] True
        """
        from lowtide._arrays.chunks import Chunks

        return Chunks(
            self,
            rows,
            budget=budget,
            order=order,
            shuffle=shuffle,
            seed=seed,
            epoch=epoch,
            drop_last=drop_last,
            prefetch=prefetch,
            reuse=reuse,
            with_rows=with_rows,
            rank=rank,
            world_size=world_size,
        )

    def rows(self, start: int | None = None, stop: int | None = None, step: int | None = None) -> V:
        """A view of some rows, as a slice selects them; it needs no memory, and nothing is read.

        ``array[start:stop]`` reads the same rows.

        Parameters
        ----------
        start
            The first row; the first of all by default. Negative ones count from the end.
        stop
            The row before which the view ends; the end of the array by default.
        step
            Every ``step``-th row, backwards if it is negative; 1 by default.

        Examples
        --------
        >>> tail = a.rows(1)
        >>> tail.shape, tail.rows(step=-1)[0]
        ((3, 3), array([ 9, 10, 11]))
        """
        return self._rows_view(Stride.of(slice(start, stop, step), self._row_count()))

    def select(self, rows: npt.ArrayLike | slice | range) -> V:
        """A view of the rows in a list or a mask; nothing is read.

        A list is kept in memory, at 1 to 8 bytes per row that it selects; a mask at one bit per row of the
        array; a slice or a ``range`` needs none. Pickles of the view carry them.

        Parameters
        ----------
        rows : array_like of int or bool, slice or range
            Row numbers in any order, which may repeat and may be negative; or one bool per row.

        Examples
        --------
        >>> a.select([2, 0, 2])[:, 0]
        array([6, 0, 6])
        >>> a.select(a[:, 0] > 3).shape
        (2, 3)
        """
        return self._rows_view(selected(rows, self._row_count(), self.path))

    def split(
        self,
        *fractions: float,
        seed: int = 0,
        shuffle: bool = True,
        stratify: Any = None,
    ) -> tuple[V, ...]:
        """Views of disjoint parts that together hold every row once, such as training and validation rows.

        ``a.split(0.9)`` has two parts, ``a.split(0.8, 0.1)`` three. Which part a row belongs to depends on
        the number of rows, the fractions and the seed: arrays of as many rows, such as features and labels,
        are split alike. It is computed, with no index in memory: each 256 neighbouring rows are divided in
        these proportions, at random, and a pass over a part reads the file nearly in order.

        Parameters
        ----------
        *fractions : float
            The share of each part, above 0 and below 1. If they add up to less than 1, the rest is a part.
        seed
            The same seed gives the same parts.
        shuffle
            False: parts are consecutive rows.
        stratify
            Labels, one per row: an array of lowtide or NumPy. Every class is divided in these proportions, to
            within one row. The labels are read once; masks of one bit per row and part are kept.

        Examples
        --------
        >>> train, validation = a.split(0.75, seed=1)
        >>> len(train), len(validation), sorted(train[:, 0].tolist() + validation[:, 0].tolist())
        (3, 1, [0, 3, 6, 9])
        """
        from lowtide._arrays.splits import split

        return split(self, fractions, seed, shuffle, stratify)

    def folds(self, folds: int, seed: int = 0, *, stratify: Any = None) -> Sequence[tuple[V, V]]:
        """Parts for cross-validation: ``a.folds(5)[i]`` is the pair of views ``(train, validation)``.

        Every row is in the validation part of exactly one fold. As with :meth:`split`, nothing is stored, and
        arrays of as many rows are divided alike.

        Parameters
        ----------
        folds
            Their number, an integer >= 2.
        seed
            The same seed gives the same folds.
        stratify
            Labels, one per row, as in :meth:`split`.

        Examples
        --------
        >>> [(len(train), len(validation)) for train, validation in a.folds(3)]
        [(2, 2), (3, 1), (3, 1)]
        """
        from lowtide._arrays.splits import Folds

        return Folds(self, folds, seed, stratify)


class Deriving(Rows, Rowwise["Array"]):
    """The methods of an ``Array`` that return views of it."""

    @property
    def columns(self) -> ColumnIndexer:
        """Views of parts of each row: ``a.columns[2]``, ``a.columns[:10]``, ``images.columns[::2, ::2, 0]``.

        The index is that of one row. Only the columns are read where the rest would be most of the row.

        >>> a.columns[[2, 0]].shape, a.columns[1][:]
        ((4, 2), array([ 1,  4,  7, 10]))
        """
        return ColumnIndexer(self)

    def astype(self, dtype: npt.DTypeLike) -> Array:
        """A view in another dtype; rows are converted when they are read, as ``ndarray.astype`` does.

        Parameters
        ----------
        dtype
            The dtype of the view.

        Examples
        --------
        >>> a.astype("float32")[1]
        array([3., 4., 5.], dtype=float32)
        """
        return self._converted(Astype(dtype))

    def windows(self, length: int, stride: int = 1) -> Array:
        """A view of ``length`` consecutive rows from every ``stride``-th row on: windows over a time series.

        Its rows are windows, of shape ``(length, *row_shape)``; a last one that would be short is left out.
        They are read from the file as they are, and ``chunks(shuffle=True)`` gives each exactly once.

        Parameters
        ----------
        length
            Rows per window.
        stride
            Rows from the start of a window to that of the next.

        Examples
        --------
        >>> a.windows(2).shape, a.windows(2)[1].tolist()
        ((3, 2, 3), [[3, 4, 5], [6, 7, 8]])
        """
        from lowtide._arrays.windows import WindowView

        self._row_count()
        return WindowView(cast("Array", self), length, stride)

    def _row_count(self) -> int:
        self._check_open()
        if not self.shape:
            raise ArgumentError(f"{self.path}: an array with no dimensions has no rows to select")
        return len(self)

    def _rows_view(self, selection: Selection) -> Array:
        from lowtide._arrays.views import RowView

        self._row_count()
        return RowView.of(cast("Array", self), selection)

    def _fields(self, names: str | list[str]) -> Array:
        return self._converted(Fields(names))

    def _converted(self, conversion: Conversion) -> Array:
        from lowtide._arrays.views import ConvertedView

        self._row_count()
        try:
            return ConvertedView.of(cast("Array", self), conversion)
        except (ArgumentError, IndexingError) as error:
            raise type(error)(f"{self.path}: {error}") from None


class ColumnIndexer:
    """``array.columns``: indexing it gives a view of a part of each row."""

    def __init__(self, array: Deriving) -> None:
        self._array = array

    def __getitem__(self, index: Any) -> Array:
        if is_names(index):
            return self._array._fields(index)
        if isinstance(index, np.ndarray):
            index = index.copy()  # a view must not change with it
        return self._array._converted(Columns(index))

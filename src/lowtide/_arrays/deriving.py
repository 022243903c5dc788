"""What an array offers as other arrays: some of its rows, columns, fields, another dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from lowtide._arrays.conversions import Astype, Columns, Conversion, Fields, is_names
from lowtide._arrays.rows import Rows
from lowtide._arrays.selections import Selection, Stride, selected
from lowtide.errors import ArgumentError, IndexingError

if TYPE_CHECKING:
    from lowtide._arrays.array import Array
    from lowtide._arrays.splits import Folds


class Deriving(Rows):
    """The methods of an ``Array`` that return views of it."""

    def rows(self, start: int | None = None, stop: int | None = None, step: int | None = None) -> Array:
        """A view of some rows, as a slice selects them; it needs no memory, and nothing is read.

        ``array[start:stop]`` reads the same rows.

        Parameters
        ----------
        start
            The first row; the first of all by default. Negative ones count from the end.
        stop
            The row before which it ends; the end of the array by default.
        step
            Every ``step``-th row, backwards if it is negative; 1 by default.

        Examples
        --------
        >>> tail = a.rows(1)
        >>> tail.shape, tail.rows(step=-1)[0]
        ((3, 3), array([ 9, 10, 11]))
        """
        return self._rows_view(Stride.of(slice(start, stop, step), self._row_count()))

    def select(self, rows: npt.ArrayLike | slice | range) -> Array:
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

    def split(
        self,
        *fractions: float,
        seed: int = 0,
        shuffle: bool = True,
        stratify: Any = None,
    ) -> tuple[Array, ...]:
        """Views of disjoint parts that together hold every row once, such as training and validation rows.

        ``a.split(0.9)`` has two parts, ``a.split(0.8, 0.1)`` three. Which part a row belongs to depends on
        the number of rows, the fractions and the seed: arrays of as many rows, such as features and labels,
        are split alike. It is computed, with no index in memory: each 256 neighbouring rows are divided in
        these proportions, at random, and a pass over a part reads the file nearly in order.

        Parameters
        ----------
        *fractions : float
            The share of each part, above 0 and below 1. What is missing to 1 is one more part.
        seed
            The same seed gives the same parts.
        shuffle
            False: parts are consecutive rows.
        stratify
            Labels, one per row: an array of lowtide or NumPy. Every class is divided in these proportions, to
            within a row. The labels are read once; masks of one bit per row and part are kept.

        Examples
        --------
        >>> train, validation = a.split(0.75, seed=1)
        >>> len(train), len(validation), sorted(train[:, 0].tolist() + validation[:, 0].tolist())
        (3, 1, [0, 3, 6, 9])
        """
        from lowtide._arrays.splits import split

        return split(cast("Array", self), fractions, seed, shuffle, stratify)

    def folds(self, folds: int, seed: int = 0, *, stratify: Any = None) -> Folds:
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

        return Folds(cast("Array", self), folds, seed, stratify)

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

    def _rows_view(self, *selections: Selection) -> Array:
        from lowtide._arrays.views import RowView

        self._row_count()
        view = cast("Array", self)
        for selection in selections:
            view = RowView.of(view, selection)
        return view

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

"""Array: a lazy, NumPy-like view of what lies on disk."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from lowtide._arrays import formats
from lowtide._arrays.formats.layout import Layout
from lowtide._arrays.indexing import Selection, run_of
from lowtide._arrays.operators import ArrayOperators
from lowtide._closing import Closing
from lowtide._io.extents import LONGEST
from lowtide._io.reader import Cache, ReaderName
from lowtide._sizes import format_size
from lowtide.errors import ArgumentError, BudgetError, ClosedError, IndexingError

if TYPE_CHECKING:
    from lowtide._arrays.chunks import Chunks
    from lowtide._arrays.orders import OrderName, Shuffle

IMPLICIT_LOAD_LIMIT = 256 * 2**20
"""``np.asarray(array)`` and friends load at most this many bytes: more must be asked for as ``array[:]``."""

_ROWS_AT_ONCE = 2**15  # rows whose places are computed at once, so that lists of places stay small
_ITERATE_AT_ONCE = 2**20  # bytes read at once by a loop over single rows


def open(
    path: str | os.PathLike[str],
    dtype: npt.DTypeLike | None = None,
    shape: int | tuple[int, ...] | None = None,
    offset: int | None = None,
    *,
    mode: Literal["r"] = "r",
    order: Literal["C", "F"] = "C",
    name: str | None = None,
    reader: ReaderName = "auto",
    cache: Cache = "keep",
) -> Array:
    """Open an array on disk; nothing but its header is read.

    ``.npy``, members of ``.npz`` that are stored (``np.savez``), ``.safetensors`` and contiguous HDF5
    datasets are recognised by their content. With ``dtype`` the file is raw, in ``np.memmap``'s words.

    Parameters
    ----------
    path
        The file.
    dtype
        What the elements of a raw file are. A file that has a header needs ``offset`` too: its header is not
        data.
    shape
        The shape of a raw file, of which one length may be ``-1``; by default one axis to the file's end.
    offset
        Byte at which the data of a raw file starts. An explicit ``0`` reads all bytes of a file, even of one
        that starts like an NPY, NPZ, safetensors or HDF5 file.
    mode
        ``"r"``, for those who come from ``np.memmap``: arrays are read here, and written by
        :func:`lowtide.create`.
    order
        ``"F"`` for a raw file whose first axis varies fastest.
    name
        The member of an NPZ, safetensors or HDF5 file; may be left out when there is only one.
    reader
        ``"pread"`` (the default where the system has it), ``"remap"``, ``"advise"`` or ``"memmap"``.
    cache
        ``"drop"`` leaves nothing of the file behind in the page cache.

    Examples
    --------
    >>> import numpy as np, lowtide
    >>> np.save(tmp / "squares.npy", np.arange(12).reshape(4, 3) ** 2)
    >>> a = lowtide.open(tmp / "squares.npy")
    >>> a.shape, a[-1], a[[2, 0], 1]
    ((4, 3), array([ 81, 100, 121]), array([49,  1]))
    >>> lowtide.open(tmp / "squares.npy", dtype="int64", offset=128, shape=(-1, 2)).shape
    (6, 2)
    >>> lowtide.open(tmp / "squares.npy", dtype="int64")
    Traceback (most recent call last):
    lowtide.errors.ArgumentError: ...: is an NPY file ...; leave dtype out, or pass offset= too: ...
    """
    if mode not in ("r", "readonly"):
        raise ArgumentError(
            f"mode must be 'r', got {mode!r}: lowtide.open reads; write with lowtide.create, which adds rows "
            "to a file with append=True"
        )
    layout = formats.inspect(path, dtype, shape, offset, order=order, name=name)
    return Array(layout, reader=reader, cache=cache)


class Array(ArrayOperators, Closing):
    """An array that stays on disk: indexing reads what it selects into a new ndarray.

    It holds a path and a few integers, so it pickles to a few hundred bytes, may be used after fork and
    spawn, and thousands may be open at once. It shows the file as it was when opened: a file that was
    truncated, replaced or written to since raises an exception. What cannot be noticed is a write in place
    that puts the old modification time back.

    Iterating gives row after row, like an ndarray, read ahead in chunks; use :meth:`chunks` for speed.

    Operators, NumPy's functions and ``torch.tensor`` load the array if it has at most 256 MiB, and raise
    ``BudgetError`` otherwise. It is read-only: neither its elements nor its attributes can be assigned.
    """

    # What it is

    @property
    def reader(self) -> str:
        """The reader in use, and what the platform gave it."""
        return f"{self._reader.name} ({self._reader.how})"

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        order = ", order='F'" if self._layout.fortran else ""
        return (
            f"<lowtide.Array {self.path!r}, shape={self.shape}, dtype={str(self.dtype)!r}{order}, "
            f"reader={self.reader}{state}>"
        )

    # Reading

    def __getitem__(self, index: Any) -> Any:
        self._check_open()
        run = run_of(index, self._shape, self._strides, self._in_columns)
        if run is not None and 0 < run[1] <= LONGEST:
            start, nbytes, shape = run
            buffer = np.empty(nbytes, np.uint8)
            self._reader.read(self._layout.offset + start, buffer)
            selected: npt.NDArray[Any] = np.ndarray(shape, self._dtype, buffer)
            return selected if shape else selected[()]
        try:
            selection = Selection.of(index, self.shape, self._strides, self.itemsize)
        except IndexingError as error:
            raise IndexingError(f"{self.path}: {error}") from None
        selected = selection.read(self._reader, self._layout.offset, self.dtype)
        return selected[()] if selection.is_scalar else selected

    def __getitems__(self, rows: Sequence[int]) -> list[Any]:
        """Several rows in one read: PyTorch's ``DataLoader`` asks for its batches by this."""
        return list(self.take(rows))

    def take(
        self, rows: npt.ArrayLike, axis: int | None = 0, out: npt.NDArray[Any] | None = None
    ) -> npt.NDArray[Any]:
        """Return rows by number, as ``np.take`` does.

        Parameters
        ----------
        rows : array_like of int
            Row numbers in any order; they may repeat, and negative ones count from the end.
        axis : int
            Must be 0, which is not NumPy's default.
        out : ndarray, optional
            Where the rows are written.

        Examples
        --------
        >>> a.take([3, 0, -1])
        array([[ 9, 10, 11],
               [ 0,  1,  2],
               [ 9, 10, 11]])
        """
        self._check_open()
        if axis not in ((0, -1, None) if self.ndim == 1 else (0, -self.ndim)):
            raise ArgumentError(
                f"{self.path}: axis of take must be 0, got {axis!r}; read along other axes as in "
                f"array[:, [2, 1]], and from the flattened array as in array[:].take(indices)"
            )
        indices = np.asarray(rows)
        if indices.dtype.kind not in "iu":
            if indices.size:
                raise IndexingError(f"{self.path}: rows must be integers, got {indices.dtype}")
            indices = indices.astype(np.int64)
        count = len(self)
        if indices.size and not -count <= int(indices.min()) <= int(indices.max()) < count:
            wrong = int(indices.max()) if int(indices.max()) >= count else int(indices.min())
            raise IndexingError(f"{self.path}: index {wrong} is out of bounds for axis 0 with size {count}")
        indices = indices.astype(np.int64)
        if indices.size and indices.min() < 0:
            indices = np.where(indices < 0, indices + count, indices)
        shape = (*indices.shape, *self.shape[1:])
        if out is None:
            out = np.empty(shape, self.dtype)
        elif (
            out.shape != shape
            or out.dtype != self.dtype
            or not (out.flags.c_contiguous and out.flags.writeable)
        ):
            raise ArgumentError(
                f"{self.path}: out must be a writable C-contiguous array of shape {shape} and dtype "
                f"{self.dtype}, got shape {out.shape}, dtype {out.dtype}, writable: {out.flags.writeable}, "
                f"C-contiguous: {out.flags.c_contiguous}"
            )
        flat, into = indices.reshape(-1), out.reshape(indices.size, *self.shape[1:])
        for first in range(0, len(flat), _ROWS_AT_ONCE):
            some = slice(first, first + _ROWS_AT_ONCE)
            self._read_runs(flat[some], 1, into[some])
        return out

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
    ) -> Chunks:
        """Go through all rows once, ``rows`` at a time, with flat memory; see :class:`lowtide.Chunks`.

        The order depends on the number of rows, ``order``, ``seed`` and ``epoch`` alone. Two arrays of the
        same length, such as features and labels, are therefore paired by ``zip`` if both get these arguments
        and the same ``rows``. Do not pair by ``budget``: chunks then have different lengths.

        Parameters
        ----------
        rows
            Rows per chunk. The last chunk may have fewer.
        budget
            Memory for everything in flight: the chunk in your hands, ``prefetch`` chunks read ahead and the
            hints to the kernel. ``"64 MiB"`` if ``rows`` is not given. With both, ``rows`` must fit. A
            shuffled pass uses the rest to read the rows of many chunks together: more memory, more speed.
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

        self._check_open()
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
        )

    def __iter__(self) -> Iterator[Any]:
        if not self.shape:
            raise TypeError("iteration over an array with no dimensions")
        chunks = self.chunks(max(1, _ITERATE_AT_ONCE // max(1, self.row_nbytes)))
        return (chunk[i].copy() for chunk in chunks for i in range(len(chunk)))

    def __contains__(self, value: object) -> bool:
        if np.ndim(value) >= self.ndim:  # type: ignore[arg-type]
            return value in np.asarray(self)
        return any(value in chunk for chunk in self.chunks())

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError(f"{self.path}: lies on disk, so it cannot become an ndarray without a copy")
        if self.nbytes > IMPLICIT_LOAD_LIMIT:
            raise BudgetError(
                f"{self.path}: refusing to load {format_size(self.nbytes)} implicitly (limit "
                f"{format_size(IMPLICIT_LOAD_LIMIT)}); go through it with array.chunks(), or load it on "
                f"purpose as array[:] (for PyTorch torch.from_numpy(array[:]))"
            )
        loaded: npt.NDArray[Any] = self[...]
        return loaded if dtype is None else loaded.astype(dtype, copy=False)

    # Its life

    def __reduce__(self) -> tuple[Any, ...]:
        if self.closed:
            raise ClosedError(f"{self.path}: a closed array cannot be pickled; pickle it before closing")
        layout = tuple(getattr(self._layout, field.name) for field in fields(self._layout))
        return _restore, (layout, *self._settings)


def _restore(layout: tuple[Any, ...], reader: ReaderName, cache: Cache) -> Array:
    return Array(Layout(*layout), reader=reader, cache=cache)

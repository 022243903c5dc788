"""Array: a lazy, NumPy-like view of data on disk."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import numpy as np
import numpy.typing as npt

from lowtide._arrays import formats
from lowtide._arrays.casting import Casting
from lowtide._arrays.deriving import Deriving
from lowtide._arrays.indexing import wrap_array
from lowtide._arrays.operators import ArrayOperators
from lowtide._arrays.reductions import Reductions
from lowtide._closing import Closing
from lowtide._io import store
from lowtide._io.reader import Cache, Reader, ReaderName
from lowtide._sizes import format_size
from lowtide.errors import ArgumentError, BudgetError, IndexingError, UnsupportedError

if TYPE_CHECKING:
    from lowtide._arrays.chunks import Plan
    from lowtide._arrays.formats.layout import Layout
    from lowtide._arrays.orders import RowOrder
    from lowtide._arrays.writable import WritableArray

IMPLICIT_LOAD_LIMIT = 256 * 2**20
"""``np.asarray(array)`` and the like load at most this many bytes; ``array[:]`` loads any number."""

_ROWS_AT_ONCE = 2**15  # rows whose places are computed at once, so that lists of places stay small
_ITERATE_AT_ONCE = 2**20  # bytes read at once by a loop over single rows


@overload
def open(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    dtype: npt.DTypeLike | None = None,
    shape: int | tuple[int, ...] | None = None,
    offset: int | None = None,
    *,
    mode: Literal["r"] = "r",
    order: Literal["C", "F"] = "C",
    name: str | None = None,
    reader: ReaderName = "auto",
    cache: Cache | int | str = "keep",
    casting: Casting = "same_kind",
    cache_dir: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Array: ...


@overload
def open(
    path: str | os.PathLike[str],
    dtype: npt.DTypeLike | None = None,
    shape: int | tuple[int, ...] | None = None,
    offset: int | None = None,
    *,
    mode: Literal["r+"],
    order: Literal["C", "F"] = "C",
    name: str | None = None,
    reader: ReaderName = "auto",
    cache: Cache | int | str = "keep",
    casting: Casting = "same_kind",
    cache_dir: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> WritableArray: ...


def open(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    dtype: npt.DTypeLike | None = None,
    shape: int | tuple[int, ...] | None = None,
    offset: int | None = None,
    *,
    mode: Literal["r", "r+"] = "r",
    order: Literal["C", "F"] = "C",
    name: str | None = None,
    reader: ReaderName = "auto",
    cache: Cache | int | str = "keep",
    casting: Casting = "same_kind",
    cache_dir: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Array:
    """Open an array on disk, reading only its header.

    ``.npy``, members of ``.npz`` that are stored (``np.savez``), ``.safetensors`` and contiguous HDF5
    datasets are recognised by their content. With ``dtype`` the file is read as raw, as by ``np.memmap``.

    Parameters
    ----------
    path
        The file, or an address such as ``"s3://bucket/x.npy"`` (``gs://``, ``az://``, ``https://``), which is
        read in place by range requests. A list of files, a pattern such as ``"part-*.npy"`` (sorted by name)
        or a folder of ``.npy`` files is one array: their rows one after another. All headers are read and
        must agree on the dtype and on the shape of a row; files are opened when their rows are read.
    dtype
        The dtype of a raw file. For a file that has a header pass ``offset`` too, since its header is not
        data.
    shape
        The shape of a raw file; one length may be ``-1``. By default one axis to the end of the file.
    offset
        Byte at which the data of a raw file starts. An explicit ``0`` reads all bytes of a file, even if it
        starts like an NPY, NPZ, safetensors or HDF5 file.
    mode
        ``"r"``, or ``"r+"`` to assign elements in place, as in ``array[rows] = values``; see
        :class:`lowtide.WritableArray`. New files are written by :func:`lowtide.create`.
    order
        ``"F"`` for a raw file whose first axis varies fastest.
    name
        The member of an NPZ, safetensors or HDF5 file; may be left out when there is only one.
    reader
        ``"pread"`` (the default where the system has it), ``"remap"``, ``"advise"`` or ``"memmap"``.
    cache
        ``"drop"`` leaves nothing of the file behind in the page cache. With ``cache_dir``: how many bytes of
        the local disk to use, such as ``"20 GiB"``.
    casting
        With ``mode="r+"``: what to do with values of another dtype, as in :func:`lowtide.create`.
    cache_dir
        For addresses: a folder that caches long ranges, up to the bytes of ``cache`` and shared by all
        processes that use it. Without it nothing is written to disk.
    storage_options
        For addresses: credentials, endpoint and region by obstore's names, if the environment has none;
        ``timeout`` (``"30s"`` per request), ``retry_timeout`` (``"120s"``), ``in_flight`` (``"16 MiB"``).

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
    if mode not in ("r", "readonly", "r+", "readwrite"):
        raise ArgumentError(
            f"mode must be 'r' or 'r+', got {mode!r}; write new files with lowtide.create, which adds rows "
            "to a file with append=True"
        )
    from lowtide._arrays import files
    from lowtide._arrays.stored import StoredArray  # which is an Array

    is_read = mode in ("r", "readonly")
    if not is_read and store.is_address(path):
        raise UnsupportedError(
            f"{path}: an object cannot be changed in place, got mode={mode!r}; copy it with lowtide.copy, or "
            "write a new one with lowtide.create"
        )
    raw: dict[str, Any] = {"dtype": dtype, "shape": shape, "offset": offset, "order": order, "name": name}
    with store.using(path, storage_options, cache_dir, cache):
        policy: Any = "keep" if cache_dir is not None else cache
        if (paths := files.paths_of(path)) is not None:
            if not is_read:
                raise ArgumentError(
                    f"many files can only be read as one array, got mode={mode!r}; open them one by one"
                )
            is_list = isinstance(path, list | tuple)
            title = "".join(paths[:1]) if is_list else store.absolute(os.fspath(cast("str", path)))
            return files.concatenated(paths, title, reader, policy, raw)
        layout = formats.inspect(cast("str", path), **raw)
        if is_read:
            return StoredArray(layout, reader=reader, cache=policy)
    from lowtide._arrays.writable import open_in_place

    return open_in_place(layout, reader, policy, casting)


class Array(Deriving, Reductions, ArrayOperators, Closing):
    """An array that stays on disk: indexing reads what it selects into a new ndarray.

    It holds a path and a few integers, so it pickles to a few hundred bytes, may be used after fork and
    spawn, and thousands may be open at once. It shows the file as it was when opened: a file that was
    truncated, replaced or written to since raises an exception. A write in place that restores the old
    modification time is not noticed.

    Iterating gives row after row, like an ndarray, read ahead in chunks; use :meth:`chunks` for speed.

    Operators, NumPy's functions and ``torch.tensor`` load the array if it has at most 256 MiB, and raise
    ``BudgetError`` otherwise. It is read-only: neither its elements nor its attributes can be assigned.
    """

    _layout: Layout  # of an array in one file
    _reader: Reader

    @property
    def reader(self) -> str:
        """The reader in use, and what the platform gave it."""
        raise NotImplementedError

    def __reduce__(self) -> tuple[Any, ...]:
        raise NotImplementedError

    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError

    def __getitems__(self, rows: Sequence[int]) -> list[Any]:
        """Several rows in one read: PyTorch's ``DataLoader`` calls this for its batches."""
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
        if indices.size and indices.dtype.kind not in "iu":
            raise IndexingError(f"{self.path}: rows must be integers, got {indices.dtype}")
        try:
            indices = wrap_array(indices, 0, len(self))
        except IndexingError as error:
            raise IndexingError(f"{self.path}: {error}") from None
        shape = (*indices.shape, *self.shape[1:])
        if out is None:
            out = np.empty(shape, self.dtype)
        elif (out.shape, out.dtype) != (shape, self.dtype) or not (
            out.flags.c_contiguous and out.flags.writeable
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

    def _pass(self, kind: type[RowOrder], key: int, rows: int | None, **options: Any) -> Plan:
        from lowtide._arrays.chunks import Plan

        self._check_open()
        return Plan(self, kind, key, rows, **options)

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
                f"{format_size(IMPLICIT_LOAD_LIMIT)}); go through it with array.chunks(), reduce it with "
                f"array.mean(), std, min, max, sum or histogram, or load it on purpose as array[:] (for "
                f"PyTorch torch.from_numpy(array[:]))"
            )
        loaded: npt.NDArray[Any] = self[...]
        return loaded if dtype is None else loaded.astype(dtype, copy=False)

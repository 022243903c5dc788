"""Writing arrays row by row, in bounded memory, so that readers see all of it or nothing."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn, overload

import numpy as np
import numpy.typing as npt

from lowtide import errors
from lowtide._arrays import casting as _casting
from lowtide._arrays import targets, unpublished
from lowtide._arrays.casting import Casting
from lowtide._arrays.formats.layout import parse_dtype
from lowtide._arrays.unpublished import State
from lowtide._arrays.writable import WritableArray, create_shaped
from lowtide._closing import Publishing
from lowtide._io import store
from lowtide._readonly import ReadOnly
from lowtide._sizes import whole
from lowtide.errors import ArgumentError, BusyError, ClosedError, UnsupportedError

if TYPE_CHECKING:
    from lowtide._arrays.uploaded import Uploaded

    Target = targets.Fresh | targets.Appended | Uploaded

_AT_ONCE = 4 * 2**20  # bytes converted and written at once

_REASONS: dict[State, str] = {
    "closing": "the writer is being closed; lowtide.create(..., append=True) adds more",
    "closed": "the writer was closed; lowtide.create(..., append=True) adds more",
    "aborted": "the writer was aborted, and its rows were discarded; create the file again",
    "failed": "writing failed before, and the rows of this writer were discarded; create the file again",
    "replaced": "a newer lowtide.create in this process took over the path, and the rows of this writer were "
    "discarded; write to one of the two only",
    "forked": "the writer belongs to the process that this one was forked from; write there, or create "
    "another file here",
}


@overload
def create(
    path: str | os.PathLike[str],
    dtype: npt.DTypeLike | None = None,
    row_shape: int | tuple[int, ...] | None = None,
    *,
    shape: None = None,
    append: bool = False,
    casting: Casting = "same_kind",
    storage_options: Mapping[str, Any] | None = None,
) -> Writer: ...


@overload
def create(
    path: str | os.PathLike[str],
    dtype: npt.DTypeLike | None = None,
    *,
    shape: int | tuple[int, ...],
    casting: Casting = "same_kind",
    storage_options: None = None,
) -> WritableArray: ...


def create(
    path: str | os.PathLike[str],
    dtype: npt.DTypeLike | None = None,
    row_shape: int | tuple[int, ...] | None = None,
    *,
    shape: int | tuple[int, ...] | None = None,
    append: bool = False,
    casting: Casting = "same_kind",
    storage_options: Mapping[str, Any] | None = None,
) -> Writer | WritableArray:
    """A writer of rows of ``row_shape``, or an array of ``shape`` whose elements can be assigned.

    The file is NPY when ``path`` ends in ``.npy``, else raw.

    Use it as a context manager. The file appears under its name, complete and on disk, when the block ends;
    after an exception nothing appears, and an older file of that name is untouched. Memory and dirty page
    cache stay bounded however much is written.

    A writer that is never closed publishes nothing; there is a ``ResourceWarning``, and a line on standard
    error when the program ends. Creating the same path again in the same process, as by running a cell of a
    notebook again, aborts the older writer with a ``ResourceWarning``.

    Parameters
    ----------
    path
        The file to write. Symbolic links are followed. An existing file is replaced when the block ends; the
        new one has its mode. An address such as ``"s3://bucket/out.npy"`` is written in parts, and
        visible when it is complete; rows can be appended to a new object only.
    dtype
        The dtype of the file. With ``append=True`` it may be left out for an existing NPY file.
    row_shape
        The shape of one row, ``()`` by default; with ``append=True`` that of the rows of the NPY file.
    shape
        The shape of an array that is filled in any order, as in ``out[rows] = values``; elements that are
        never assigned are 0. See :class:`lowtide.WritableArray`. Without it, rows are appended.
    append
        Add rows to an existing file (or to a new one). Readers see only the rows that were there before until
        the block has ended, and also if it fails or the machine dies.
    casting
        What to do with rows of another dtype. ``"same_kind"`` converts them if every value fits: precision
        may be lost, but integers and floats out of range, text that is too long, times that the unit cannot
        hold and floats for integers are an ``ArgumentError``. ``"unsafe"`` takes what NumPy converts them to.
    storage_options
        For addresses, as in :func:`lowtide.open`; ``part_size`` is that of one part, ``"8 MiB"`` by default.

    Examples
    --------
    >>> with lowtide.create(tmp / "out.npy", "float32", row_shape=2) as out:
    ...     out.append([[1, 2], [3, 4]])
    ...     out.append([5, 6])
    >>> np.load(tmp / "out.npy").tolist()
    [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    >>> with lowtide.create(tmp / "out.npy", append=True) as out:
    ...     out.append([7, 8])
    >>> lowtide.open(tmp / "out.npy").shape
    (4, 2)
    >>> with lowtide.create(tmp / "scores.npy", "float32", shape=(5, 2)) as out:
    ...     out[[3, 1]] = [[1, 2], [3, 4]]
    ...     out[:, 0] += 1
    >>> np.load(tmp / "scores.npy")[1:4].tolist()
    [[4.0, 4.0], [1.0, 0.0], [2.0, 2.0]]
    """
    where, is_npy = targets.resolve(path)
    kind = None if dtype is None else _checked_dtype(where, dtype)
    row = None if row_shape is None else _checked_shape(where, row_shape)
    lengths = None if shape is None else _checked_shape(where, shape, "shape")
    if casting not in ("same_kind", "unsafe"):
        raise ArgumentError(f"{where}: casting must be 'same_kind' or 'unsafe', got {casting!r}")
    if store.is_address(where) and (shape is not None or append):
        raise UnsupportedError(
            f"{where}: an object cannot be changed in place, as shape= or append=True would; create it with "
            "row_shape and append all rows, or write a file and copy it with lowtide.copy"
        )
    if shape is not None and (append or row_shape is not None):
        raise ArgumentError(
            f"{where}: shape was given together with append or row_shape; pass shape for an array whose "
            f"elements are assigned, or row_shape for rows that are appended"
        )
    with unpublished.CREATING, store.using(path, storage_options):
        there = append and os.path.exists(where)
        if kind is None and not there:
            elements = "rows" if shape is None else "elements"
            raise ArgumentError(f"{where}: a new file needs a dtype; pass the dtype of its {elements}")
        unpublished.take_over(where)
        writer: Writer | WritableArray
        if kind is None or there:
            writer = Writer(targets.Appended(where, is_npy, kind, row), casting)
        elif lengths is not None:
            writer = create_shaped(where, is_npy, kind, lengths, casting)
        elif store.is_address(where):
            from lowtide._arrays.uploaded import Uploaded

            writer = Writer(Uploaded(where, is_npy, kind, row or ()), casting)
        else:
            writer = Writer(targets.Fresh(where, is_npy, kind, row or ()), casting)
        unpublished.add(writer)
    return writer


class Writer(ReadOnly, Publishing):
    """Takes rows, and publishes them when closed; see :func:`create`. Threads may share one."""

    _state: State = "aborted"  # until it is created
    _remedy = "create the file with other arguments"

    def __init__(self, target: Target, casting: Casting) -> None:
        self._target = target
        self._casting: Casting = casting
        # Held while the descriptor is used: a newer writer that takes over may get the same number.
        self._lock = threading.RLock()
        self._rows = 0
        self._appending = False
        self._state = "open"

    @property
    def path(self) -> str:
        """The file that is written, with links followed."""
        return self._target.path

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._target.dtype

    @property
    def row_shape(self) -> tuple[int, ...]:
        return self._target.row_shape

    @property
    def rows(self) -> int:
        """Rows appended by this writer."""
        return self._rows

    def append(self, rows: npt.ArrayLike) -> None:
        """Append rows: all of them or, after an exception, none.

        Parameters
        ----------
        rows : array_like
            Of shape ``(n, *row_shape)``, or one row of ``row_shape``; ``[]`` appends none.
        """
        self._check_open()
        if np.ma.is_masked(rows):  # as an ndarray it would show what the mask hides
            raise ArgumentError(f"{self.path}: rows are masked; fill them first, as in rows.filled(0)")
        array = np.asarray(rows)
        if array.shape == self.row_shape:
            array = array[None]
        elif array.shape == (0,):  # what a filter that found nothing gives
            return
        if array.shape[1:] != self.row_shape or not array.ndim:
            expected = ", ".join(["n", *map(str, self.row_shape)])
            raise ArgumentError(f"{self.path}: rows must have shape ({expected}), got {array.shape}")
        if self._casting != "unsafe" and array.size:
            _casting.check_dtype(self.path, array.dtype, self.dtype)
        with self._lock:
            self._check_open()  # another thread may have ended it meanwhile
            self._check_idle()
            start, rows_before = self._target.end, self.rows
            self._appending = True
            try:
                self._write(array)
                self._rows += len(array)
            except OSError as error:
                self._end("failed")
                if isinstance(error, errors.LowtideError):
                    raise
                raise errors.writing(self.path, error) from error
            except BaseException:
                self._rewind(start, rows_before)
                raise
            finally:
                self._appending = False

    def _write(self, array: npt.NDArray[Any]) -> None:
        # Of the wider of the two dtypes, so that neither the rows given nor their copies become large.
        width = math.prod(self.row_shape) * max(array.itemsize, self.dtype.itemsize)
        step = max(1, _AT_ONCE // max(1, width))
        for first in range(0, len(array) if width else 0, step):
            some = _casting.convert(self.path, array[first : first + step], self.dtype, self._casting, first)
            self._check_open()  # a signal handler may have closed it
            self._target.write(some.reshape(-1).view(np.uint8).data)

    def _rewind(self, start: int, rows: int) -> None:
        """Take back what an append wrote before it was refused or interrupted."""
        if self._state != "open":
            return
        if self._target.rewind(start):
            self._rows = rows
        else:
            self._end("failed")

    def close(self) -> None:
        """Publish what was appended; idempotent. Raises if it can no longer be published."""
        if self._state in ("closed", "aborted"):
            return
        self._check_open()
        with self._lock:
            self._check_open()
            self._check_idle()
            self._state = "closing"
            try:
                self._target.finish(self.rows)
            except BaseException:
                self._end("failed")
                raise
            self._state = "closed"
            unpublished.published(self.path)

    def abort(self) -> None:
        """Discard what was appended; idempotent, and harmless after ``close``."""
        self._discard("aborted")

    def _discard(self, state: State) -> bool:
        """End it without publishing; return whether it was open."""
        if self._state == "closing" and self._target.held:
            with self._lock:  # another thread publishes it, and has the path until that is done
                return False
        if not self._is_open():  # before the lock, which a fork may have left locked
            return False
        with self._lock:
            if not self._is_open():
                return False
            self._end(state)
        return True

    def _end(self, state: State) -> None:
        self._state = state
        self._target.abort()

    def _is_open(self) -> bool:
        return self._state == "open" and self._target.held

    def _ended(self) -> State:
        """The state while it is not open: only a fork takes a target away from an open writer."""
        return "forked" if self._state == "open" else self._state

    def _check_open(self) -> None:
        if not self._is_open():
            raise ClosedError(f"{self.path}: {_REASONS[self._ended()]}")

    def _check_idle(self) -> None:
        if self._appending:
            raise BusyError(
                f"{self.path}: rows are being appended in this very thread, which a signal handler or "
                f"finalizer interrupted; set a flag there, and append or close after it has returned"
            )

    def __enter__(self) -> Writer:
        return self

    def __repr__(self) -> str:
        return (
            f"<lowtide.Writer {self.path!r}, dtype={str(self.dtype)!r}, row_shape={self.row_shape}, "
            f"rows={self.rows}, {'open' if self._is_open() else self._ended()}>"
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self.path}: a writer cannot be pickled or copied, for only one may write a file; "
            f"create one file per process"
        )

    def _loss(self) -> str:
        return f"{self.rows} rows were"

    def __del__(self) -> None:
        unpublished.collected(self)


def _checked_shape(path: str, given: Any, name: str = "row_shape") -> tuple[int, ...]:
    lengths = given if isinstance(given, (tuple, list)) else (given,)
    try:
        return tuple(whole(name, length, least=0) for length in lengths)
    except ArgumentError:
        raise ArgumentError(
            f"{path}: {name} must be an integer >= 0 or a tuple of them, got {given!r}"
        ) from None


def _checked_dtype(path: str, dtype: npt.DTypeLike) -> np.dtype[Any]:
    kind = parse_dtype(dtype, f"{path}: dtype")
    if kind.hasobject:
        raise UnsupportedError(f"{path}: objects can only be stored as pickles, which lowtide does not write")
    if not kind.itemsize or kind.subdtype:
        raise ArgumentError(f"{path}: dtype {kind} has no fixed size; put the lengths into row_shape")
    return kind

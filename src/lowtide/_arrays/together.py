"""Arrays that are read together: features with labels, row by row."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy.typing as npt

from lowtide._arrays.array import Array
from lowtide._arrays.chunks import DEFAULT_BUDGET, Plan
from lowtide._arrays.deriving import Rowwise
from lowtide._arrays.loaded import as_array
from lowtide._arrays.orders import RowOrder
from lowtide._arrays.selections import Selection
from lowtide._io.pending import Pending, every
from lowtide._readonly import ReadOnly
from lowtide._sizes import format_size, parse_size
from lowtide.errors import ArgumentError, BudgetError

Rows = Array | npt.NDArray[Any]


def zip(*arrays: Rows | Sequence[Rows] | Mapping[str, Rows], **named: Rows) -> Zip:
    """Arrays of equally many rows as one: one order, one budget, one state; a row is a tuple or a dict.

    Parameters
    ----------
    *arrays : Array
        Arrays or views of them: chunks are tuples. Also one tuple, list or dict of arrays. An ndarray, such
        as labels in memory, goes with arrays on disk; it is not copied.
    **named : Array
        Arrays by name: chunks are dicts. Positional ones before them are then called ``"0"``, ``"1"``, ….

    Examples
    --------
    >>> for x, y in lowtide.zip(a, a.columns[0]).chunks(3, shuffle=True, seed=1):
    ...     print(x.shape, bool((x[:, 0] == y).all()))
    (3, 3) True
    (1, 3) True
    >>> lowtide.zip(x=a, y=a.columns[0])[1]
    {'x': array([3, 4, 5]), 'y': np.int64(3)}
    """
    if len(arrays) == 1 and not named:
        [only] = arrays
        if isinstance(only, Mapping):
            arrays, named = (), {str(name): array for name, array in only.items()}
        elif isinstance(only, list | tuple):
            arrays = tuple(only)
    every = [array if isinstance(array, Array) else as_array(array) for array in (*arrays, *named.values())]
    for array in every:
        if not isinstance(array, Array):
            raise ArgumentError(
                f"lowtide.zip takes arrays of lowtide.open and ndarrays, got {type(array).__name__}; open "
                f"the file, or convert it with np.asarray"
            )
    names = [*map(str, range(len(arrays))), *named] if named else None
    if names is not None and len(set(names)) < len(names):
        raise ArgumentError(f"names of arrays to zip must differ, got {names}")
    return Zip(every, names)


class Zip(ReadOnly, Rowwise["Zip"]):
    """Arrays of equally many rows; :func:`lowtide.zip` makes them.

    Indexing, ``take`` and chunks give a tuple or a dict with one item per array. ``rows``, ``select``,
    ``split`` and ``folds`` are those of :class:`Array`, and give zips of views.
    """

    _remedy = "zip other arrays"

    def __init__(self, arrays: Sequence[Array], names: Sequence[str] | None = None) -> None:
        self._arrays = tuple(arrays)
        self._names = None if names is None else tuple(names)
        if not arrays:
            raise ArgumentError("lowtide.zip needs at least one array")
        lengths = [array._row_count() for array in arrays]
        if len(set(lengths)) > 1:
            lengths_shown = ", ".join(
                f"{array.path} has {n}" for array, n in builtins.zip(arrays, lengths, strict=True)
            )
            raise ArgumentError(f"arrays to zip must have equally many rows: {lengths_shown}")

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays."""
        return self._arrays

    @property
    def path(self) -> str:
        """The file of the first of them."""
        return self._arrays[0].path

    @property
    def row_nbytes(self) -> int:
        """Bytes per row of all arrays."""
        return sum(array.row_nbytes for array in self._arrays)

    def __len__(self) -> int:
        return len(self._arrays[0])

    def __repr__(self) -> str:
        names = [""] * len(self._arrays) if self._names is None else [f"{name}=" for name in self._names]
        shown = (f"{name}{array!r}" for name, array in builtins.zip(names, self._arrays, strict=True))
        return f"<lowtide.Zip {', '.join(shown)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Zip, (self._arrays, self._names)

    def _wrap(self, parts: Sequence[Any]) -> Any:
        return tuple(parts) if self._names is None else dict(builtins.zip(self._names, parts, strict=True))

    def _row_count(self) -> int:
        return self._arrays[0]._row_count()

    def _rows_view(self, selection: Selection) -> Zip:
        return Zip([array._rows_view(selection) for array in self._arrays], self._names)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, tuple):
            raise ArgumentError(f"{self.path}: a zip is indexed by rows alone, got {index!r}")
        return self._wrap([array[index] for array in self._arrays])

    def take(self, rows: npt.ArrayLike) -> Any:
        """Rows by number, of each array.

        Parameters
        ----------
        rows : array_like of int
            As in :meth:`Array.take`.
        """
        return self._wrap([array.take(rows) for array in self._arrays])

    def __getitems__(self, rows: Sequence[int]) -> list[Any]:
        """Several rows in one read of each array, for PyTorch's ``DataLoader``."""
        return [
            self._wrap(row)
            for row in builtins.zip(*(array.take(rows) for array in self._arrays), strict=True)
        ]

    def __iter__(self) -> Iterator[Any]:
        return (self._wrap(row) for row in builtins.zip(*self._arrays, strict=True))

    def _pass(self, kind: type[RowOrder], key: int, rows: int | None, **options: Any) -> Any:
        return JointPlan(self, kind, key, rows, **options)


class JointPlan:
    """The plans of several arrays, chunk by chunk together."""

    def __init__(
        self, zipped: Zip, kind: type[RowOrder], key: int, rows: int | None, *, budget: int | str | None,
        with_rows: bool, **options: Any,
    ) -> None:  # fmt: skip
        self._zip = zipped
        self._with_rows = with_rows
        arrays = zipped.arrays
        plan: Any = partial(Plan, kind=kind, key=key, with_rows=False, arrays=len(arrays), **options)
        total = DEFAULT_BUDGET if budget is None else parse_size(budget)
        # A narrow array gets more than by its width: numbers and hints cost it as much as others.
        weights = [array.row_nbytes + zipped.row_nbytes / (8 * len(arrays)) + 1 for array in arrays]
        shares: list[int | None] = [int(total * weight / sum(weights)) for weight in weights]
        if rows is None:
            parts = builtins.zip(arrays, shares, strict=True)
            rows = min(plan(array, rows=None, budget=share).rows for array, share in parts)
        elif budget is None:
            shares = [None] * len(arrays)
        else:
            least = [plan(array, rows=rows, budget=None).least for array in arrays]
            if sum(least) > total:
                raise BudgetError(
                    f"{zipped.path}: a budget of {format_size(total)} is too small for chunks of {rows} "
                    f"rows of {len(arrays)} arrays; the smallest that works is {sum(least)} bytes "
                    f"({format_size(sum(least))})"
                )
            spare = total - sum(least)
            shares = [
                need + int(spare * weight / sum(weights))
                for need, weight in builtins.zip(least, weights, strict=True)
            ]
        parts = builtins.zip(arrays, shares, strict=True)
        self.plans = [plan(array, rows=rows, budget=share) for array, share in parts]
        self.rows, self.count = self.plans[0].rows, self.plans[0].count
        self.in_flight = sum(each.in_flight for each in self.plans)
        self.together = 1

    @property
    def path(self) -> str:
        return self._zip.path

    @property
    def settings(self) -> dict[str, Any]:
        each = [plan.settings for plan in self.plans]
        together = {name: [settings[name] for settings in each] for name in ("shape", "dtype")}
        return {**each[0], **together, "names": None if self._zip._names is None else list(self._zip._names)}

    def check(self) -> None:
        for plan in self.plans:
            plan.check()

    def release(self) -> None:
        for plan in self.plans:
            plan.release()

    def submit(self, number: int) -> Pending[Any]:
        pending = every([plan.submit(number) for plan in self.plans])
        return pending.then(partial(self._wrap, number))

    def read(self, number: int) -> Any:
        return self._wrap(number, [plan.read(number) for plan in self.plans])

    def _wrap(self, number: int, parts: Sequence[Any]) -> Any:
        chunk = self._zip._wrap(parts)
        return (self.plans[0].row_numbers(number), chunk) if self._with_rows else chunk

"""NumPy's and PyTorch's operations on an array on disk, which load it up to a limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from numpy.lib.mixins import NDArrayOperatorsMixin

from lowtide._arrays.rows import Rows


class ArrayOperators(Rows, NDArrayOperatorsMixin):
    """Operators and ufuncs of an ``Array``, which load it by ``__array__``, within its limit.

    >>> a == 4
    array([[False, False, False],
           [False,  True, False],
           [False, False, False],
           [False, False, False]])
    >>> int(np.sum(a > 4)), a @ [1, 0, 0]
    (7, array([0, 3, 6, 9]))
    """

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        written = (*options.get("out", ()), *(inputs[:1] if method == "at" else ()))
        for array in written:
            if isinstance(array, ArrayOperators):
                raise array._not_written(f"np.{ufunc.__name__}")
        if "where" in options:
            options["where"] = _loaded(options["where"])
        return getattr(ufunc, method)(*map(_loaded, inputs), **options)

    # By ndarray's own operators: unlike the ufuncs they compare records, and objects that are not numbers.

    def __eq__(self, other: object) -> Any:
        return _loaded(self) == _loaded(other)

    def __ne__(self, other: object) -> Any:
        return _loaded(self) != _loaded(other)

    __hash__ = object.__hash__
    """By identity, as PyTorch's tensors: an array stands for its file, and may be a key."""

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ValueError(
                f"{self.path}: the truth value of an array with {self.size} elements is ambiguous; "
                f"use np.any(array), np.all(array) or len(array)"
            )
        return bool(_loaded(self))

    def __setitem__(self, index: object, value: object) -> None:
        raise self._not_written("array[...] = value")

    def _not_written(self, what: str) -> TypeError:
        return TypeError(
            f"{self.path}: {what} would write to an array on disk, which is read-only; "
            f"load it first, as in array[:], or open it with mode='r+' and assign elements"
        )

    if not TYPE_CHECKING:  # a type checker would take every name for an attribute

        def __getattr__(self, name: str) -> Any:
            if not name.startswith("_") and hasattr(np.ndarray, name):
                raise AttributeError(
                    f"{self.path}: an array on disk has no {name}; load what you need first, as in "
                    f"array[rows].{name}, or go through it with array.chunks()"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # For PyTorch, which otherwise would read element by element.

    def __dlpack__(self, **options: Any) -> Any:
        return _loaded(self).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # the CPU


def _loaded(value: Any) -> Any:
    loaded: npt.NDArray[Any] = np.asarray(value) if isinstance(value, ArrayOperators) else value
    return loaded

"""Grain: windows and batches of tokens as sources with random access, for its loaders and pipelines.

Both classes are Grain's ``RandomAccessDataSource``: they have a length, give a record by its number from any
thread or process, and can be pickled. Grain itself is not imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide._sizes import whole
from lowtide._tokens.batches import Batches
from lowtide.errors import ArgumentError, IndexingError

__all__ = ["BatchSource", "WindowSource"]

Record = dict[str, npt.NDArray[Any]]


class _Source:
    """Records of ``inputs`` and ``targets``, and a representation for checkpoints."""

    def __init__(self, batches: Batches, dtype: npt.DTypeLike, count: int, records: str) -> None:
        self._batches, self._dtype, self._count = batches, np.dtype(dtype), count
        self._records = records
        if self._dtype.kind not in "iu" or np.iinfo(self._dtype).max < np.iinfo(batches.dtype).max:
            raise ArgumentError(
                f"dtype does not hold every token (got {self._dtype}, the corpus has {batches.dtype}); use "
                f"int64"
            )

    def __len__(self) -> int:
        return self._count

    def _checked(self, index: int) -> int:
        number = whole("index", index, 0)
        if number >= self._count:
            raise IndexingError(f"record {number} is out of bounds for {self._count}")
        return number

    def _record(self, tokens: npt.NDArray[Any]) -> Record:
        x, y = tokens[..., :-1], tokens[..., 1:]
        return {"inputs": x.astype(self._dtype), "targets": y.astype(self._dtype)}

    def __repr__(self) -> str:
        # Grain's DataLoader compares it when a checkpoint is restored: everything that the records depend on.
        settings = sorted(self._batches._settings().items())
        inside = ", ".join(f"{name}={value!r}" for name, value in settings)
        return f"{type(self).__name__}({self._records}, dtype={self._dtype}, {inside})"


class WindowSource(_Source):
    """Single windows by number, one epoch of them; Grain shuffles, shards and batches them.

    A record is a dict of ``inputs`` and ``targets``, one token later, of ``length`` tokens each. Where
    Grain asks for many records at once, they are one read. ``batch_size`` and ``rank`` of ``batches`` do not
    matter here.

    Parameters
    ----------
    batches
        The windows.
    epoch
        The epoch of the windows: others start elsewhere and come in another order.
    dtype
        Type of the tokens in a record.

    Examples
    --------
    >>> source = WindowSource(corpus.batches(batch_size=1, length=4, order="sequential"))
    >>> len(source), source[2]["inputs"], source[2]["targets"]
    (249, array([ 8,  9, 10, 11], dtype=int32), array([ 9, 10, 11, 12], dtype=int32))
    """

    def __init__(self, batches: Batches, *, epoch: int = 0, dtype: npt.DTypeLike = "int32") -> None:
        self._epoch = whole("epoch", epoch, 0)
        super().__init__(batches, dtype, batches.epoch_samples, f"epoch={self._epoch}")

    def __getitem__(self, index: int) -> Record:
        return self._getitems([index])[0]

    def _getitems(self, indices: Sequence[int]) -> list[Record]:
        """Several windows in one read; Grain calls this method if a source has it."""
        numbers = np.array([self._checked(index) for index in indices], np.int64)
        tokens = self._batches.read_samples(numbers + self._epoch * self._count)
        return [self._record(row) for row in tokens]


class BatchSource(_Source):
    """Whole batches by their steps, in lowtide's own order: every token once per epoch, without an index.

    Record n is the batch of the n-th step from that of ``batches`` on: a dict of ``inputs`` and ``targets``
    with the rows of the rank of ``batches``. It depends on the seed and the step only, so that a restored
    iterator continues exactly. Do not shuffle it in Grain.

    Parameters
    ----------
    batches
        The batches; on several hosts with ``rank=jax.process_index()``, ``world_size=jax.process_count()``.
    steps
        Number of records; an epoch by default. More than an epoch are the following ones.
    dtype
        Type of the tokens in a record.

    Examples
    --------
    >>> source = BatchSource(corpus.batches(batch_size=2, length=4, seed=1), steps=1000)
    >>> len(source), source[999]["inputs"].shape
    (1000, (2, 4))
    """

    def __init__(self, batches: Batches, *, steps: int | None = None, dtype: npt.DTypeLike = "int32") -> None:
        self._first = batches.step
        count = batches.epoch_steps if steps is None else whole("steps", steps, 1)
        rank = f"rank={batches.rank} of {batches.world_size}"
        super().__init__(batches, dtype, count, f"first={self._first}, steps={count}, {rank}")

    def __getitem__(self, index: int) -> Record:
        return self._record(self._batches.read(self._first + self._checked(index)))

"""Steps: the tokens of one rank at each step, read alone or several steps together."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide._io.buffers import Buffers
from lowtide._io.pending import Outcome, Pending
from lowtide._tokens.ahead import Ahead
from lowtide._tokens.documents import Ids
from lowtide._tokens.sampling import Samples

Check = Callable[[npt.NDArray[Any]], None]


@dataclass(frozen=True)
class StepRange:
    """The rows of one rank at steps of one batch size and length."""

    first: int
    """The first step."""
    origin: int
    """The sample that step 0 would start with."""

    samples: Samples
    batch_size: int
    length: int
    rows: tuple[int, int]
    check: Check | None
    """Called with the tokens of each batch once they are read; raises for those that must not be used."""
    buffers: Buffers
    """Memory for the tokens of a batch, reused when no array in it is left."""
    ahead: Ahead | None
    """Reads several steps together; None where each is read alone."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows of this rank, and their length."""
        return self.rows[1] - self.rows[0], self.length

    def sample(self, step: int) -> int:
        """The first sample of this rank at a step."""
        return self.origin + step * self.batch_size + self.rows[0]

    def submit(
        self, step: int, out: npt.NDArray[Any] | None = None, *, view: bool = False
    ) -> Pending[npt.NDArray[Any]]:
        """Start to read the ``length + 1`` tokens of each row, into ``out`` if given.

        The result of a ``view`` may be part of a larger array, and must be released soon.
        """
        pending = None if self.ahead is None else self.ahead.submit(step)
        if pending is None:
            return self._submit_alone(step, out)
        if not view:
            pending = pending.then(partial(self._copy, out))
        return pending.then(self._checked)

    def _submit_alone(self, step: int, out: npt.NDArray[Any] | None) -> Pending[npt.NDArray[Any]]:
        out = self._empty() if out is None else out
        started = time.perf_counter()
        pending = self.samples.submit(self.sample(step), out)
        if pending.done:
            return Pending.of(self._finish(started, out, pending.wait()))
        return pending.then(partial(self._finish, started, out))

    def _empty(self) -> npt.NDArray[Any]:
        first, last = self.rows
        return self.buffers.empty((last - first, self.length + 1), self.samples.dtype)

    def _copy(self, out: npt.NDArray[Any] | None, tokens: npt.NDArray[Any]) -> npt.NDArray[Any]:
        out = self._empty() if out is None else out
        np.copyto(out, tokens)
        return out

    def _finish(self, started: float, tokens: npt.NDArray[Any], outcome: Outcome) -> npt.NDArray[Any]:
        if self.ahead is not None:
            self.ahead.learn(started, outcome)
        return self._checked(tokens)

    def _checked(self, tokens: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if self.check is not None:
            self.check(tokens)
        return tokens

    def document_ids(self, step: int, x: npt.NDArray[Any]) -> Ids:
        """The document of each token of a step's ``x``, counted within its row."""
        return self.samples.document_ids(self.sample(step), x)

    def release(self) -> None:
        """Release what was read ahead, and the memory that is kept for batches."""
        self.buffers.clear()
        if self.ahead is not None:
            self.ahead.release()


class Steps:
    """The rows of one rank at each step. It has no position, so that a thread can read from it."""

    def __init__(self, ranges: Sequence[StepRange]) -> None:
        self.ranges = tuple(ranges)
        self._firsts = [one.first for one in ranges]
        self._current = self.ranges[0]

    def at(self, step: int) -> StepRange:
        """The range of a step."""
        if len(self.ranges) == 1:
            return self._current
        return self.ranges[bisect_right(self._firsts, step) - 1]

    def submit(
        self, step: int, out: npt.NDArray[Any] | None = None, *, view: bool = False
    ) -> Pending[npt.NDArray[Any]]:
        """As ``StepRange.submit``; memory of the range before is released."""
        one = self.at(step)
        if one is not self._current:
            self._current.release()
            self._current = one
        return one.submit(step, out, view=view)

    def document_ids(self, step: int, x: npt.NDArray[Any]) -> Ids:
        """The document of each token of a step's ``x``, counted within its row."""
        return self.at(step).document_ids(step, x)

    @property
    def largest(self) -> tuple[int, int]:
        """The largest number of rows, and the largest length."""
        return max(one.shape[0] for one in self.ranges), max(one.length for one in self.ranges)

    def rows_between(self, first: int, last: int) -> int:
        """Rows of this rank from one step up to another."""
        rows = 0
        for one, stop in zip(self.ranges, [*self._firsts[1:], last], strict=True):
            rows += max(0, min(stop, last) - max(one.first, first)) * one.shape[0]
        return rows

    def release(self) -> None:
        """Release what was read ahead."""
        for one in self.ranges:
            if one.ahead is not None:
                one.ahead.release()

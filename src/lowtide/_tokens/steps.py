"""Steps: the tokens of one rank at each step, read alone or several steps together."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide._io.buffers import Buffers
from lowtide._io.pending import Pending
from lowtide._tokens.ahead import Ahead
from lowtide._tokens.documents import Ids
from lowtide._tokens.sampling import Samples

Check = Callable[[npt.NDArray[Any]], None]


@dataclass(frozen=True)
class Steps:
    """The rows of one rank at each step. It has no position, so that a thread can read from it."""

    samples: Samples
    batch_size: int
    length: int
    rows: tuple[int, int]
    check: Check | None
    """Called with the tokens of each batch once they are read; raises for those that must not be used."""
    buffers: Buffers
    """Memory for the tokens of a batch, used again when nobody holds what was in it."""
    ahead: Ahead | None
    """Reads several steps together; None where each is read alone."""

    def submit(self, step: int, out: npt.NDArray[Any] | None = None) -> Pending[npt.NDArray[Any]]:
        """Start to read the ``length + 1`` tokens of each row, into ``out`` if given."""
        pending = None if self.ahead is None else self.ahead.submit(step)
        if pending is None:
            return self._submit_alone(step, out)
        return pending.then(partial(self._copy, out)).then(self._checked)

    def submit_view(self, step: int) -> Pending[npt.NDArray[Any]]:
        """As ``submit``; the result may be part of a larger array, and is to be released soon."""
        pending = None if self.ahead is None else self.ahead.submit(step)
        return self._submit_alone(step, None) if pending is None else pending.then(self._checked)

    def _submit_alone(self, step: int, out: npt.NDArray[Any] | None) -> Pending[npt.NDArray[Any]]:
        out = self._empty() if out is None else out
        started = time.perf_counter()
        pending = self.samples.submit(step * self.batch_size + self.rows[0], out)
        if self.ahead is not None:
            pending = pending.then(partial(self.ahead.learn, started))
        return pending.then(partial(self._finish, out))

    def _empty(self) -> npt.NDArray[Any]:
        first, last = self.rows
        return self.buffers.empty((last - first, self.length + 1), self.samples.dtype)

    def _copy(self, out: npt.NDArray[Any] | None, tokens: npt.NDArray[Any]) -> npt.NDArray[Any]:
        out = self._empty() if out is None else out
        np.copyto(out, tokens)
        return out

    def _finish(self, tokens: npt.NDArray[Any], _: object) -> npt.NDArray[Any]:
        return self._checked(tokens)

    def _checked(self, tokens: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if self.check is not None:
            self.check(tokens)
        return tokens

    def document_ids(self, step: int, x: npt.NDArray[Any]) -> Ids:
        """The document of each token of a step's ``x``, counted within its row."""
        return self.samples.document_ids(step * self.batch_size + self.rows[0], x)

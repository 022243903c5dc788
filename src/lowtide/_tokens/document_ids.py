"""Which document each token of a batch belongs to, for attention masks."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from lowtide._io.extents import Ints
from lowtide._readonly import ReadOnly
from lowtide._tokens.formats.documents import Documents
from lowtide.errors import ArgumentError

if TYPE_CHECKING:
    from lowtide._tokens.batches import Batches

Ids = npt.NDArray[np.int32]
Kind = Literal["ids", "cu_seqlens"]
Triple = tuple[npt.NDArray[Any], npt.NDArray[Any], Ids]


class DocumentBatches(ReadOnly, Iterator[Triple]):
    """Batches with a third array: ``ids`` like ``x``, or ``cu_seqlens`` of all its rows together.

    Ids count the documents within a row from 0: two tokens of a row belong together when their ids agree.
    ``cu_seqlens`` are the borders of the documents in ``x.ravel()``, from 0 to its size, as kernels for
    attention over sequences of different lengths want them; no document crosses a row.
    """

    _remedy = "ask for other batches, as in corpus.batches(...).with_documents()"

    def __init__(self, batches: Batches, kind: Kind) -> None:
        if kind not in ("ids", "cu_seqlens"):
            raise ArgumentError(f"kind must be 'ids' or 'cu_seqlens', got {kind!r}")
        self._batches = batches
        self._kind = kind

    def __getitem__(self, step: int) -> Triple:
        return self._with_documents(step, *self._batches[step])

    def __iter__(self) -> DocumentBatches:
        return self

    def __next__(self) -> Triple:
        step, pair = self._batches.next_numbered()
        return self._with_documents(step, *pair)

    def _with_documents(self, step: int, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> Triple:
        ids = self._batches.document_ids(step, x)
        return x, y, ids if self._kind == "ids" else cu_seqlens(ids)

    def state_dict(self) -> dict[str, Any]:
        return self._batches.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._batches.load_state_dict(state)

    def close(self) -> None:
        self._batches.close()

    def __enter__(self) -> DocumentBatches:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def by_mark(x: npt.NDArray[Any], mark: int, marks: Literal["end", "start"]) -> Ids:
    """Ids from the token that ends documents (and belongs to them), or that begins them.

    >>> by_mark(np.array([[5, 0, 7, 7, 0, 3]]), mark=0, marks="end")
    array([[0, 0, 1, 1, 1, 2]], dtype=int32)
    """
    counted = np.cumsum(x == mark, axis=1, dtype=np.int32)
    if marks == "start":
        return counted - counted[:, :1]
    ids = np.zeros_like(counted)
    ids[:, 1:] = counted[:, :-1]
    return ids


def by_index(documents: Documents, starts: Ints, length: int) -> Ids:
    """Ids from the corpus' own index; a row that passes the end goes on with a new document."""
    ids = np.zeros((len(starts), length), np.int32)
    for row, start in zip(ids, starts.tolist(), strict=True):
        stop = min(start + length, documents.tokens)
        borders = documents.covering(start, stop)[1][:-1, 1] - start
        if start + length > stop:
            rest = start + length - documents.tokens
            behind = documents.covering(0, rest)[1][:-1, 1] + (stop - start)
            borders = np.concatenate((borders, [stop - start], behind))
        np.cumsum(np.bincount(borders, minlength=length)[:length] > 0, out=row)
    return ids


def cu_seqlens(ids: Ids) -> Ids:
    """The borders of documents in the flattened batch, with one at each row's start.

    >>> cu_seqlens(np.array([[0, 0, 1], [0, 1, 1]], np.int32))
    array([0, 2, 3, 4, 6], dtype=int32)
    """
    begins = np.ones(ids.shape, bool)
    begins[:, 1:] = ids[:, 1:] != ids[:, :-1]
    return np.append(np.flatnonzero(begins), ids.size).astype(np.int32)

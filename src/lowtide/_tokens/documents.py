"""Documents: found by a scan where the format has no index, and marked in batches for attention masks."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from lowtide._arrays.formats import inspect
from lowtide._arrays.writer import create
from lowtide._closing import Closing
from lowtide._io import store
from lowtide._io.extents import Ints
from lowtide._io.system import cache_folder
from lowtide._readonly import ReadOnly
from lowtide._tokens.formats.documents import Column, Documents
from lowtide._tokens.formats.tokens import Marks
from lowtide.errors import ArgumentError, FormatError, LowtideError, UnsupportedError

if TYPE_CHECKING:
    from lowtide._tokens.batches import Batches
    from lowtide._tokens.corpus import Corpus
    from lowtide.torch import TorchDocumentBatches

A = TypeVar("A")
Ids = npt.NDArray[np.int32]
DocumentKind = Literal["ids", "cu_seqlens"]


class DocumentBatch(tuple[A, A, A], Generic[A]):
    """``x``, ``y`` and the documents of ``x``: a tuple of three, with attributes for attention kernels.

    The third item is ``ids`` or ``cu_seqlens``, as :meth:`lowtide.Batches.with_documents` was called.

    >>> batch = mark_documents(np.array([[5, 0, 7, 8]]), np.array([[0, 0, 1, 1]]))
    >>> x, y, ids = batch
    >>> batch.position_ids, batch.max_seqlen
    (array([[0, 1, 0]], dtype=int32), 2)
    >>> batch.borders, batch.loss_mask
    (array([0, 2, 3], dtype=int32), array([[ True, False,  True]]))
    """

    _ids: Any
    """The document of each token of ``x``, and of the last one of ``y``."""

    def __new__(cls, items: tuple[A, A, A], ids: Ids | None = None, **computed: Any) -> DocumentBatch[A]:
        """From ``ids``, from which the attributes are computed on first use, or from the attributes."""
        batch = super().__new__(cls, items)
        batch.__dict__.update(_ids=ids, **computed)
        return batch

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (tuple(self),)

    @cached_property
    def borders(self) -> Ids:
        """``cu_seqlens`` as a NumPy array on the host."""
        return cu_seqlens(self._ids[:, :-1])

    @cached_property
    def position_ids(self) -> A:
        """The position of each token of ``x`` within its document, or within its row if that starts later."""
        positions: Any = np.arange(self._ids[:, :-1].size, dtype=np.int32)
        positions -= np.repeat(self.borders[:-1], np.diff(self.borders))
        return positions.reshape(len(self._ids), -1)  # type: ignore[no-any-return]

    @cached_property
    def max_seqlen(self) -> int:
        """Tokens of the longest document in a row: the ``max_seqlen`` of kernels that take ``cu_seqlens``."""
        return int(np.diff(self.borders).max(initial=0))

    @cached_property
    def loss_mask(self) -> A:
        """Where ``y`` is of the same document as ``x``, which does not determine how another one starts."""
        return np.equal(self._ids[:, 1:], self._ids[:, :-1])  # type: ignore[no-any-return]


class DocumentBatches(ReadOnly, Closing, Iterator[DocumentBatch[npt.NDArray[Any]]]):
    """Batches with the documents of ``x``: each is a :class:`DocumentBatch`, a tuple of three.

    :meth:`lowtide.Batches.with_documents` makes them.
    """

    _remedy = "ask for other batches, as in corpus.batches(...).with_documents()"

    def __init__(self, batches: Batches, kind: DocumentKind) -> None:
        check_kind(kind)
        self._batches, self._kind = batches, kind

    def __getitem__(self, step: int) -> DocumentBatch[npt.NDArray[Any]]:
        return self._mark(step, self._batches.read(step))

    def __iter__(self) -> DocumentBatches:
        return self

    def __next__(self) -> DocumentBatch[npt.NDArray[Any]]:
        return self._mark(*self._batches._opened().next_numbered())

    def _mark(self, step: int, tokens: npt.NDArray[Any]) -> DocumentBatch[npt.NDArray[Any]]:
        ids = self._batches._steps.document_ids(step, tokens)
        return mark_documents(tokens, ids, self._kind)

    def torch(self, device: Any = "cpu", dtype: Any = None) -> TorchDocumentBatches:
        """These batches as tensors, as :meth:`lowtide.Batches.torch`.

        Parameters
        ----------
        device
            The device of the tensors.
        dtype
            The type of ``x``, ``y`` and ``position_ids``; ``torch.int64`` by default.
        """
        return self._batches.torch(device, dtype).with_documents(self._kind)

    @property
    def step(self) -> int:
        """The step of the batch that ``next`` will give."""
        return self._batches.step

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of this rank's ``x`` and ``y``."""
        return self._batches.shape

    @property
    def epoch_steps(self) -> int:
        """Complete steps in an epoch."""
        return self._batches.epoch_steps

    def state_dict(self) -> dict[str, Any]:
        """The state of the batches, as :meth:`lowtide.Batches.state_dict`."""
        return self._batches.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume at the step of a state.

        Parameters
        ----------
        state
            What ``state_dict`` returned.
        """
        self._batches.load_state_dict(state)

    def close(self) -> None:
        """End the prefetch thread; idempotent."""
        self._batches.close()


def check_kind(kind: DocumentKind) -> None:
    """Raise for a kind of documents that does not exist."""
    if kind not in ("ids", "cu_seqlens"):
        raise ArgumentError(f"kind must be 'ids' or 'cu_seqlens', got {kind!r}")


def mark_documents(
    tokens: npt.NDArray[Any], ids: Ids, kind: DocumentKind = "ids"
) -> DocumentBatch[npt.NDArray[Any]]:
    """A batch with its documents, from the ids of the tokens of its windows."""
    documents = ids[:, :-1] if kind == "ids" else cu_seqlens(ids[:, :-1])
    return DocumentBatch((tokens[:, :-1], tokens[:, 1:], documents), ids)


def whole_windows(x: npt.NDArray[Any], y: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The tokens of ``x`` and the last one of ``y``."""
    return np.concatenate((x, y[:, -1:]), axis=1)


def ids_from_marks(x: npt.NDArray[Any], mark: int, marks: Marks) -> Ids:
    """Ids from the token that is the last of a document, or the first.

    >>> ids_from_marks(np.array([[5, 0, 7, 7, 0, 3]]), mark=0, marks="end")
    array([[0, 0, 1, 1, 1, 2]], dtype=int32)
    """
    count = np.cumsum(x == mark, axis=1, dtype=np.int32)
    if marks == "start":
        return count - count[:, :1]
    ids = np.zeros_like(count)
    ids[:, 1:] = count[:, :-1]
    return ids


def ids_from_index(documents: Documents, starts: Ints, length: int) -> Ids:
    """Ids from the corpus' own index; a row that passes the end continues with a new document."""
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
    first = np.ones(ids.shape, bool)
    np.not_equal(ids[:, 1:], ids[:, :-1], out=first[:, 1:])
    return np.append(np.flatnonzero(first), ids.size).astype(np.int32)


# Documents that no index lists


def scan(corpus: Corpus) -> Documents:
    """The corpus' documents, from the index that an earlier scan left or from a new one.

    The index is a hidden ``.npy`` of document ends beside the first shard, or in the user's cache folder if
    that one is read-only. Its name holds a digest of the shards' sizes and times: another corpus, or
    a changed one, is scanned again.
    """
    name = f".lowtide-documents-{_digest(corpus)}.npy"
    folders = [os.path.dirname(corpus.paths[0]), cache_folder()]
    if corpus._layout.segments[0].identity and corpus._layout.segments[0].identity.is_remote:
        folders.pop(0)  # readers do not write to a bucket
    for folder in folders:
        documents = _open(os.path.join(folder, name), len(corpus))
        if documents is not None:
            return _marked(corpus, documents)
    for folder in folders:
        path = os.path.join(folder, name)
        try:
            store.make_folder(folder)
            with create(path, "<u8") as out:
                for ends in _ends(corpus):
                    out.append(ends.astype("<u8"))
        except OSError:
            if folder == folders[-1]:
                raise
            continue
        documents = _open(path, len(corpus))
        if documents is not None:
            return _marked(corpus, documents)
    raise LowtideError(f"{corpus.name}: the index of its documents vanished as soon as it was written")


def warn_of_one(corpus: Corpus, count: int) -> None:
    """Warn of windows that start where documents start, if there is one document only."""
    if count == 1:
        warnings.warn(
            f"{corpus.name}: has one document, so that every window of order='documents' is the same; use "
            "another order, such as 'shuffle'",
            UserWarning,
            stacklevel=5,
        )


def _marked(corpus: Corpus, documents: Documents) -> Documents:
    """The documents, with a warning if the token that should mark them does not occur."""
    if documents.count == 1 and corpus._layout.index is None and corpus.eos not in (corpus[0], corpus[-1]):
        warnings.warn(
            f"{corpus.name}: token {corpus.eos} does not occur, so that all of it is one document; pass the "
            "end of text of its tokenizer as eos",
            UserWarning,
            stacklevel=4,
        )
    return documents


def _open(path: str, tokens: int) -> Documents | None:
    """The documents of an earlier scan; None if there was none, or its index is damaged."""
    if not store.is_file(path):
        return None
    try:
        layout = inspect(path)
        if layout.dtype != np.dtype("<u8") or len(layout.shape) != 1:
            return None
        documents = Documents([Column(layout, "the documents found by a scan")], [tokens])
        documents.at(tokens - 1)  # so the last document ends where the tokens do
    except (FormatError, UnsupportedError):
        return None
    return documents


def _ends(corpus: Corpus) -> Iterator[Ints]:
    """Blocks of document ends, the end of the corpus included."""
    last = 0
    index = corpus._layout.index
    for ends in _ends_by_mark(corpus) if index is None else index():
        if len(ends):
            last = int(ends[-1])
            yield ends
    if last != len(corpus):  # the last document has no mark
        yield np.array([len(corpus)], np.int64)


def _ends_by_mark(corpus: Corpus) -> Iterator[Ints]:
    """From the token that is the last of a document, or the first."""
    behind = 0 if corpus._layout.marks == "start" else 1
    start = 0
    for part in corpus.stream():
        ends = np.flatnonzero(part == corpus.eos) + start + behind
        yield ends[ends > 0]
        start += len(part)


def _digest(corpus: Corpus) -> str:
    layout = corpus._layout
    digest = hashlib.blake2b(f"{corpus.eos} {layout.marks} {corpus.dtype}".encode(), digest_size=10)
    for segment in layout.segments:
        changed = segment.identity.mtime_ns if segment.identity else 0
        etag = (segment.identity and segment.identity.etag) or ""
        digest.update(f"{segment.path}\0{segment.offset} {segment.count} {changed}{etag}\n".encode())
    return digest.hexdigest()

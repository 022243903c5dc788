"""``lowtide.create_corpus``: a corpus of given tokens, written document by document."""

from __future__ import annotations

import errno
import os
import re
import threading
from typing import Any, NoReturn, get_args

import numpy as np
import numpy.typing as npt

from lowtide._arrays import unpublished
from lowtide._arrays.unpublished import State
from lowtide._closing import Publishing
from lowtide._io import atomic, store
from lowtide._prepare import tokenizers
from lowtide._prepare.settings import check_choice
from lowtide._prepare.shard_writer import ShardWriter
from lowtide._prepare.tokenizers import Tokenizer
from lowtide._sizes import parse_count, whole
from lowtide._tokens.formats import own
from lowtide._tokens.formats.index import token_dtype
from lowtide.errors import ArgumentError, ClosedError, WriteError

_BUFFER = 2**20  # bytes of tokens that are written at once
_ENDS = 2**16  # documents whose ends are written at once
_SPLIT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


def create_corpus(
    path: str | os.PathLike[str],
    dtype: npt.DTypeLike = "uint16",
    eos: int | None = None,
    *,
    vocab_size: int | None = None,
    tokenizer: str | Tokenizer | None = None,
    layout: own.LayoutName = "shards",
    shard_tokens: int | str = "100M",
) -> CorpusWriter:
    """Write a corpus of given token ids, such as those of a chat template or a custom tokenizer.

    Nothing is at ``path`` until the writer is closed; then the corpus is complete and on disk. A process that
    is killed before leaves the hidden folder ``.NAME.partial``, which the next writer removes. The memory in
    use does not depend on the number of documents.

    Parameters
    ----------
    path
        The folder to write; it must be empty or not exist.
    dtype
        ``"uint16"``, or ``"uint32"`` for ids from 65,536 on.
    eos
        The token that ends a document. It is appended to each document that does not end with it.
    vocab_size
        Number of ids of the tokenizer; every id must be below it. By default that of ``tokenizer``.
    tokenizer
        The tokenizer that made the ids: a name as in :func:`lowtide.prepare`, or the object returned by
        :func:`lowtide.load_tokenizer`. It is saved with the corpus, so that a model's samples can be decoded.
    layout
        ``shards``, ``nanogpt`` (one file per split) or ``llmc``, as in :func:`lowtide.prepare`.
    shard_tokens
        Tokens per shard, as a number or with k, M or G.

    Examples
    --------
    >>> with lowtide.create_corpus(tmp / "chats", eos=0) as out:
    ...     out.append([5, 6, 7])
    ...     out.append(np.array([8, 9, 0]))
    ...     out.append([1, 2], split="val")
    >>> chats = lowtide.corpus(tmp / "chats")
    >>> chats[:].tolist(), chats.documents.count, len(lowtide.corpus(tmp / "chats", split="val"))
    ([5, 6, 7, 0, 8, 9, 0], 2, 3)
    """
    return CorpusWriter(path, dtype, eos, vocab_size, tokenizer, layout, shard_tokens)


class CorpusWriter(Publishing):
    """Appends documents to a corpus; created by :func:`lowtide.create_corpus`.

    A ``with`` block publishes the corpus at its end, and nothing if an exception leaves the block.

    Examples
    --------
    >>> out = lowtide.create_corpus(tmp / "ids", dtype="uint32", eos=2)
    >>> out.append(range(70_000, 70_005))
    >>> out.tokens, out.documents
    (6, 1)
    >>> out.close()
    """

    _call = "lowtide.create_corpus"

    def __init__(
        self,
        path: str | os.PathLike[str],
        dtype: npt.DTypeLike,
        eos: int | None,
        vocab_size: int | None,
        tokenizer: str | Tokenizer | None,
        layout: own.LayoutName,
        shard_tokens: int | str,
    ) -> None:
        self._state: State = "closed"  # until the folder is locked there is nothing to lose
        self._path = store.absolute(path)
        self._dtype = token_dtype(dtype, self._path)
        check_choice("dtype", self._dtype.name, ("uint16", "uint32"))
        check_choice("layout", layout, get_args(own.LayoutName))
        self._layout = layout
        self._shard_tokens = (
            None if layout == "nanogpt" else whole("shard_tokens", parse_count(shard_tokens), 1)
        )
        self._tokenizer = tokenizers.make(tokenizer) if isinstance(tokenizer, str) else tokenizer
        self._vocab_size = vocab_size if vocab_size is None else whole("vocab_size", vocab_size, 1)
        if self._tokenizer is not None and self._vocab_size is None:
            self._vocab_size = self._tokenizer.vocab_size
        most = int(np.iinfo(self._dtype).max) + 1
        if self._vocab_size is not None and self._vocab_size > most:
            raise ArgumentError(f"{self._vocab_size} ids do not fit {self._dtype.name}; pass dtype='uint32'")
        self._limit = self._vocab_size or most
        self._eos = eos if eos is None else whole("eos", eos, 0)
        if self._eos is not None and self._eos >= self._limit:
            raise ArgumentError(f"eos must be an id below {self._limit}, got {eos}")
        self._splits: dict[str, _Split] = {}
        self._lock = threading.RLock()
        self._pid = os.getpid()
        with unpublished.CREATING:
            unpublished.take_over(self._path)
            if store.is_file(self._path) or (
                store.is_folder(self._path) and any(store.list_folder(self._path))
            ):
                raise WriteError(errno.EEXIST, "is not empty; pass another folder, or remove it", self._path)
            self._folder = atomic.new_folder(self._path)
            self._temporary = self._folder.__enter__()
            self._state = "open"
            unpublished.add(self)

    @property
    def path(self) -> str:
        """The folder of the corpus, which exists once the writer is closed."""
        return self._path

    @property
    def tokens(self) -> int:
        """Tokens of all splits so far."""
        return sum(split.tokens for split in self._splits.values())

    @property
    def documents(self) -> int:
        """Documents of all splits so far."""
        return sum(split.documents for split in self._splits.values())

    def append(self, document: npt.ArrayLike, split: str = "train") -> None:
        """Append a document; one without tokens adds nothing.

        Parameters
        ----------
        document
            Its token ids: a list, an array or a tensor, of one dimension.
        split
            The split that it belongs to.

        Examples
        --------
        >>> with lowtide.create_corpus(tmp / "one") as out:
        ...     out.append([1, 2, 3])
        """
        ids = self._checked(document)
        with self._lock:
            self._check_open()
            if split not in self._splits:
                if not isinstance(split, str) or not _SPLIT.fullmatch(split):
                    raise ArgumentError(f"split must be a name such as 'train' or 'val', got {split!r}")
                writer = ShardWriter(
                    self._temporary, split, self._dtype.name, self._layout, self._shard_tokens
                )
                self._splits[split] = _Split(writer, self._dtype)
            if not len(ids):
                return
            try:
                self._splits[split].append(ids)
                if self._eos is not None and int(ids[-1]) != self._eos:
                    self._splits[split].append(np.array([self._eos], self._dtype))
                self._splits[split].end_document()
            except BaseException:  # a part of the document may be written
                self._discard("failed")
                raise

    def _checked(self, document: npt.ArrayLike) -> npt.NDArray[Any]:
        given: Any = document
        ids = np.asarray(given if hasattr(given, "__array__") else list(given))
        if ids.ndim != 1:
            raise ArgumentError(f"a document is a list of token ids, got an array of shape {ids.shape}")
        if not len(ids):
            return ids
        if ids.dtype.kind not in "iu":
            raise ArgumentError(f"token ids are integers, got dtype {ids.dtype}")
        least, most = int(ids.min()), int(ids.max())
        if least < 0 or most >= self._limit:
            wrong, remedy = (
                (least, "") if least < 0 else (most, "; pass a larger vocab_size, or dtype='uint32'")
            )
            raise ArgumentError(f"token ids must be from 0 to {self._limit - 1}, got {wrong}{remedy}")
        return ids

    def close(self) -> None:
        """Publish the corpus: all of it is on disk and at ``path`` afterwards; idempotent.

        A corpus without tokens raises, and nothing is published.
        """
        with self._lock:
            if self._state == "closed":
                return
            self._check_open()
            try:
                self._publish()
            except BaseException:
                self._discard("failed")
                raise
            self._state = "closed"
            unpublished.published(self._path)

    def _publish(self) -> None:
        if not self.tokens:
            raise ArgumentError(
                f"{self._path}: no document was appended, and a corpus has tokens; append some"
            )
        for split in self._splits.values():
            split.finish()
        manifest = own.Manifest(
            dtype=self._dtype.name,
            splits={name: split.writer.shards for name, split in self._splits.items() if split.tokens},
            layout=self._layout,
            vocab_size=self._vocab_size,
            eos=self._eos,
            tokenizer=None if self._tokenizer is None else tokenizers.save(self._tokenizer, self._temporary),
        )
        own.write(self._temporary, manifest)
        self._folder.__exit__(None, None, None)

    def abort(self) -> None:
        """Discard the documents that were appended; idempotent, and harmless after ``close``."""
        self._discard("aborted")

    def _discard(self, state: State) -> bool:
        """Close without publishing; return whether it was open."""
        if self._state != "open" or self._pid != os.getpid():
            return False
        with self._lock:
            self._state = state
            for split in self._splits.values():
                split.writer.close()
            error = ClosedError(state)
            self._folder.__exit__(ClosedError, error, None)
        return True

    def _loss(self) -> str:
        return f"{self.documents} documents were"

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            raise ClosedError(
                f"{self._path}: the writer belongs to the process that this one was forked from"
            )
        if self._state != "open":
            raise ClosedError(f"{self._path}: the writer is {self._state}; create another with {self._call}")

    def __repr__(self) -> str:
        return (
            f"<lowtide.CorpusWriter {self._path!r}, {self.tokens} tokens of {self._dtype.name} in "
            f"{self.documents} documents, {self._state}>"
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self._path}: a writer cannot be pickled or copied; create one folder per process")

    def __del__(self) -> None:
        if hasattr(self, "_state"):
            unpublished.collected(self)


class _Split:
    """The tokens of one split; the last ones are buffered in memory."""

    def __init__(self, writer: ShardWriter, dtype: np.dtype[Any]) -> None:
        self.writer = writer
        self.documents = 0
        self._buffer = np.empty(_BUFFER // dtype.itemsize, dtype.newbyteorder("<"))
        self._held = 0
        self._ends: list[int] = []

    @property
    def tokens(self) -> int:
        return self.writer.tokens + self._held

    def append(self, ids: npt.NDArray[Any]) -> None:
        while len(ids):
            part = ids[: len(self._buffer) - self._held]
            self._buffer[self._held : self._held + len(part)] = part
            self._held += len(part)
            ids = ids[len(part) :]
            if self._held == len(self._buffer):
                self._flush()

    def end_document(self) -> None:
        self._ends.append(self.tokens)
        self.documents += 1
        if len(self._ends) == _ENDS:
            self._flush()

    def finish(self) -> None:
        self._flush()
        self.writer.finish()

    def _flush(self) -> None:
        ends, done = np.array(self._ends, np.int64), 0
        while done < self._held:
            room = self.writer.room()
            part = self._buffer[done : min(done + room, self._held)]
            self.writer.append(part.view(np.uint8).data)
            done += len(part)
            # Before the next shard is started: a document that ends with a shard belongs to it.
            count = int(np.searchsorted(ends, self.writer.tokens, "right"))
            self.writer.end_documents(ends[:count])
            ends = ends[count:]
        self.writer.end_documents(ends)
        self._held = 0
        self._ends = []

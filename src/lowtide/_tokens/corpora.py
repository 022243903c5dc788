"""Corpora: any token corpus, in place, as one long array of tokens with documents in it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lowtide._io.reader import Cache, ReaderName
from lowtide._readonly import ReadOnly
from lowtide._tokens.formats import find
from lowtide._tokens.formats.documents import Documents
from lowtide._tokens.formats.tokens import Tokens
from lowtide._tokens.shards import Shards
from lowtide.errors import ArgumentError, ClosedError, FormatError, IndexingError

if TYPE_CHECKING:
    from lowtide._tokens.batches import Batches, OrderName

_STREAMED = 4 * 2**20  # bytes of tokens looked at at once


def corpus(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    split: str = "train",
    dtype: npt.DTypeLike | None = None,
    eos: int | None = None,
    reader: ReaderName = "auto",
    cache: Cache = "keep",
) -> Corpus:
    """Open a token corpus where it lies: a folder, a file, a list of files or a glob.

    Known by their content are nanoGPT's ``train.bin`` and ``val.bin``, the shards of llm.c and
    modded-nanogpt, Megatron-LM's ``.bin`` with ``.idx``, datatrove's ``.ds``, OLMo's raw ``.npy`` (with
    ``dtype``), true ``.npy``, LitData and MosaicML MDS data sets, and what ``lowtide prepare`` writes.
    Nothing is converted or copied. ``eos`` is the token that ends a document, where the format does not say.

    >>> np.arange(1000, dtype=np.uint16).tofile(tmp / "train.bin")
    >>> corpus = lowtide.corpus(tmp)
    >>> len(corpus), corpus.format, corpus[5:8]
    (1000, 'nanogpt', array([5, 6, 7], dtype=uint16))
    """
    return Corpus(find(path, split=split, dtype=dtype), eos=eos, reader=reader, cache=cache)


class Corpus(ReadOnly):
    """One long array of tokens, over one shard or ten thousand. Reads give ndarrays of their own."""

    _remedy = "open the corpus again with lowtide.corpus and other arguments"

    def __init__(
        self,
        found: Tokens,
        *,
        eos: int | None = None,
        reader: ReaderName = "auto",
        cache: Cache = "keep",
    ) -> None:
        if eos is not None and found.eos is not None and eos != found.eos:
            raise ArgumentError(f"eos is {eos}, but the corpus itself says that it is {found.eos}")
        self._found = found
        self._settings = {"eos": eos, "reader": reader, "cache": cache}
        self._eos = found.eos if eos is None else eos
        self._shards = Shards(found.segments, found.dtype, reader=reader, cache=cache)
        self._closed = False

    # What it is

    @property
    def name(self) -> str:
        """The first file, or the folder of several."""
        first = self._found.segments[0].path if self._found.segments else "corpus"
        return first if len(self._found.segments) == 1 else os.path.dirname(first)

    @property
    def eos(self) -> int | None:
        """The token that ends a document (that begins one, in llm.c's shards), where known."""
        return self._eos

    @property
    def shards(self) -> Shards:
        """The files with the tokens, one after another."""
        return self._shards

    @property
    def format(self) -> str:
        return self._found.format

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._found.dtype

    @property
    def vocab_size(self) -> int | None:
        """How many ids the tokenizer has, where the format tells."""
        return self._found.vocab_size

    @property
    def found(self) -> Tokens:
        """Where the tokens lie, and what else the format tells."""
        return self._found

    def __len__(self) -> int:
        return len(self.shards)

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return (
            f"<lowtide.Corpus {self.name!r}, {self.format}, {len(self)} tokens of {self.dtype} in "
            f"{len(self._found.segments)} {'shard' if len(self._found.segments) == 1 else 'shards'}{state}>"
        )

    # Reading

    def __getitem__(self, index: int | slice) -> npt.NDArray[Any]:
        self._check_open()
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            count = len(range(start, stop, step))
            if not count:
                return np.empty(0, self.dtype)
            low, high = min(start, start + (count - 1) * step), max(start, start + (count - 1) * step) + 1
            out = np.empty(high - low, self.dtype)
            self.shards.stream(low, out)
            return out if step == 1 else out[:: abs(step)][:: 1 if step > 0 else -1].copy()
        number = int(index)
        if not -len(self) <= number < len(self):
            raise IndexingError(f"{self.name}: token {number} is out of bounds for {len(self)} tokens")
        return self[number % len(self) : number % len(self) + 1].reshape(())

    def stream(self, nbytes: int = _STREAMED) -> Iterator[npt.NDArray[Any]]:
        """Every token once, in order, about ``nbytes`` at a time."""
        step = max(1, nbytes // self.dtype.itemsize)
        for start in range(0, len(self), step):
            yield self[start : start + step]

    @cached_property
    def documents(self) -> Documents:
        """The documents: how many, where each begins and ends.

        From the format's own index, or found by one pass for ``eos``; the result is kept beside the corpus.
        """
        if self._found.documents is not None:
            return self._found.documents
        if self.eos is None and self._found.index is None:
            raise ArgumentError(
                f"{self.name}: a {self.format} corpus does not say where its documents end; "
                f"open it with eos=, the token that ends them (50256 for GPT-2)"
            )
        from lowtide._tokens.scanning import scan

        return scan(self)

    def document(self, number: int) -> npt.NDArray[Any]:
        """The tokens of one document."""
        count = self.documents.count
        if not -count <= number < count:
            raise IndexingError(f"{self.name}: document {number} is out of bounds for {count} documents")
        start, stop = self.documents.bounds(number % count, number % count + 1)[0].tolist()
        return self[start:stop]

    def batches(
        self,
        batch_size: int,
        length: int,
        *,
        order: OrderName = "shuffle",
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        start: int = 0,
        prefetch: int = 2,
    ) -> Batches:
        """Batches for training: ``batches[step]`` depends on the seed, the step and the corpus alone.

        ``order`` is ``"shuffle"`` (windows that do not overlap, every token once an epoch, a new permutation
        and a new phase each time), ``"random"`` (anywhere, with replacement), ``"blocks"`` (long reads,
        shuffled in a bounded buffer), ``"sequential"``, ``"documents"`` (windows begin where documents
        begin), or ``"packed"`` (rows of whole documents by best fit; ``dropped_tokens`` says what that
        costs). ``batch_size`` is the global batch, of which each rank reads its rows.
        """
        from lowtide._tokens.batches import Batches, source_of

        self._check_open()
        self.check_ids()
        return Batches(
            source_of(self, length, order, seed),
            batch_size,
            length,
            rank=rank,
            world_size=world_size,
            start=start,
            prefetch=prefetch,
        )

    def largest(self, *, scan: bool = False) -> int:
        """The largest token id: of every token with ``scan``, else of some 250,000 spread over the corpus."""
        if scan or len(self) <= 2**18:
            return max((int(part.max()) for part in self.stream() if part.size), default=0)
        return int(self._spread(256, 1024).max())

    def check_ids(self) -> None:
        """Refuse a corpus with an id beyond its vocabulary, as far as a sample shows."""
        if self.vocab_size is not None and len(self):
            largest = self.largest()
            if largest >= self.vocab_size:
                raise FormatError(
                    f"{self.name}: holds token {largest}, and its vocabulary has {self.vocab_size} ids "
                    f"(0 to {self.vocab_size - 1}); another dtype, or another corpus' vocabulary?"
                )

    @cached_property
    def _content(self) -> str:
        """A hash of tokens spread over the corpus: cheap, and different for different corpora."""
        return hashlib.blake2b(self._spread(32, 256).tobytes(), digest_size=8).hexdigest()

    def fingerprint(self) -> dict[str, Any]:
        """What tells this corpus from another one."""
        return {
            "corpus_tokens": len(self),
            "corpus_dtype": str(self.dtype),
            "corpus_content": self._content,
        }

    def _spread(self, windows: int, length: int) -> npt.NDArray[Any]:
        length = min(length, len(self))
        starts = np.linspace(0, len(self) - length, windows).astype(np.int64)
        out = np.empty((windows, length), self.dtype)
        self.shards.submit_windows(starts, out).wait()
        return out

    # Its life

    def close(self) -> None:
        """Give descriptors back; idempotent."""
        self._closed = True
        self.shards.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.name}: the corpus was closed; open it again with lowtide.corpus")

    def __enter__(self) -> Corpus:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._found, self._settings)


def _restore(found: Tokens, settings: dict[str, Any]) -> Corpus:
    return Corpus(found, **settings)

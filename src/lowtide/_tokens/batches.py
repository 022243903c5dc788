"""Batches: ``batches[step]`` is a pure function of the seed, the step and the corpus.

It does not depend on ranks, workers, prefetch or restarts. Iterating gives the same batches, made ahead by
one thread, without end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from lowtide._io.extents import Ints
from lowtide._io.pending import Pending
from lowtide._io.prefetch import Prefetcher
from lowtide._readonly import ReadOnly
from lowtide._sizes import whole
from lowtide._tokens.document_ids import DocumentBatches, Kind, by_index, by_mark
from lowtide._tokens.packing import PackedSource
from lowtide._tokens.samplers import (
    BlockSampler,
    DocumentSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    ShuffleSampler,
)
from lowtide._tokens.windows import BlockWindows, Windows
from lowtide.errors import ArgumentError, ClosedError, StateError

if TYPE_CHECKING:
    from lowtide._tokens.corpora import Corpus
    from lowtide.torch import TorchBatches

OrderName = Literal["shuffle", "random", "blocks", "sequential", "documents", "packed"]
Pair = tuple[npt.NDArray[Any], npt.NDArray[Any]]

_FOREVER = 2**62


class Source(Protocol):
    """What batches are made from: a corpus, or a mixture of several."""

    epoch: int
    """Samples in an epoch."""
    dropped_tokens: int
    """Tokens that an epoch leaves out."""
    dtype: np.dtype[Any]

    def submit(self, first: int, out: npt.NDArray[Any]) -> Pending[Any]:
        """Start to fill each row of ``out`` with one sample, from number ``first`` on."""

    def samples(self, token: int, epoch: int) -> list[int]:
        """The samples of an epoch in which a token is seen."""

    def document_ids(self, first: int, x: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        """Which document each token of samples from ``first`` on belongs to, counted within its row."""

    def settings(self) -> dict[str, Any]:
        """What the samples depend on, to be compared when a state is loaded."""


class Batches(ReadOnly, Iterator[Pair]):
    """Pairs ``(x, y)`` of ``batch_size`` windows of ``length`` tokens, ``y`` one token later.

    Both are views of one buffer in the corpus' own dtype. With ``world_size`` ranks each reads its rows of
    the same global batch, so a run may stop on two ranks and go on with three.

    >>> batches = corpus.batches(batch_size=2, length=4, seed=1)
    >>> x, y = batches[10**9]
    >>> x.shape, bool((x[:, 1:] == y[:, :-1]).all())
    ((2, 4), True)
    >>> state = batches.state_dict()
    >>> first = next(batches)
    >>> batches.load_state_dict(state)
    >>> bool((next(batches)[0] == first[0]).all())
    True
    """

    _remedy = "ask the corpus for other batches, as in corpus.batches(...)"

    def __init__(
        self,
        source: Source,
        batch_size: int,
        length: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        start: int = 0,
        prefetch: int = 2,
    ) -> None:
        self._batch_size = whole("batch_size", batch_size, 1)
        self._length = length
        self._rank, self._world_size = whole("rank", rank, 0), whole("world_size", world_size, 1)
        if self.rank >= self.world_size:
            raise ArgumentError(f"rank must be below world_size, got rank {rank} of {world_size}")
        if self.batch_size < self.world_size:
            raise ArgumentError(
                f"batch_size is the global batch and must hold a row for each rank, got {batch_size} for "
                f"{world_size} ranks"
            )
        self._prefetch = whole("prefetch", prefetch, 0)
        self._source = source
        self._rows = (
            self.rank * self.batch_size // self.world_size,
            (self.rank + 1) * self.batch_size // self.world_size,
        )
        self._closed = False
        self._go_to(whole("start", start, 0))

    @property
    def batch_size(self) -> int:
        """Windows in the global batch, of which each rank has its part."""
        return self._batch_size

    @property
    def length(self) -> int:
        """Tokens in a window."""
        return self._length

    @property
    def rank(self) -> int:
        """Which of the ``world_size`` ranks this is."""
        return self._rank

    @property
    def world_size(self) -> int:
        """Ranks that share the global batch."""
        return self._world_size

    @property
    def step(self) -> int:
        """The step whose batch ``next`` will give."""
        return self._ahead.position

    @property
    def epoch_steps(self) -> int:
        """Whole steps in an epoch."""
        return self._source.epoch // self.batch_size

    @property
    def epoch_samples(self) -> int:
        """Windows in an epoch."""
        return self._source.epoch

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._source.dtype

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of this rank's ``x`` and ``y``."""
        return self._rows[1] - self._rows[0], self.length

    def __getitem__(self, step: int) -> Pair:
        return self.pair(self.read(step))

    def read(self, step: int, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """The ``length + 1`` tokens of each of this rank's windows of a step, into ``out`` if given."""
        if out is None:
            out = np.empty((self.shape[0], self.length + 1), self.dtype)
        self._submit(step, out).wait()
        return out

    def _submit(self, step: int, out: npt.NDArray[Any]) -> Pending[Any]:
        return self._source.submit(whole("step", step, 0) * self.batch_size + self._rows[0], out)

    def read_samples(self, numbers: Ints, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """The ``length + 1`` tokens of windows by their numbers, counted through all epochs."""
        if out is None:
            out = np.empty((len(numbers), self.length + 1), self.dtype)
        borders = np.flatnonzero(np.diff(numbers) != 1) + 1
        if len(borders) and isinstance(self._source, CorpusSource):
            self._source.gather(numbers, out)
            return out
        at = 0
        # Neighbours in number are one read.
        for run in np.split(numbers, borders):
            if len(run):
                self._source.submit(int(run[0]), out[at : at + len(run)]).wait()
                at += len(run)
        return out

    def torch(self, device: Any = "cpu", dtype: Any = None) -> TorchBatches:
        """The batches as contiguous tensors on ``device``, of ``dtype`` (int64 unless said), made ahead."""
        from lowtide.torch import TorchBatches

        return TorchBatches(self, device, dtype, self._prefetch)

    def with_documents(self, kind: Kind = "ids") -> DocumentBatches:
        """These batches with a third array: document ids like ``x``, or ``cu_seqlens``, for attention masks.

        >>> bounds = lowtide.corpus(tmp / "given" / "train.bin", eos=7).batches(1, 6, order="sequential")
        >>> x, y, ids = bounds.with_documents()[1]
        >>> x.tolist(), ids.tolist()
        ([[6, 7, 8, 9, 10, 11]], [[0, 0, 1, 1, 1, 1]])
        """
        return DocumentBatches(self, kind)

    def document_ids(self, step: int, x: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        """Which document each token of a step's ``x`` belongs to, counted within its row."""
        return self._source.document_ids(step * self.batch_size + self._rows[0], x)

    @property
    def dropped_tokens(self) -> int:
        """Tokens that are in no window of an epoch; for ``order="packed"`` those that packing drops."""
        return self._source.dropped_tokens

    @staticmethod
    def pair(buffer: npt.NDArray[Any]) -> Pair:
        """``x`` and ``y`` as views of one buffer."""
        return buffer[:, :-1], buffer[:, 1:]

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Pair:
        return self.next_numbered()[1]

    def next_numbered(self) -> tuple[int, Pair]:
        """The next batch and its step: threads may share these batches."""
        if self._closed:
            raise ClosedError("the batches were closed; ask the corpus for new ones")
        step, tokens = self._ahead.next_numbered()
        return step, self.pair(tokens)

    def when(self, token: int, epoch: int = 0) -> list[int]:
        """The steps of an epoch at which a token of the corpus is seen, from the inverse permutation.

        >>> batches = corpus.batches(batch_size=2, length=4, seed=1)
        >>> step = batches.when(17)[0]
        >>> 17 in batches[step][0] or 17 in batches[step][1]
        True
        """
        samples = self._source.samples(whole("token", token, 0), whole("epoch", epoch, 0))
        return sorted({sample // self.batch_size for sample in samples})

    def state_dict(self) -> dict[str, Any]:
        """The step, and a fingerprint of the corpus and the settings."""
        return {"step": self.step, "settings": self._settings()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on at the state's step; an error says what differs when it is of other data or settings."""
        self._go_to(self.check_state(state))

    def check_state(self, state: Mapping[str, Any]) -> int:
        """The step of a state, if it is of this corpus and these settings."""
        step, saved, now = state.get("step"), state.get("settings"), self._settings()
        if not isinstance(step, int) or step < 0 or not isinstance(saved, Mapping):
            raise StateError(
                f"no state of batches: expected 'step' and 'settings', got {sorted(map(str, state))}"
            )
        wrong = [
            f"{name} was {saved.get(name)!r} and is {now.get(name)!r}"
            for name in sorted({*saved, *now})
            if saved.get(name) != now.get(name)
        ]
        if wrong:
            raise StateError(f"the state was saved with another corpus or other settings: {'; '.join(wrong)}")
        return step

    def _settings(self) -> dict[str, Any]:
        return {"batch_size": self.batch_size, "length": self.length, **self._source.settings()}

    def _go_to(self, step: int) -> None:
        if hasattr(self, "_ahead"):
            self._ahead.close()
        self._ahead: Prefetcher[npt.NDArray[Any]] = Prefetcher(
            self._submitter(), step, _FOREVER, self._prefetch
        )

    def _submitter(self) -> Callable[[int], Pending[npt.NDArray[Any]]]:
        """What submits a step, without a reference to these batches: dropping them ends the thread."""
        source, rows, shape = self._source, self._rows, (self.shape[0], self.length + 1)
        batch_size, dtype = self.batch_size, self.dtype

        def submit(step: int) -> Pending[npt.NDArray[Any]]:
            out = np.empty(shape, dtype)
            return source.submit(step * batch_size + rows[0], out).then(lambda _: out)

        return submit

    def __getstate__(self) -> dict[str, Any]:
        """Settings and the step, no more: what was made ahead can be made again."""
        return {**self.__dict__, "_ahead": self.step}

    def __setstate__(self, state: dict[str, Any]) -> None:
        step = state.pop("_ahead")
        self.__dict__.update(state)
        self._go_to(step)

    def close(self) -> None:
        """End the prefetch thread; idempotent."""
        self._closed = True
        self._ahead.close()

    def __enter__(self) -> Batches:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class CorpusSource:
    """Samples of one corpus in one order."""

    def __init__(self, corpus: Corpus, length: int, order: OrderName, seed: int) -> None:
        self._corpus = corpus
        self.dtype = corpus.dtype
        self._order, self._seed, self._length = order, seed, length
        self._sampler = _sampler(corpus, length, order, seed)
        self.epoch = self._sampler.epoch
        self.dropped_tokens = max(0, len(corpus) - self.epoch * length)
        windows: Windows | BlockWindows = Windows(corpus.shards, self._sampler)
        if isinstance(self._sampler, BlockSampler):
            windows = BlockWindows(corpus.shards, self._sampler)
        self._windows = windows

    def submit(self, first: int, out: npt.NDArray[Any]) -> Pending[Any]:
        return self._windows.submit(first, out)

    def starts(self, first: int, last: int) -> Ints:
        """Where the windows of samples begin."""
        return self._sampler.starts(first, last)

    def gather(self, numbers: Ints, out: npt.NDArray[Any]) -> None:
        """Samples from here and there, in one read."""
        self._corpus.shards.submit_windows(self._sampler.starts_at(numbers), out).wait()

    def samples(self, token: int, epoch: int) -> list[int]:
        if token >= len(self._corpus):
            raise ArgumentError(f"token {token} is beyond the corpus of {len(self._corpus)} tokens")
        return self._sampler.samples(token, epoch)

    def document_ids(self, first: int, x: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        found = self._corpus.found
        if self._corpus.eos is not None and found.documents is None:
            return by_mark(x, self._corpus.eos, found.marks)
        return by_index(self._corpus.documents, self.starts(first, first + len(x)), x.shape[1])

    def settings(self) -> dict[str, Any]:
        return {"order": self._order, "seed": self._seed, **self._corpus.fingerprint()}

    def __reduce__(self) -> tuple[Any, ...]:
        # The windows hold a lock, and perhaps a buffer of blocks.
        return CorpusSource, (self._corpus, self._length, self._order, self._seed)


def source_of(corpus: Corpus, length: int, order: OrderName, seed: int) -> Source:
    """The samples of a corpus in an order."""
    length = whole("length", length, 1)
    if order == "packed":
        return PackedSource(corpus, length, seed)
    return CorpusSource(corpus, length, order, seed)


def _sampler(corpus: Corpus, length: int, order: OrderName, seed: int) -> Sampler:
    tokens = len(corpus)
    if tokens < length + 1:
        raise ArgumentError(
            f"{corpus.name}: has {tokens} tokens, too few for one window of {length} and its target; "
            f"use a length of at most {max(0, tokens - 1)}"
        )
    if order == "shuffle":
        return ShuffleSampler(tokens, length, seed)
    if order == "random":
        return RandomSampler(tokens, length, seed)
    if order == "blocks":
        return BlockSampler(tokens, length, seed, corpus.dtype.itemsize)
    if order == "sequential":
        return SequentialSampler(tokens, length)
    if order == "documents":
        return DocumentSampler(corpus.documents, tokens, length, seed)
    raise ArgumentError(
        f"order must be shuffle, random, blocks, sequential, documents or packed, got {order!r}"
    )

"""Batches: ``batches[step]`` is a pure function of the seed, the step and the corpus.

It does not depend on ranks, workers, prefetch or restarts. Iterating gives the same batches without end,
prefetched by one thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lowtide._closing import Closing
from lowtide._io.buffers import Buffers
from lowtide._io.extents import Ints
from lowtide._io.prefetch import Prefetcher
from lowtide._ranks import Rank, ranks
from lowtide._readonly import ReadOnly
from lowtide._sizes import parse_size, whole
from lowtide._tokens.ahead import Ahead
from lowtide._tokens.blocks import Blocks
from lowtide._tokens.documents import DocumentBatches, DocumentKind
from lowtide._tokens.packing import Packed
from lowtide._tokens.sampling import DocumentStarts, Order, Random, Samples, Sequential, Shuffle, Windows
from lowtide._tokens.steps import Check, Steps
from lowtide.errors import ArgumentError, ClosedError, StateError

if TYPE_CHECKING:
    from lowtide._tokens.corpus import Corpus
    from lowtide.torch import TorchBatches

Pair = tuple[npt.NDArray[Any], npt.NDArray[Any]]

_FOREVER = 2**62

ORDERS: list[type[Order]] = [Shuffle, Random, Blocks, Sequential, DocumentStarts, Packed]


def samples_of(corpus: Corpus, length: int, order: str, seed: int) -> Samples:
    """The samples of a corpus in the order of that name."""
    length, seed = whole("length", length, 1), whole("seed", seed)
    for kind in ORDERS:
        if kind.name == order:
            return kind(corpus, length, seed)
    *names, last = [kind.name for kind in ORDERS]
    raise ArgumentError(f"order must be {', '.join(names)} or {last}, got {order!r}")


class Batches(ReadOnly, Closing, Iterator[Pair]):
    """Pairs ``(x, y)`` of ``batch_size`` windows of ``length`` tokens, ``y`` one token later.

    Both are views of one buffer in the corpus' own dtype. With ``world_size`` ranks each reads its rows of
    the same global batch, so a run may stop on two ranks and resume on three.

    Examples
    --------
    >>> batches = corpus.batches(batch_size=2, length=4, seed=1)
    >>> x, y = batches[10**9]
    >>> x.shape, bool((x[:, 1:] == y[:, :-1]).all())
    ((2, 4), True)
    """

    _remedy = "ask the corpus for other batches, as in corpus.batches(...)"

    def __init__(
        self,
        samples: Samples,
        batch_size: int,
        length: int,
        *,
        rank: Rank = None,
        world_size: int | None = None,
        start: int = 0,
        prefetch: int = 2,
        budget: int | str | None = None,
        check: Check | None = None,
    ) -> None:
        batch_size, length = whole("batch_size", batch_size, 1), whole("length", length, 1)
        self._rank, self._world_size = ranks(rank, world_size)
        if batch_size < self.world_size:
            raise ArgumentError(
                f"batch_size is the global batch and must hold a row for each rank, got {batch_size} for "
                f"{self.world_size} ranks"
            )
        self._prefetch = whole("prefetch", prefetch, 0)
        rows = (self.rank * batch_size // self.world_size, (self.rank + 1) * batch_size // self.world_size)
        self._samples = samples
        self._options: dict[str, Any] = {"prefetch": prefetch, "budget": budget, "check": check}
        nbytes = (rows[1] - rows[0]) * (length + 1) * samples.dtype.itemsize
        # One is in the consumer's hands, and the loop still holds it while it takes the next.
        buffers = Buffers(nbytes, most=self._prefetch + 2)
        memory = 0 if budget is None else parse_size(budget)
        ahead = None
        if isinstance(samples, Windows) and samples.reads_ahead and (memory or self._prefetch):
            ahead = Ahead(samples, batch_size, rows, self._prefetch > 0, memory)
        self._steps = Steps(samples, batch_size, length, rows, check, buffers, ahead)
        self._closed = False
        self._seek(whole("start", start, 0))

    @property
    def batch_size(self) -> int:
        """Windows in the global batch, of which each rank has its part."""
        return self._steps.batch_size

    @property
    def length(self) -> int:
        """Tokens in a window."""
        return self._steps.length

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
        """The step of the batch that ``next`` will give."""
        return self._ahead.position

    @property
    def epoch_steps(self) -> int:
        """Complete steps in an epoch."""
        return self.epoch_samples // self.batch_size

    @property
    def epoch_samples(self) -> int:
        """Windows in an epoch."""
        return self._samples.epoch_samples

    @property
    def dropped_tokens(self) -> int:
        """Tokens that are in no window of an epoch; for ``order="packed"`` those that packing drops."""
        return self._samples.dropped_tokens

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the tokens."""
        return self._samples.dtype

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of this rank's ``x`` and ``y``."""
        first, last = self._steps.rows
        return last - first, self.length

    def __getitem__(self, step: int) -> Pair:
        return pair(self.read(step))

    def read(self, step: int, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Read the ``length + 1`` tokens of each of this rank's windows of a step, as one array.

        Parameters
        ----------
        step
            The number of the batch.
        out
            Array to read into, of shape ``(rows, length + 1)`` and the corpus' dtype; a new one without it.

        Examples
        --------
        >>> corpus.batches(batch_size=2, length=4, order="sequential").read(1)
        array([[ 8,  9, 10, 11, 12],
               [12, 13, 14, 15, 16]], dtype=uint16)
        """
        return self._steps.submit(whole("step", step, 0), out).wait()

    def read_samples(self, numbers: Ints, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Read the ``length + 1`` tokens of windows by their numbers.

        Parameters
        ----------
        numbers
            Which windows, in any order, counted through all epochs.
        out
            Array to read into, of shape ``(len(numbers), length + 1)``; a new one without it.

        Examples
        --------
        >>> corpus.batches(batch_size=2, length=4, order="sequential").read_samples(np.array([7, 0]))
        array([[28, 29, 30, 31, 32],
               [ 0,  1,  2,  3,  4]], dtype=uint16)
        """
        if out is None:
            out = np.empty((len(numbers), self.length + 1), self.dtype)
        self._samples.gather(numbers, out)
        return out

    def torch(self, device: Any = "cpu", dtype: Any = None) -> TorchBatches:
        """These batches as contiguous tensors, prefetched by a thread.

        Parameters
        ----------
        device
            The device of the tensors.
        dtype
            Their type; ``torch.int64`` by default.

        Examples
        --------
        >>> x, y = corpus.batches(batch_size=2, length=4).torch("cpu")[0]
        >>> x.shape, x.dtype
        (torch.Size([2, 4]), torch.int64)
        """
        from lowtide.torch import TorchBatches

        return TorchBatches(self, device, dtype, self._prefetch)

    def with_documents(self, kind: DocumentKind = "ids") -> DocumentBatches:
        """These batches with the documents of ``x``, for attention masks.

        Parameters
        ----------
        kind
            ``"ids"`` for an array like ``x``, in which tokens of a row have the same number if they are of
            the same document; ``"cu_seqlens"`` for the borders of the documents in ``x.ravel()``, from 0 to
            its size, as kernels for sequences of different lengths take them. No document crosses a row.

        Examples
        --------
        >>> batches = lowtide.corpus(tmp / "given" / "train.bin", eos=7).batches(1, 6, order="sequential")
        >>> batch = batches.with_documents()[1]
        >>> x, y, ids = batch
        >>> x.tolist(), ids.tolist(), batch.position_ids.tolist(), batch.max_seqlen
        ([[6, 7, 8, 9, 10, 11]], [[0, 0, 1, 1, 1, 1]], [[0, 1, 0, 1, 2, 3]], 4)
        """
        return DocumentBatches(self, kind)

    def _for_rank(self, rank: int, world_size: int) -> Batches:
        """The same batches, of which another rank reads its rows."""
        options = {**self._options, "rank": rank, "world_size": world_size, "start": self.step}
        return type(self)(self._samples, self.batch_size, self.length, **options)

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Pair:
        return self._next_numbered()[1]

    def _next_numbered(self) -> tuple[int, Pair]:
        """The next batch and its step: threads may share these batches."""
        if self._closed:
            raise ClosedError("the batches were closed; ask the corpus for new ones")
        step, tokens = self._ahead.next_numbered()
        return step, pair(tokens)

    def when(self, token: int, epoch: int = 0) -> list[int]:
        """The steps of an epoch at which a token of the corpus is seen, from the inverse permutation.

        Parameters
        ----------
        token
            Position of the token in the corpus.
        epoch
            The number of the epoch.

        Examples
        --------
        >>> batches = corpus.batches(batch_size=2, length=4, seed=1)
        >>> step = batches.when(17)[0]
        >>> 17 in batches[step][0] or 17 in batches[step][1]
        True
        """
        if whole("token", token, 0) >= self._samples.tokens:
            raise ArgumentError(f"token {token} is out of bounds for {self._samples.tokens} tokens")
        numbers = self._samples.containing(token, whole("epoch", epoch, 0))
        return sorted({number // self.batch_size for number in numbers})

    def state_dict(self) -> dict[str, Any]:
        """The step, and a fingerprint of the corpus and the settings.

        Examples
        --------
        >>> batches = corpus.batches(batch_size=2, length=4, seed=1)
        >>> state = batches.state_dict()
        >>> first = next(batches)
        >>> batches.load_state_dict(state)
        >>> bool((next(batches)[0] == first[0]).all())
        True
        """
        return {"step": self.step, "settings": self._settings()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume at the step of a state; an error lists what differs if it is of other data or settings.

        Parameters
        ----------
        state
            What ``state_dict`` returned.

        Examples
        --------
        >>> batches = corpus.batches(batch_size=2, length=4, seed=1)
        >>> batches.load_state_dict({**batches.state_dict(), "step": 12345})
        >>> batches.step
        12345
        """
        self._seek(self._check_state(state))

    def _check_state(self, state: Mapping[str, Any]) -> int:
        """The step of a state, if it is of this corpus and these settings."""
        step, saved, now = state.get("step"), state.get("settings"), self._settings()
        if not isinstance(step, int) or step < 0 or not isinstance(saved, Mapping):
            raise StateError(
                f"not a state of batches (expected 'step' and 'settings', got {sorted(map(str, state))}); "
                f"pass what state_dict() returned"
            )
        saved = _plain(saved)
        differences = [
            f"{name} was {saved.get(name)!r} and is {now.get(name)!r}"
            for name in sorted({*saved, *now})
            if saved.get(name) != now.get(name)
        ]
        if differences:
            remedy, size = "", saved.get("batch_size")
            if isinstance(size, int) and {**saved, "batch_size": self.batch_size} == now:
                # Samples are numbered through all epochs, so their number is the place, whatever the batch.
                start = -(-step * size // self.batch_size)
                remedy = f"; to continue behind its {step * size} windows pass start={start} and no state"
            raise StateError(
                f"the state was saved with another corpus or other settings: {'; '.join(differences)}{remedy}"
            )
        return step

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = _plain(
            {"batch_size": self.batch_size, "length": self.length, **self._samples.settings()}
        )
        return settings

    def _seek(self, step: int) -> None:
        if hasattr(self, "_ahead"):
            self._ahead.close()
        # It has no reference to these batches: dropping them ends the thread.
        submit = self._steps.submit
        self._ahead: Prefetcher[npt.NDArray[Any]] = Prefetcher(submit, step, _FOREVER, self._prefetch)

    def __getstate__(self) -> dict[str, Any]:
        """Settings and the step, no more: what was prefetched can be read again."""
        return {**self.__dict__, "_ahead": self.step}

    def __setstate__(self, state: dict[str, Any]) -> None:
        step = state.pop("_ahead")
        self.__dict__.update(state)
        self._seek(step)

    def close(self) -> None:
        """End the prefetch thread; idempotent."""
        self._closed = True
        self._ahead.close()
        if self._steps.ahead is not None:
            self._steps.ahead.release()


def _plain(value: Any) -> Any:
    """The value as JSON would give it back: with strings as keys, and no integers of NumPy."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return int(value) if isinstance(value, np.integer) else value


def pair(buffer: npt.NDArray[Any]) -> Pair:
    """``x`` and ``y`` as views of one buffer."""
    return buffer[:, :-1], buffer[:, 1:]

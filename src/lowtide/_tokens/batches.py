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
from lowtide._tokens.schedules import Phase, Schedule, Setting
from lowtide._tokens.states import checked_step, plain
from lowtide._tokens.steps import Check, StepRange, Steps
from lowtide._tokens.stretches import Stretch, Stretches
from lowtide.errors import ArgumentError, ClosedError

if TYPE_CHECKING:
    from lowtide._tokens.corpus import Corpus
    from lowtide.torch import TorchBatches

Pair = tuple[npt.NDArray[Any], npt.NDArray[Any]]

FOREVER = 2**62
"""Steps: nobody gets there."""

ORDERS: list[type[Order]] = [Shuffle, Random, Blocks, Sequential, DocumentStarts, Packed]


def samples_of(corpus: Corpus, length: int, order: str, seed: int) -> Samples:
    """The samples of a corpus in the order of that name."""
    return order_called(order)(corpus, whole("length", length, 1), whole("seed", seed))


def order_called(order: str) -> type[Order]:
    """The class of an order."""
    for kind in ORDERS:
        if kind.name == order:
            return kind
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
        samples: Samples | Stretches,
        batch_size: Setting,
        length: Setting,
        *,
        rank: Rank = None,
        world_size: int | None = None,
        start: int = 0,
        prefetch: int = 2,
        budget: int | str | None = None,
        check: Check | None = None,
    ) -> None:
        self._schedule = Schedule(batch_size, length)
        self._rank, self._world_size = ranks(rank, world_size)
        if (least := min(phase.batch_size for phase in self._schedule.phases)) < self.world_size:
            raise ArgumentError(
                f"batch_size is the global batch and must hold a row for each rank, got {least} for "
                f"{self.world_size} ranks"
            )
        self._prefetch = whole("prefetch", prefetch, 0)
        self._stretches = [(samples, 0)] if isinstance(samples, Samples) else samples
        self._samples = self._stretches[0][0]
        self._options: dict[str, Any] = {"prefetch": prefetch, "budget": budget, "check": check}
        memory = 0 if budget is None else parse_size(budget)
        self._steps = Steps([self._range(phase, memory, check) for phase in self._schedule.phases])
        self._closed = False
        self._seek(whole("start", start, 0))

    def _range(self, phase: Phase, memory: int, check: Check | None) -> StepRange:
        size, ranks = phase.batch_size, self.world_size
        rows = (self.rank * size // ranks, (self.rank + 1) * size // ranks)
        samples, first = self._stretches[phase.stretch]
        origin = first + phase.sample(0)
        nbytes = (rows[1] - rows[0]) * (phase.length + 1) * samples.dtype.itemsize
        # One is in the consumer's hands, and the loop still holds it while it takes the next.
        buffers = Buffers(nbytes, most=self._prefetch + 2)
        ahead = None
        if isinstance(samples, Windows) and samples.reads_ahead and (memory or self._prefetch):
            ahead = Ahead(samples, size, rows, self._prefetch > 0, memory, origin)
        return StepRange(phase.step, origin, samples, size, phase.length, rows, check, buffers, ahead)

    @property
    def batch_size(self) -> int:
        """Windows in the global batch, which all ranks share; of the next step if it changes."""
        return self._steps.at(self.step).batch_size

    @property
    def length(self) -> int:
        """Tokens in a window; of the next step if it changes."""
        return self._steps.at(self.step).length

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
        """Complete steps in an epoch; in the first one if batch size or length change."""
        in_stretches = self._first_epoch()
        last = len(in_stretches) - 1
        return self._schedule.step_of(last, in_stretches[last])

    @property
    def epoch_samples(self) -> int:
        """Windows in an epoch; in the first one if the length changes."""
        return sum(self._first_epoch())

    def _first_epoch(self) -> list[int]:
        """Windows of the first epoch, of each length that it has."""
        if len(self._stretches) == 1:
            return [self._samples.epoch_samples]
        counts: list[int] = []
        for (samples, first), (_, count) in zip(self._stretches, self._schedule.stretches, strict=True):
            room = samples.in_epoch(0) if isinstance(samples, Stretch) else samples.epoch_samples - first
            counts.append(room if count is None else max(0, min(room, count)))
            if count is None or counts[-1] < count:
                break
        return counts

    @property
    def dropped_tokens(self) -> int:
        """Tokens that are in no window of an epoch; for ``order="packed"`` those that packing drops."""
        if len(self._stretches) == 1:
            return self._samples.dropped_tokens
        counts = zip(self._first_epoch(), self._schedule.stretches, strict=False)
        used = sum(count * length for count, (length, _) in counts)
        return max(0, self._samples.tokens - used)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the tokens."""
        return self._samples.dtype

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of this rank's ``x`` and ``y``; of the next step if it changes."""
        return self._steps.at(self.step).shape

    def __repr__(self) -> str:
        settings = {**self._settings(), "rank": self.rank, "world_size": self.world_size}
        names = ("batch_size", "length", "order", "seed", "rank", "world_size")
        listed = ", ".join(f"{name}={settings[name]!r}" for name in names if name in settings)
        return f"<lowtide.{type(self).__name__} {listed}, step={self.step}>"

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
            Which windows, in any order, counted through all epochs. Not for a ``length`` that changes.
        out
            Array to read into, of shape ``(len(numbers), length + 1)``; a new one without it.

        Examples
        --------
        >>> corpus.batches(batch_size=2, length=4, order="sequential").read_samples(np.array([7, 0]))
        array([[28, 29, 30, 31, 32],
               [ 0,  1,  2,  3,  4]], dtype=uint16)
        """
        self._check_one_length()
        if out is None:
            out = np.empty((len(numbers), self.length + 1), self.dtype)
        self._samples.gather(numbers, out)
        return out

    def _check_one_length(self) -> None:
        if len(self._stretches) > 1:
            raise ArgumentError(
                f"windows have no numbers where length changes ({self._schedule.lengths}); read steps, or "
                "pass one length"
            )

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
        """The same batches for another rank."""
        options = {**self._options, "rank": rank, "world_size": world_size, "start": self.step}
        schedule = self._schedule
        return type(self)(self._stretches, schedule.batch_sizes, schedule.lengths, **options)

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Pair:
        return pair(self._opened().next_numbered()[1])

    def _opened(self) -> Prefetcher[npt.NDArray[Any]]:
        """The tokens of the next steps."""
        if self._closed:
            raise ClosedError("the batches were closed; ask the corpus for new ones")
        return self._ahead

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
        steps: set[int] = set()
        for nth, (samples, first) in enumerate(self._stretches):
            count = self._schedule.stretches[nth][1]
            if len(self._stretches) > 1 and isinstance(samples, Random):
                raise ArgumentError("random windows have no epochs where length changes; pass one length")
            for number in samples.containing(token, whole("epoch", epoch, 0)):
                if first <= number and (count is None or number < first + count):
                    steps.add(self._schedule.step_of(nth, number - first))
        return sorted(steps)

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
        # Which windows a length takes depends on how many there will be, and so on batch sizes to come.
        fixed = len(self._stretches) > 1
        return checked_step(state, self._settings(), self._schedule.batch_sizes, fixed)

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = plain({**self._schedule.settings, **self._samples.settings()})
        return settings

    def _seek(self, step: int) -> None:
        if hasattr(self, "_ahead"):
            self._ahead.close()
        # It has no reference to these batches: dropping them ends the thread.
        submit = self._steps.submit
        self._ahead: Prefetcher[npt.NDArray[Any]] = Prefetcher(submit, step, FOREVER, self._prefetch)

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
        self._steps.release()


def pair(buffer: npt.NDArray[Any]) -> Pair:
    """``x`` and ``y`` as views of one buffer."""
    return buffer[:, :-1], buffer[:, 1:]

"""PyTorch: batches as tensors, and data sets for its loaders."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide._io.pending import Pending
from lowtide._io.prefetch import Prefetcher
from lowtide._readonly import ReadOnly
from lowtide._sizes import whole
from lowtide._tokens.batches import Batches
from lowtide.errors import ArgumentError, ClosedError, IndexingError, MissingExtraError, StateError

try:
    import torch as torch  # the other adapters take it from here, so that its absence is told in one way
    from torch.utils import data
except ImportError as error:
    raise MissingExtraError("PyTorch is not installed; pip install 'lowtide[torch]'") from error

Pair = tuple[torch.Tensor, torch.Tensor]
Host = torch.Tensor | Pair
"""What is made ahead: tokens in pinned memory for a GPU, else the finished x and y."""

_FOREVER = 2**62


class Destination:
    """Where tokens go and as what, checked before any training.

    ``submit`` reads into memory of the host, in whichever thread; ``take`` hands x and y over and belongs in
    the thread that uses them: on a GPU that puts the copy into that thread's own stream, in order with the
    work that follows, whatever stream that is.
    """

    def __init__(
        self, device: str | torch.device, dtype: torch.dtype | None, tokens: np.dtype[Any], length: int
    ) -> None:
        self.device = _usable(device)
        self.dtype = torch.int64 if dtype is None else dtype
        self._check_dtype(tokens)
        self._tokens, self._width = tokens, length + 1
        self._pinned = self.device.type == "cuda"

    def _check_dtype(self, tokens: np.dtype[Any]) -> None:
        wanted: object = self.dtype  # said by the caller, who may be mistaken
        if not isinstance(wanted, torch.dtype):
            raise ArgumentError(f"dtype must be one of PyTorch's, such as torch.int64, got {wanted!r}")
        if wanted.is_floating_point or wanted.is_complex or wanted in (torch.bool, torch.int64):
            if wanted is not torch.int64:
                raise ArgumentError(f"tokens are integers, got dtype {wanted}; use torch.int64")
            return
        holds, has = torch.iinfo(wanted), np.iinfo(tokens)
        if holds.min > has.min or holds.max < has.max:
            raise ArgumentError(f"dtype {wanted} does not hold every {tokens} of the corpus; use torch.int64")

    def submit(self, rows: int, submit: Callable[[npt.NDArray[Any]], Pending[Any]]) -> Pending[Host]:
        """``rows`` windows, read by ``submit`` into a buffer of the corpus' own dtype."""
        pinned = self._pinned_memory(rows) if self._pinned else None
        tokens = np.empty((rows, self._width), self._tokens) if pinned is None else pinned.numpy()

        def finish(_: Any) -> Host:
            if pinned is not None:
                return pinned
            x, y = Batches.pair(tokens)
            return _widened(x, self.dtype), _widened(y, self.dtype)

        return submit(tokens).then(finish)

    def _pinned_memory(self, rows: int) -> torch.Tensor:
        kind = torch.from_numpy(np.empty(0, self._tokens)).dtype
        # The current GPU is each thread's own. Without this, pinning would make a context on GPU 0 in the
        # prefetch threads of all ranks: https://github.com/pytorch/pytorch/issues/58626
        with torch.cuda.device(self.device):
            return torch.empty((rows, self._width), dtype=kind, device="cpu", pin_memory=True)

    def take(self, made: Host) -> Pair:
        """x and y on the device, contiguous and of ``dtype``."""
        if not isinstance(made, torch.Tensor):
            if self.device.type == "cpu":
                return made  # even a copy that is none gives way to the reading thread: 0.6 ms for 0.1
            return made[0].to(self.device), made[1].to(self.device)
        # Does not wait. PyTorch reuses pinned memory only when the copies out of it have ended.
        there = made.to(self.device, non_blocking=True)
        return self._wide(there[:, :-1]), self._wide(there[:, 1:])

    def _wide(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens.to(self.dtype, copy=True, memory_format=torch.contiguous_format)


def _usable(device: str | torch.device) -> torch.device:
    try:
        made = torch.device(device)
        torch.empty(0, device=made)
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        said = str(error).partition("\n")[0].rstrip(".")
        raise ArgumentError(f"PyTorch cannot use device {str(device)!r} here: {said}; try 'cpu'") from error
    # A name without a number means the current GPU, which is another one in another thread.
    return torch.device("cuda", torch.cuda.current_device()) if made == torch.device("cuda") else made


def _widened(tokens: npt.NDArray[Any], dtype: torch.dtype) -> torch.Tensor:
    """A contiguous tensor of its own.

    By NumPy: PyTorch would start a team of threads for each thread that asks, also for so little work.
    """
    return torch.from_numpy(tokens.astype(_numpy_dtype(dtype), "C"))


@cache
def _numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    return torch.empty(0, dtype=dtype, device="cpu").numpy().dtype  # whatever torch.set_default_device says


class TorchBatches(ReadOnly, Iterator[Pair]):
    """The batches as tensors on ``device``, contiguous and of ``dtype``, read ahead by one thread.

    To a GPU the tokens travel in the corpus' own dtype, from pinned memory and without waiting, and are
    widened there: a quarter of the bytes of int64.

    >>> batches = corpus.batches(batch_size=2, length=4, seed=1).torch()
    >>> x, y = next(batches)
    >>> x.dtype, x.is_contiguous(), y.view(-1).shape
    (torch.int64, True, torch.Size([8]))
    >>> batches.step, bool((batches[0][0] == x).all())
    (1, True)
    >>> batches.close()
    """

    _remedy = "ask for other batches, as in corpus.batches(...).torch()"

    def __init__(
        self,
        batches: Batches,
        device: str | torch.device = "cpu",
        dtype: torch.dtype | None = None,
        prefetch: int = 2,
    ) -> None:
        self._batches = batches
        self._to = Destination(device, dtype, batches.dtype, batches.length)
        self._prefetch = prefetch
        self._closed = False
        self._go_to(batches.step)

    def _go_to(self, step: int) -> None:
        batches, to = self._batches, self._to  # not self: dropping these batches ends the thread
        self._ahead: Prefetcher[Host] = Prefetcher(
            lambda step: _submit(batches, step, to), step, _FOREVER, self._prefetch
        )

    def __getitem__(self, step: int) -> Pair:
        return self._to.take(_submit(self._batches, step, self._to).wait())

    def __iter__(self) -> TorchBatches:
        return self

    def __next__(self) -> Pair:
        if self._closed:
            raise ClosedError("the batches were closed; ask for new ones with batches.torch()")
        return self._to.take(self._ahead.next())

    @property
    def step(self) -> int:
        """The step whose batch ``next`` will give."""
        return self._ahead.position

    def state_dict(self) -> dict[str, Any]:
        """The step, and a fingerprint of the corpus and the settings; the NumPy batches have the same."""
        return {**self._batches.state_dict(), "step": self.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on at the state's step; an error says what differs when it is of other data or settings."""
        step = self._batches.check_state(state)
        self._ahead.close()
        self._go_to(step)

    def close(self) -> None:
        """End the thread; idempotent."""
        self._closed = True
        self._ahead.close()

    def __enter__(self) -> TorchBatches:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _submit(batches: Batches, step: int, to: Destination) -> Pending[Host]:
    return to.submit(batches.shape[0], lambda out: batches._submit(step, out))


class MapDataset(data.Dataset[Any]):
    """One epoch of single windows by number, for samplers and the Hugging Face ``Trainer``.

    An item is ``(x, y)``, or with ``as_dict`` what that trainer wants: ``input_ids``, and equal ``labels``
    which its models shift themselves. ``DataLoader`` asks for whole batches, and each is one read. The
    loader decides about batches, ranks and order, so ``batch_size`` and ``rank`` of ``batches`` do not
    matter here.

    >>> windows = MapDataset(corpus.batches(batch_size=1, length=4, order="sequential"))
    >>> len(windows), windows[2]
    (249, (tensor([ 8,  9, 10, 11]), tensor([ 9, 10, 11, 12])))
    """

    def __init__(self, batches: Batches, *, as_dict: bool = False, epoch: int = 0) -> None:
        self._batches = _own(batches)
        self._to = Destination("cpu", None, batches.dtype, batches.length)
        self._as_dict = as_dict
        self.epoch = whole("epoch", epoch, 0)

    def set_epoch(self, epoch: int) -> None:
        """Take the windows of another epoch: another order, and windows that begin elsewhere.

        Accelerate and the Hugging Face ``Trainer`` call it. Workers learn of it when they start.
        """
        self.epoch = whole("epoch", epoch, 0)

    def __len__(self) -> int:
        return self._batches.epoch_samples

    def __getitem__(self, number: int) -> Any:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        """Several windows in one read."""
        chosen = np.asarray(numbers, np.int64)
        for number in chosen[(chosen < 0) | (chosen >= len(self))].tolist():
            raise IndexingError(f"window {number} is out of bounds for the {len(self)} of an epoch")
        first = self.epoch * len(self)

        def submit(out: npt.NDArray[Any]) -> Pending[Any]:
            return Pending(self._batches.read_samples, chosen + first, out)

        x, y = self._to.take(self._to.submit(len(chosen), submit).wait())
        if self._as_dict:
            return [_named(row) for row in x]
        return list(zip(x, y, strict=True))

    def state_dict(self) -> dict[str, Any]:
        """The epoch and a fingerprint; where in the epoch is known to the loader's sampler."""
        return {**self._batches.state_dict(), "epoch": self.epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a state's epoch; an error says what differs when it is of other data or settings."""
        self._batches.check_state(state)
        self.epoch = _epoch(state)


class IterableDataset(data.IterableDataset[Any]):
    """Whole batches in the order of their steps, for ``DataLoader(dataset, batch_size=None)``.

    They begin at the step of ``batches`` and end after ``steps`` of them, or never; epoch n has the n-th
    ``steps`` of them. Every ``iter`` begins anew. With several workers each makes every n-th step, and the
    loader takes turns among them, so the order is that of a single process.

    With workers only torchdata's ``StatefulDataLoader`` can tell where they are: save its state. Without
    them ``state_dict`` is the place behind the last batch given.

    >>> loader = torch.utils.data.DataLoader(
    ...     IterableDataset(corpus.batches(batch_size=2, length=4, seed=1), steps=3), batch_size=None
    ... )
    >>> [tuple(x.shape) for x, y in loader]
    [(2, 4), (2, 4), (2, 4)]
    """

    def __init__(
        self, batches: Batches, *, steps: int | None = None, as_dict: bool = False, epoch: int = 0
    ) -> None:
        self._batches = _own(batches)
        self._to = Destination("cpu", None, batches.dtype, batches.length)
        self._steps = None if steps is None else whole("steps", steps, 1)
        self._as_dict = as_dict
        self._resume: int | None = None
        self.epoch = whole("epoch", epoch, 0)
        self._at = self._begin
        """The next step of this process; of worker n it is n less, so that a state fits every worker."""

    @property
    def _begin(self) -> int:
        return self._batches.step + self.epoch * (self._steps or 0)

    def set_epoch(self, epoch: int) -> None:
        """Begin the next ``iter`` at another epoch. Accelerate calls it."""
        if whole("epoch", epoch, 0) != self.epoch:
            self.epoch, self._resume = epoch, None
            self._at = self._begin

    def __iter__(self) -> Iterator[Any]:
        # No generator: its body would run at the first `next`, and a state may be asked for before that.
        self._at, self._resume = self._begin if self._resume is None else self._resume, None
        return self._walk(self._at, _FOREVER if self._steps is None else self._begin + self._steps)

    def _walk(self, at: int, end: int) -> Iterator[Any]:
        worker = data.get_worker_info()
        mine, stride = (0, 1) if worker is None else (worker.id, worker.num_workers)
        while at + mine < end:
            x, y = self._to.take(_submit(self._batches, at + mine, self._to).wait())
            at += stride
            self._at = at
            yield _named(x) if self._as_dict else (x, y)

    def state_dict(self) -> dict[str, Any]:
        """The next step, the epoch and a fingerprint."""
        return {**self._batches.state_dict(), "step": self._at, "epoch": self.epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin the next ``iter`` at a state; an error says what differs when it is of other data."""
        step = self._batches.check_state(state)
        self.epoch = _epoch(state)
        self._at = self._resume = step


def _own(batches: Batches) -> Batches:
    """Batches that nobody else uses: a fork must not find their locks held by a thread of the caller's."""
    return copy.deepcopy(batches)


def _named(tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    # A copy: who masks labels in place must not change the input.
    return {"input_ids": tokens, "labels": tokens.clone()}


def _epoch(state: Mapping[str, Any]) -> int:
    epoch = state.get("epoch")
    if not isinstance(epoch, int) or epoch < 0:
        raise StateError(f"no state of a data set: expected an 'epoch', got {sorted(map(str, state))}")
    return epoch

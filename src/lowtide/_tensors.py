"""Tensors: batches on their way from a buffer of the host to a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any, Generic, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt

from lowtide._closing import Closing
from lowtide._io.buffers import Buffers
from lowtide._io.pending import Pending
from lowtide._io.prefetch import Prefetcher
from lowtide._readonly import ReadOnly
from lowtide._sizes import whole
from lowtide._tokens.batches import FOREVER, Batches
from lowtide._tokens.documents import DocumentBatch, DocumentKind, mark_documents, whole_windows
from lowtide._tokens.steps import Steps
from lowtide.errors import ArgumentError, ClosedError, MissingExtraError

try:
    import torch as torch  # other modules import it from lowtide.torch, so that one message names the extra
    from torch.utils import data as data
except ImportError as error:
    raise MissingExtraError("PyTorch is not installed; pip install 'lowtide[torch]'") from error

T = TypeVar("T")
Item = TypeVar("Item")
Pair = tuple[torch.Tensor, torch.Tensor]
Host = torch.Tensor | Pair
"""What the prefetch thread prepares: tokens in pinned memory for a GPU, else the complete x and y."""


class MarkedHost(NamedTuple):
    """The same with documents."""

    tokens: Host
    documents: torch.Tensor
    position_ids: torch.Tensor
    loss_mask: torch.Tensor
    max_seqlen: int
    borders: npt.NDArray[np.int32]


class SharedEpoch:
    """The number of an epoch, in memory that worker processes share: what is set reaches those that run."""

    def __init__(self, epoch: int) -> None:
        self._tensor = torch.zeros((), dtype=torch.int64, device="cpu").share_memory_()  # type: ignore[no-untyped-call]
        self.value = epoch

    @property
    def value(self) -> int:
        return int(self._tensor.item())

    @value.setter
    def value(self, epoch: int) -> None:
        self._tensor.fill_(whole("epoch", epoch, 0))


class Destination:
    """The device and dtype of tensors, checked before any training.

    ``submit`` reads into memory of the host, in any thread. ``take`` returns x and y, and must be called in
    the thread that uses them: on a GPU the copy then is in that thread's current stream, before the work
    that follows.
    """

    def __init__(
        self,
        device: str | torch.device,
        dtype: torch.dtype | None,
        tokens: np.dtype[Any],
        length: int,
        rows: int = 0,
        prefetch: int = 0,
    ) -> None:
        self.device = _usable(device)
        self.dtype = torch.int64 if dtype is None else dtype
        self._check_dtype(tokens)
        self._tokens, self._width = tokens, length + 1
        self._pinned = self.device.type == "cuda"
        self._on_cpu = self.device.type == "cpu"
        # Memory for batches of ``rows`` windows, used again when nobody holds what was in it. To get it from
        # the system each time, page by page, and to give it back would take as long as reading the tokens.
        self._read_into = Buffers(rows * (length + 1) * tokens.itemsize, most=prefetch + 1)
        self._wide = _numpy_dtype(self.dtype)
        self._widen_into = Buffers(2 * rows * length * self._wide.itemsize, most=prefetch + 2)

    def _check_dtype(self, tokens: np.dtype[Any]) -> None:
        dtype: object = self.dtype  # a caller may pass anything
        if not isinstance(dtype, torch.dtype):
            raise ArgumentError(f"dtype must be one of PyTorch's, such as torch.int64, got {dtype!r}")
        if dtype.is_floating_point or dtype.is_complex or dtype in (torch.bool, torch.int64):
            if dtype is not torch.int64:
                raise ArgumentError(f"tokens are integers, got dtype {dtype}; use torch.int64")
            return
        target, source = torch.iinfo(dtype), np.iinfo(tokens)
        if target.min > source.min or target.max < source.max:
            raise ArgumentError(f"dtype {dtype} does not hold every {tokens} of the corpus; use torch.int64")

    def submit(
        self, rows: int, read: Callable[[npt.NDArray[Any]], Pending[Any]], width: int | None = None
    ) -> Pending[Host]:
        """Start to ``read`` ``rows`` windows into a buffer in the corpus' own dtype."""
        shape = rows, width or self._width
        pinned = self._pinned_memory(shape, self._tokens) if self._pinned else None
        tokens = self._read_into.empty(shape, self._tokens) if pinned is None else pinned.numpy()
        return read(tokens).then(partial(self._host, tokens, pinned))

    def submit_step(self, steps: Steps, step: int) -> Pending[Host]:
        """Start to read this rank's windows of a step."""
        if self._pinned:
            rows, length = steps.at(step).shape
            return self.submit(rows, partial(steps.submit, step), length + 1)
        return steps.submit(step, view=True).then(self._pair)

    def _host(self, tokens: npt.NDArray[Any], pinned: torch.Tensor | None, _: object) -> Host:
        return self._pair(tokens) if pinned is None else pinned

    def _pair(self, tokens: npt.NDArray[Any]) -> Pair:
        # By NumPy: PyTorch would start a team of threads for each calling thread, even for so little work.
        wide = self._widen_into.empty((2, len(tokens), tokens.shape[1] - 1), self._wide)
        x, y = wide[0], wide[1]
        np.copyto(x, tokens[:, :-1])
        np.copyto(y, tokens[:, 1:])
        return torch.from_numpy(x), torch.from_numpy(y)  # two, so that changing y in place leaves x alone

    def submit_marked(self, steps: Steps, kind: DocumentKind, step: int) -> Pending[MarkedHost]:
        """Start to read this rank's windows of a step, with their documents."""
        return self.submit_step(steps, step).then(partial(self._mark, steps, step, kind))

    def _mark(self, steps: Steps, step: int, kind: DocumentKind, tokens: Host) -> MarkedHost:
        """Add the documents of a step's batch, in memory of the host."""
        if isinstance(tokens, tuple):
            windows = whole_windows(tokens[0].numpy(), tokens[1].numpy())
        else:
            windows = tokens.numpy()
        batch = mark_documents(windows, steps.document_ids(step, windows), kind)
        positions = self._staged(batch.position_ids.astype(np.int64))
        return MarkedHost(
            tokens,
            self._staged(np.ascontiguousarray(batch[2])),
            positions,
            self._staged(batch.loss_mask),
            batch.max_seqlen,
            batch.borders,
        )

    def _staged(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """A tensor on the host, pinned for a GPU."""
        tensor = torch.from_numpy(array)
        return self._pinned_memory(array.shape, array.dtype).copy_(tensor) if self._pinned else tensor

    def _pinned_memory(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> torch.Tensor:
        kind = torch.from_numpy(np.empty(0, dtype)).dtype
        # The current GPU is each thread's own. Without this, pinning would make a context on GPU 0 in the
        # prefetch threads of all ranks: https://github.com/pytorch/pytorch/issues/58626
        with torch.cuda.device(self.device):
            return torch.empty(shape, dtype=kind, device="cpu", pin_memory=True)

    def take(self, host: Host) -> Pair:
        """x and y on the device, contiguous and of ``dtype``."""
        if isinstance(host, tuple):
            return self.move(host[0]), self.move(host[1])
        tokens = self.move(host)
        return self._widened(tokens[:, :-1]), self._widened(tokens[:, 1:])

    def take_marked(self, host: MarkedHost) -> DocumentBatch[torch.Tensor]:
        """x, y and their documents on the device."""
        items = (*self.take(host.tokens), self.move(host.documents))
        return DocumentBatch(
            items,
            position_ids=self.move(host.position_ids),
            loss_mask=self.move(host.loss_mask),
            max_seqlen=host.max_seqlen,
            borders=host.borders,
        )

    def move(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on the device, without waiting for the copy if the tensor is pinned."""
        if self._on_cpu and not self._pinned:
            return tensor  # even a no-op copy yields to the reading thread: 0.6 ms instead of 0.1
        # PyTorch reuses pinned memory only when the copies out of it have ended.
        return tensor.to(self.device, non_blocking=self._pinned)

    def _widened(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens.to(self.dtype, copy=True, memory_format=torch.contiguous_format)


def _usable(device: str | torch.device) -> torch.device:
    try:
        result = torch.device(device)
        torch.empty(0, device=result)
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ArgumentError(f"PyTorch cannot use device {str(device)!r} here: {reason}; try 'cpu'") from error
    # A name without a number means the current GPU, which is another one in another thread.
    return torch.device("cuda", torch.cuda.current_device()) if result == torch.device("cuda") else result


@cache
def _numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    return torch.empty(0, dtype=dtype, device="cpu").numpy().dtype  # whatever torch.set_default_device says


class Tensors(ReadOnly, Closing, Iterator[Item], Generic[T, Item]):
    """Batches as tensors: ``submit`` starts to prepare a step in memory of the host, ``take`` finishes it."""

    _remedy = "ask for other batches, as in corpus.batches(...).torch()"

    def __init__(
        self,
        batches: Batches,
        destination: Destination,
        submit: Callable[[int], Pending[T]],
        take: Callable[[T], Item],
        prefetch: int,
        start: int,
    ) -> None:
        self._batches, self._to = batches, destination
        self._submit, self._take = submit, take  # neither refers to self: dropping these ends the thread
        self._prefetch = prefetch
        self._closed = False
        self._seek(start)

    def __repr__(self) -> str:
        rows, length = self.shape
        return (
            f"<{type(self).__name__} of {rows} x {length} tokens on {self._to.device}, at step {self.step}>"
        )

    def _seek(self, step: int) -> None:
        self._ahead: Prefetcher[T] = Prefetcher(self._submit, step, FOREVER, self._prefetch)

    def __iter__(self) -> Self:
        return self

    def __getitem__(self, step: int) -> Item:
        return self._take(self._submit(whole("step", step, 0)).wait())

    def __next__(self) -> Item:
        if self._closed:
            raise ClosedError("the batches were closed; ask for new ones with batches.torch()")
        return self._take(self._ahead.next())

    @property
    def step(self) -> int:
        """The step of the batch that ``next`` will give."""
        return self._ahead.position

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of this rank's ``x`` and ``y``."""
        return self._batches.shape

    @property
    def epoch_steps(self) -> int:
        """Complete steps in an epoch."""
        return self._batches.epoch_steps

    def state_dict(self) -> dict[str, Any]:
        """The step, and a fingerprint of the corpus and the settings; the NumPy batches have the same.

        Examples
        --------
        >>> batches = corpus.batches(batch_size=2, length=4)
        >>> batches.torch().state_dict() == batches.state_dict()
        True
        """
        return {**self._batches.state_dict(), "step": self.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume at the step of a state; an error lists what differs if it is of other data or settings.

        Parameters
        ----------
        state
            What ``state_dict`` of these, or of the NumPy batches, returned.

        Examples
        --------
        >>> batches = corpus.batches(batch_size=2, length=4).torch()
        >>> batches.load_state_dict({**batches.state_dict(), "step": 12345})
        >>> batches.step
        12345
        """
        step = self._batches._check_state(state)
        self._ahead.close()
        self._seek(step)

    def close(self) -> None:
        """End the thread; idempotent."""
        self._closed = True
        self._ahead.close()
        self._batches._steps.release()

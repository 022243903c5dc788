"""PyTorch: batches as tensors, and data sets for its loaders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide.batches import Batches
from lowtide.errors import ArgumentError, MissingExtraError
from lowtide.prefetch import Prefetcher

try:
    import torch
    from torch.utils import data
except ImportError as error:
    raise MissingExtraError("PyTorch is not installed; pip install 'lowtide[torch]'") from error

_FOREVER = 2**62


class TorchBatches(Iterator[tuple[torch.Tensor, torch.Tensor]]):
    """The batches as tensors on ``device``, contiguous and widened to ``dtype``, made ahead by one thread.

    On a GPU the tokens travel in the corpus' own dtype, from pinned memory and without waiting, and are
    widened there: a quarter of the bytes of int64.
    """

    def __init__(
        self,
        batches: Batches,
        device: str | torch.device = "cpu",
        dtype: torch.dtype | None = None,
        prefetch: int = 2,
    ) -> None:
        self._batches = batches
        self._device = torch.device(device)
        if self._device.type == "cuda" and not torch.cuda.is_available():
            raise ArgumentError(f"device {device!s} was asked for, and PyTorch sees no GPU; use device='cpu'")
        self._dtype = torch.int64 if dtype is None else dtype
        self._prefetch = prefetch
        self._ahead: Prefetcher[tuple[torch.Tensor, torch.Tensor]]
        self._ahead = Prefetcher(self._maker(), batches.step, _FOREVER, prefetch)

    def __getitem__(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        return _to_tensors(self._batches, step, self._device, self._dtype)

    def __iter__(self) -> TorchBatches:
        return self

    def __next__(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self._ahead.next()

    @property
    def step(self) -> int:
        """The step whose batch ``next`` will give."""
        return self._ahead.position

    def state_dict(self) -> dict[str, Any]:
        return {**self._batches.state_dict(), "step": self.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._batches.load_state_dict(state)
        self._ahead.close()
        self._ahead = Prefetcher(self._maker(), self._batches.step, _FOREVER, self._prefetch)

    def _maker(self) -> Any:
        batches, device, dtype = self._batches, self._device, self._dtype
        return lambda step: _to_tensors(batches, step, device, dtype)

    def close(self) -> None:
        """End the thread; idempotent."""
        self._ahead.close()


def _to_tensors(
    batches: Batches, step: int, device: torch.device, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    rows, length = batches.shape
    if device.type == "cuda":
        kind = torch.from_numpy(np.empty(0, batches.dtype)).dtype
        pinned = torch.empty((rows, length + 1), dtype=kind, pin_memory=True)
        batches.read(step, pinned.numpy())
        there = pinned.to(device, non_blocking=True).to(dtype)
        return there[:, :-1].contiguous(), there[:, 1:].contiguous()
    x, y = batches.pair(batches.read(step))
    return _widened(x, dtype).to(device), _widened(y, dtype).to(device)


def _widened(tokens: npt.NDArray[Any], dtype: torch.dtype) -> torch.Tensor:
    """A contiguous tensor of its own. NumPy converts unsigned types that PyTorch only half knows."""
    return torch.from_numpy(tokens.astype(_numpy_dtype(dtype), "C"))


@cache
def _numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    return torch.empty(0, dtype=dtype).numpy().dtype


class MapDataset(data.Dataset[Any]):
    """One epoch of single windows by number, for samplers and the Hugging Face ``Trainer``.

    ``as_dict`` gives ``input_ids`` and ``labels`` as that trainer wants them (its models shift the labels
    themselves); else an item is ``(x, y)``. ``DataLoader`` asks for whole batches by ``__getitems__``, which
    is one read.
    """

    def __init__(self, batches: Batches, *, as_dict: bool = False, epoch: int = 0) -> None:
        self._batches = batches
        self._as_dict = as_dict
        self._first = epoch * batches.epoch_samples

    def __len__(self) -> int:
        return self._batches.epoch_samples

    def __getitem__(self, number: int) -> Any:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        for number in numbers:
            if not 0 <= number < len(self):
                raise IndexError(f"window {number} of {len(self)}")
        tokens = self._batches.read_samples(np.asarray(numbers, np.int64) + self._first)
        if self._as_dict:
            inputs = _widened(tokens[:, :-1], torch.int64)
            return [{"input_ids": row, "labels": row} for row in inputs]
        x, y = _widened(tokens[:, :-1], torch.int64), _widened(tokens[:, 1:], torch.int64)
        return list(zip(x, y, strict=True))


class IterableDataset(data.IterableDataset[Any]):
    """Whole batches in the order of their steps, for ``DataLoader(dataset, batch_size=None)``.

    With several workers each makes every n-th step; the loader takes turns among them, so the order is that
    of a single process. ``state_dict`` is what torchdata's ``StatefulDataLoader`` saves.
    """

    def __init__(self, batches: Batches, *, as_dict: bool = False, steps: int | None = None) -> None:
        self._batches = batches
        self._as_dict = as_dict
        self._stop = _FOREVER if steps is None else batches.step + steps
        self._next = batches.step

    def __iter__(self) -> Iterator[Any]:
        worker = data.get_worker_info()
        first, stride = (0, 1) if worker is None else (worker.id, worker.num_workers)
        if self._next == self._batches.step:  # not loaded from a state, which tells this worker's own step
            self._next += first
        while self._next < self._stop:
            step = self._next
            self._next += stride
            x, y = _to_tensors(self._batches, step, torch.device("cpu"), torch.int64)
            yield {"input_ids": x, "labels": x} if self._as_dict else (x, y)
        self._next = self._batches.step

    def state_dict(self) -> dict[str, Any]:
        return {**self._batches.state_dict(), "step": self._next}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._batches.check_state(state)
        self._next = state["step"]

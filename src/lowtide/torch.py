"""PyTorch: batches as tensors, and data sets for its loaders."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from lowtide._io.pending import Pending
from lowtide._sizes import whole
from lowtide._tensors import Destination, Host, MarkedHost, Pair, Tensors, data
from lowtide._tensors import torch as torch  # the rest of lowtide imports it from here
from lowtide._tokens.batches import Batches, Steps
from lowtide._tokens.documents import DocumentBatch, DocumentKind, check_kind
from lowtide.errors import IndexingError, StateError

__all__ = ["IterableDataset", "MapDataset", "TorchBatches", "TorchDocumentBatches"]

_FOREVER = 2**62


class TorchBatches(Tensors[Host, Pair]):
    """Batches as pairs ``(x, y)`` of contiguous tensors, prefetched by one thread.

    :meth:`lowtide.Batches.torch` makes them. To a GPU the tokens travel in the corpus' own dtype, from pinned
    memory and without waiting, and are widened there: a quarter of the bytes of int64.

    Parameters
    ----------
    batches
        The batches of NumPy arrays. Their position is where these start.
    device
        The device of the tensors.
    dtype
        Their type; ``torch.int64`` by default.
    prefetch
        Batches that the thread reads ahead; 0 reads each when it is needed, without a thread.

    Examples
    --------
    >>> batches = corpus.batches(batch_size=2, length=4, seed=1).torch()
    >>> x, y = next(batches)
    >>> x.dtype, x.is_contiguous(), y.view(-1).shape
    (torch.int64, True, torch.Size([8]))
    >>> batches.step, bool((batches[0][0] == x).all())
    (1, True)
    >>> batches.close()
    """

    def __init__(
        self,
        batches: Batches,
        device: str | torch.device = "cpu",
        dtype: torch.dtype | None = None,
        prefetch: int = 2,
    ) -> None:
        to = Destination(device, dtype, batches.dtype, batches.length)
        super().__init__(batches, to, partial(_submit, batches._steps, to), to.take, prefetch, batches.step)

    def __iter__(self) -> TorchBatches:
        return self

    def with_documents(self, kind: DocumentKind = "ids") -> TorchDocumentBatches:
        """These batches with the documents of ``x``, for attention masks.

        Parameters
        ----------
        kind
            ``"ids"`` or ``"cu_seqlens"``, as in :meth:`lowtide.Batches.with_documents`.

        Examples
        --------
        >>> batches = lowtide.corpus(tmp / "given" / "train.bin", eos=7).batches(1, 6, order="sequential")
        >>> batch = batches.torch("cpu").with_documents("cu_seqlens")[1]
        >>> x, y, cu_seqlens = batch
        >>> cu_seqlens, batch.max_seqlen, batch.position_ids
        (tensor([0, 2, 6], dtype=torch.int32), 4, tensor([[0, 1, 0, 1, 2, 3]]))
        """
        return TorchDocumentBatches(self._batches, self._to, kind, self._prefetch, self.step)


class TorchDocumentBatches(Tensors[MarkedHost, DocumentBatch[torch.Tensor]]):
    """Batches of tensors with the documents of ``x``: each is a tuple of three with two more attributes.

    ``batches.torch(device).with_documents(kind)`` makes them, and so does
    ``batches.with_documents(kind).torch(device)``. The third item is ``ids`` or ``cu_seqlens`` in int32;
    ``position_ids`` are int64 and like ``x``; ``max_seqlen`` is an int. The thread computes all of them, and
    nothing is copied from the GPU.
    """

    def __init__(
        self, batches: Batches, destination: Destination, kind: DocumentKind, prefetch: int, start: int
    ) -> None:
        check_kind(kind)
        submit = partial(_submit_marked, batches._steps, destination, kind)
        super().__init__(batches, destination, submit, destination.take_marked, prefetch, start)

    def __iter__(self) -> TorchDocumentBatches:
        return self


def _submit(steps: Steps, to: Destination, step: int) -> Pending[Host]:
    return to.submit(steps.rows[1] - steps.rows[0], partial(steps.submit, step))


def _submit_marked(steps: Steps, to: Destination, kind: DocumentKind, step: int) -> Pending[MarkedHost]:
    return _submit(steps, to, step).then(partial(to.mark, steps, step, kind))


class MapDataset(data.Dataset[Any]):
    """One epoch of single windows by number, for samplers and the Hugging Face ``Trainer``.

    ``DataLoader`` asks for whole batches, and each is one read. The loader decides about batches, ranks and
    order, so ``batch_size`` and ``rank`` of ``batches`` do not matter here.

    Parameters
    ----------
    batches
        The windows.
    as_dict
        Give ``input_ids`` and equal ``labels``, which the models of Hugging Face shift themselves, instead of
        ``(x, y)``.
    epoch
        The epoch of the windows.

    Examples
    --------
    >>> windows = MapDataset(corpus.batches(batch_size=1, length=4, order="sequential"))
    >>> len(windows), windows[2]
    (249, (tensor([ 8,  9, 10, 11]), tensor([ 9, 10, 11, 12])))
    """

    def __init__(self, batches: Batches, *, as_dict: bool = False, epoch: int = 0) -> None:
        self._batches = _private_copy(batches)
        self._to = Destination("cpu", None, batches.dtype, batches.length)
        self._as_dict = as_dict
        self.epoch = whole("epoch", epoch, 0)

    def set_epoch(self, epoch: int) -> None:
        """Give the windows of another epoch: another order, and windows that start elsewhere.

        Accelerate and the Hugging Face ``Trainer`` call it. Workers use the epoch that was set when they
        started.

        Parameters
        ----------
        epoch
            The number of the epoch.

        Examples
        --------
        >>> windows = MapDataset(corpus.batches(batch_size=1, length=4))
        >>> windows.set_epoch(1)
        >>> windows.epoch
        1
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
        read = partial(self._batches.read_samples, chosen + self.epoch * len(self))
        x, y = self._to.take(self._to.submit(len(chosen), partial(Pending, read)).wait())
        if self._as_dict:
            return [_named(row) for row in x]
        return list(zip(x, y, strict=True))

    def state_dict(self) -> dict[str, Any]:
        """The epoch and a fingerprint; the position within the epoch is the loader's sampler's.

        Examples
        --------
        >>> MapDataset(corpus.batches(batch_size=1, length=4), epoch=3).state_dict()["epoch"]
        3
        """
        return {**self._batches.state_dict(), "epoch": self.epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume at a state's epoch; an error lists what differs if it is of other data or settings.

        Parameters
        ----------
        state
            What ``state_dict`` returned.

        Examples
        --------
        >>> windows = MapDataset(corpus.batches(batch_size=1, length=4))
        >>> windows.load_state_dict({**windows.state_dict(), "epoch": 3})
        >>> windows.epoch
        3
        """
        self._batches._check_state(state)
        self.epoch = _epoch(state)


class IterableDataset(data.IterableDataset[Any]):
    """Whole batches in the order of their steps, for ``DataLoader(dataset, batch_size=None)``.

    They start at the step of ``batches``, and every ``iter`` starts there again. With several workers each
    prepares every n-th step, and the loader takes turns among them, so the order is that of a single process.

    With workers only torchdata's ``StatefulDataLoader`` knows where they are: save its state. Without
    them ``state_dict`` is the position after the last batch given.

    Parameters
    ----------
    batches
        The batches.
    steps
        Batches in an epoch, of which epoch n has the n-th; without end by default.
    as_dict
        Give ``input_ids`` and equal ``labels`` instead of ``(x, y)``, as in ``MapDataset``.
    epoch
        The epoch to start with.

    Examples
    --------
    >>> loader = torch.utils.data.DataLoader(
    ...     IterableDataset(corpus.batches(batch_size=2, length=4, seed=1), steps=3), batch_size=None
    ... )
    >>> [tuple(x.shape) for x, y in loader]
    [(2, 4), (2, 4), (2, 4)]
    """

    def __init__(
        self, batches: Batches, *, steps: int | None = None, as_dict: bool = False, epoch: int = 0
    ) -> None:
        self._batches = _private_copy(batches)
        self._to = Destination("cpu", None, batches.dtype, batches.length)
        self._steps = None if steps is None else whole("steps", steps, 1)
        self._as_dict = as_dict
        self._resume: int | None = None
        self.epoch = whole("epoch", epoch, 0)
        self._at = self._first
        """The next step of this process; of worker n it is n less, so that a state fits every worker."""

    @property
    def _first(self) -> int:
        return self._batches.step + self.epoch * (self._steps or 0)

    def set_epoch(self, epoch: int) -> None:
        """Start the next ``iter`` at another epoch. Accelerate calls it.

        Parameters
        ----------
        epoch
            The number of the epoch.

        Examples
        --------
        >>> dataset = IterableDataset(corpus.batches(batch_size=2, length=4), steps=100)
        >>> dataset.set_epoch(2)
        >>> dataset.state_dict()["step"]
        200
        """
        if whole("epoch", epoch, 0) != self.epoch:
            self.epoch, self._resume = epoch, None
            self._at = self._first

    def __iter__(self) -> Iterator[Any]:
        # Not a generator: its body would run at the first `next`, and a state may be asked for before that.
        self._at, self._resume = self._first if self._resume is None else self._resume, None
        return self._walk(self._at, _FOREVER if self._steps is None else self._first + self._steps)

    def _walk(self, at: int, end: int) -> Iterator[Any]:
        worker = data.get_worker_info()
        number, stride = (0, 1) if worker is None else (worker.id, worker.num_workers)
        while at + number < end:
            x, y = self._to.take(_submit(self._batches._steps, self._to, at + number).wait())
            at += stride
            self._at = at
            yield _named(x) if self._as_dict else (x, y)

    def state_dict(self) -> dict[str, Any]:
        """The next step, the epoch and a fingerprint.

        Examples
        --------
        >>> dataset = IterableDataset(corpus.batches(batch_size=2, length=4), steps=100)
        >>> _ = next(iter(dataset))
        >>> dataset.state_dict()["step"]
        1
        """
        return {**self._batches.state_dict(), "step": self._at, "epoch": self.epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Start the next ``iter`` at a state; an error lists what differs if it is of other data.

        Parameters
        ----------
        state
            What ``state_dict`` returned.

        Examples
        --------
        >>> dataset = IterableDataset(corpus.batches(batch_size=2, length=4), steps=100)
        >>> dataset.load_state_dict({**dataset.state_dict(), "step": 42})
        >>> len(list(dataset))
        58
        """
        step = self._batches._check_state(state)
        self.epoch = _epoch(state)
        self._at = self._resume = step


def _private_copy(batches: Batches) -> Batches:
    """Batches that nobody else uses: a fork must not find their locks held by a thread of the caller's."""
    return copy.deepcopy(batches)


def _named(tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    # A copy: who masks labels in place must not change the input.
    return {"input_ids": tokens, "labels": tokens.clone()}


def _epoch(state: Mapping[str, Any]) -> int:
    epoch = state.get("epoch")
    if not isinstance(epoch, int) or epoch < 0:
        raise StateError(
            f"not a state of a data set (expected an 'epoch', got {sorted(map(str, state))}); "
            f"pass what state_dict() returned"
        )
    return epoch

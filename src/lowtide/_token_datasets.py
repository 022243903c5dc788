"""PyTorch data sets of token batches: windows by number, and whole batches in order."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide._io.pending import Pending
from lowtide._ranks import Rank, ranks
from lowtide._sizes import whole
from lowtide._tensors import Destination, SharedEpoch, data, torch
from lowtide._tokens.batches import FOREVER, Batches
from lowtide._tokens.documents import (
    DocumentBatch,
    DocumentBatches,
    DocumentKind,
    mark_documents,
    whole_windows,
)
from lowtide.errors import ArgumentError, IndexingError, StateError

_IGNORED = -100  # of Hugging Face and PyTorch


class MapDataset(data.Dataset[Any]):
    """One epoch of single windows by number, for samplers and the Hugging Face ``Trainer``.

    ``DataLoader`` asks for whole batches, and each is one read. The loader decides about batches, ranks and
    order, so ``batch_size`` and ``rank`` of ``batches`` do not matter here.

    Parameters
    ----------
    batches
        The windows. Of ``batches.with_documents()`` each is a dict of ``x``, ``y``, ``document_ids``,
        ``position_ids`` and ``loss_mask``.
    as_dict
        Give ``input_ids`` and equal ``labels``, which the models of Hugging Face shift themselves, instead of
        ``(x, y)``. With documents also ``position_ids``, from which these models find the borders of
        documents, and -100 as the label of the first token of each.
    epoch
        The epoch of the windows.

    Examples
    --------
    >>> windows = MapDataset(corpus.batches(batch_size=1, length=4, order="sequential"))
    >>> len(windows), windows[2]
    (249, (tensor([ 8,  9, 10, 11]), tensor([ 9, 10, 11, 12])))
    """

    def __init__(self, batches: Batches | DocumentBatches, *, as_dict: bool = False, epoch: int = 0) -> None:
        self._batches, self._kind = _private(batches, single=True)
        self._to = Destination("cpu", None, self._batches.dtype, self._batches.length)
        self._batches._check_one_length()
        self._as_dict = as_dict
        self._epoch = SharedEpoch(epoch)

    @property
    def epoch(self) -> int:
        """The epoch of the windows."""
        return self._epoch.value

    def set_epoch(self, epoch: int) -> None:
        """Give the windows of another epoch: another order, and windows that start elsewhere.

        Accelerate and the Hugging Face ``Trainer`` call it. It reaches workers that are already running.

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
        self._epoch.value = epoch

    def __len__(self) -> int:
        return self._batches.epoch_samples

    def __repr__(self) -> str:
        return f"<MapDataset of {len(self)} windows of {self._batches.length} tokens, epoch {self.epoch}>"

    def __getitem__(self, number: int) -> Any:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        """Several windows in one read."""
        chosen = np.asarray(numbers, np.int64)
        for number in chosen[(chosen < 0) | (chosen >= len(self))].tolist():
            raise IndexingError(f"window {number} is out of bounds for the {len(self)} of an epoch")
        read = partial(self._batches.read_samples, chosen + self.epoch * len(self))
        x, y = self._to.take(self._to.submit(len(chosen), partial(Pending, read)).wait())
        if self._kind is not None:
            return self._marked(chosen + self.epoch * len(self), x, y)
        return _windows(x, y, as_dict=self._as_dict)

    def _marked(self, numbers: npt.NDArray[np.int64], x: torch.Tensor, y: torch.Tensor) -> list[Any]:
        """Windows with the documents of their tokens."""
        windows = whole_windows(x.numpy(), y.numpy())
        find = self._batches._samples.document_ids
        ids = np.concatenate([find(int(n), windows[row : row + 1]) for row, n in enumerate(numbers)])
        batch = mark_documents(windows, ids)
        marks = (batch[2], batch.position_ids.astype(np.int64), batch.loss_mask)
        parts = (x, y, *(torch.from_numpy(np.ascontiguousarray(one)) for one in marks))
        return _marked_windows(*parts, as_dict=self._as_dict)

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
        self._epoch.value = _epoch(state)


class IterableDataset(data.IterableDataset[Any]):
    """Whole batches in the order of their steps, for ``DataLoader(dataset, batch_size=None)``.

    They start at the step of ``batches``, and every ``iter`` starts there again. With several workers each
    prepares every n-th step, and the loader takes turns among them, so the order is that of a single process.

    With workers only torchdata's ``StatefulDataLoader`` knows where they are: save its state. Without
    them ``state_dict`` is the position after the last batch given.

    Parameters
    ----------
    batches
        The batches. Of ``batches.with_documents(kind)`` each is a dict of ``x``, ``y``, ``document_ids`` or
        ``cu_seqlens``, ``position_ids``, ``loss_mask`` and ``max_seqlen``, since a loader makes a list of
        any tuple.
    steps
        Batches in an epoch; without end by default. Each epoch continues after the one before it. The data
        set then has a length, without which Lightning fetches a batch ahead and cannot resume exactly.
    as_dict
        Give ``input_ids`` and equal ``labels`` instead of ``(x, y)``, as in ``MapDataset``.
    single
        Give one window at a time, for loaders that make batches themselves, such as that of the Hugging Face
        ``Trainer``; by default if ``as_dict`` is set. The windows of a step come one after another, and every
        worker has those of every n-th step.
    epoch
        The epoch to start with.
    rank, world_size
        Read the rows of this rank instead of that of ``batches``. ``"auto"`` asks ``torch.distributed`` or
        the environment of ``torchrun`` each time an ``iter`` starts, so that it may be given before
        Lightning, for example, starts its processes.

    Examples
    --------
    >>> loader = torch.utils.data.DataLoader(
    ...     IterableDataset(corpus.batches(batch_size=2, length=4, seed=1), steps=3), batch_size=None
    ... )
    >>> len(loader), [tuple(x.shape) for x, y in loader]
    (3, [(2, 4), (2, 4), (2, 4)])
    """

    def __init__(
        self,
        batches: Batches | DocumentBatches,
        *,
        steps: int | None = None,
        as_dict: bool = False,
        single: bool | None = None,
        epoch: int = 0,
        rank: Rank = None,
        world_size: int | None = None,
    ) -> None:
        self._as_dict, self._single = as_dict, as_dict if single is None else single
        self._batches, self._kind = _private(batches, single=self._single)
        self._to = Destination("cpu", None, self._batches.dtype, self._batches.length)
        self._steps = None if steps is None else whole("steps", steps, 1)
        self._rank, self._world_size = rank, world_size
        if rank != "auto" and not (rank is None and world_size is None):
            ranks(rank, world_size)  # raises for invalid ones
        self._resume: tuple[int, int] | None = None
        self._epoch = SharedEpoch(epoch)
        self._at, self._row = self._first, 0
        """The next step of this process and row of it; of worker n the step is n less: a state fits all."""

    @property
    def epoch(self) -> int:
        """The epoch that the next ``iter`` gives."""
        return self._epoch.value

    @property
    def _first(self) -> int:
        return self._batches.step + self.epoch * (self._steps or 0)

    def __repr__(self) -> str:
        count = "batches without end" if self._steps is None else f"{self._steps} batches"
        rows, length = self._batches.batch_size, self._batches.length
        return f"<IterableDataset of {count} of {rows} x {length} tokens, epoch {self.epoch}>"

    def __len__(self) -> int:
        """Batches in an epoch, or windows if they are single; ``TypeError`` without ``steps``."""
        if self._steps is None:
            raise TypeError("an IterableDataset without steps= has no end, so it has no len()")
        if not self._single:
            return self._steps
        return self._ranked()._steps.rows_between(self._first, self._first + self._steps)

    def set_epoch(self, epoch: int) -> None:
        """Start the next ``iter`` at another epoch. Accelerate calls it; it reaches workers that stay.

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
            self._epoch.value, self._resume = epoch, None
            self._at, self._row = self._first, 0

    def _ranked(self) -> Batches:
        if self._rank is None and self._world_size is None:
            return self._batches
        return self._batches._for_rank(*ranks(self._rank, self._world_size))

    def __iter__(self) -> Iterator[Any]:
        # Not a generator: its body would run at the first `next`, and a state may be saved before that.
        (self._at, self._row), self._resume = self._resume or (self._first, 0), None
        end = FOREVER if self._steps is None else self._first + self._steps
        return self._walk(self._ranked(), self._at, self._row, end)

    def _walk(self, batches: Batches, at: int, row: int, end: int) -> Iterator[Any]:
        worker = data.get_worker_info()
        number, stride = (0, 1) if worker is None else (worker.id, worker.num_workers)
        while at + number < end:
            items = self._read(batches, at + number)
            if self._single:
                for nth in range(row, len(items)):
                    last = nth + 1 == len(items)
                    self._at, self._row = (at + stride, 0) if last else (at, nth + 1)
                    yield items[nth]
                at, row = at + stride, 0
            else:
                at += stride
                self._at = at
                yield items

    def _read(self, batches: Batches, step: int) -> Any:
        """A list of the windows of a step if they are single, else the whole batch."""
        if self._kind is not None:
            marked = self._to.take_marked(self._to.submit_marked(batches._steps, self._kind, step).wait())
            if not self._single:
                return _marked_batch(marked, self._kind, as_dict=self._as_dict)
            return _marked_windows(*marked, marked.position_ids, marked.loss_mask, as_dict=self._as_dict)
        x, y = self._to.take(self._to.submit_step(batches._steps, step).wait())
        if self._single:
            return _windows(x, y, as_dict=self._as_dict)
        return _named(x) if self._as_dict else (x, y)

    def state_dict(self) -> dict[str, Any]:
        """The next step, the epoch and a fingerprint.

        Examples
        --------
        >>> dataset = IterableDataset(corpus.batches(batch_size=2, length=4), steps=100)
        >>> _ = next(iter(dataset))
        >>> dataset.state_dict()["step"]
        1
        """
        row = {"row": self._row} if self._single else {}
        return {**self._batches.state_dict(), "step": self._at, "epoch": self.epoch, **row}

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
        self._epoch.value = _epoch(state)
        self._at, self._row = step, whole("row", state.get("row", 0), 0) if self._single else 0
        self._resume = self._at, self._row


def _private(batches: Batches | DocumentBatches, *, single: bool) -> tuple[Batches, DocumentKind | None]:
    """A copy of the batches, and the kind of their documents if they have any.

    A copy, since a fork must not find their locks held by a thread of the caller.
    """
    kind = None
    if isinstance(batches, DocumentBatches):
        kind, batches = batches._kind, batches._batches
    if single and kind == "cu_seqlens":
        raise ArgumentError(
            "cu_seqlens are those of a whole batch, and windows are single here; use with_documents('ids')"
        )
    return copy.deepcopy(batches), kind


def _windows(x: torch.Tensor, y: torch.Tensor, *, as_dict: bool) -> list[Any]:
    return [_named(row) for row in x] if as_dict else list(zip(x, y, strict=True))


def _marked_windows(*parts: torch.Tensor, as_dict: bool) -> list[Any]:
    """The rows of x, y, document ids, position ids and loss mask, each row as a dict."""
    if not as_dict:
        names = ("x", "y", "document_ids", "position_ids", "loss_mask")
        return [dict(zip(names, row, strict=True)) for row in zip(*parts, strict=True)]
    return [
        {**_named(x, position_ids), "position_ids": position_ids}
        for x, _, _, position_ids, _ in zip(*parts, strict=True)
    ]


def _marked_batch(batch: DocumentBatch[torch.Tensor], kind: DocumentKind, *, as_dict: bool) -> dict[str, Any]:
    x, y, documents = batch
    tokens = _named(x, batch.position_ids) if as_dict else {"x": x, "y": y, "loss_mask": batch.loss_mask}
    name = "document_ids" if kind == "ids" else "cu_seqlens"
    marks = {name: documents, "position_ids": batch.position_ids, "max_seqlen": batch.max_seqlen}
    return {**tokens, **marks}


def _named(tokens: torch.Tensor, position_ids: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
    # A copy: masking labels in place must not change the input.
    labels = tokens.clone()
    if position_ids is not None:  # labels are shifted by the model: nothing tells how a document starts
        labels[position_ids == 0] = _IGNORED
    return {"input_ids": tokens, "labels": labels}


def _epoch(state: Mapping[str, Any]) -> int:
    epoch = state.get("epoch")
    if not isinstance(epoch, int) or epoch < 0:
        raise StateError(
            f"not a state of a data set (expected an 'epoch', got {sorted(map(str, state))}); "
            f"pass what state_dict() returned"
        )
    return epoch

"""PyTorch: batches as tensors, and data sets for its loaders."""

from __future__ import annotations

from functools import partial

from lowtide._datasets import ArrayDataset as ArrayDataset
from lowtide._datasets import ChunkDataset as ChunkDataset
from lowtide._tensors import Destination, Host, MarkedHost, Pair, Tensors
from lowtide._tensors import torch as torch  # the rest of lowtide imports it from here
from lowtide._token_datasets import IterableDataset as IterableDataset
from lowtide._token_datasets import MapDataset as MapDataset
from lowtide._tokens.batches import Batches
from lowtide._tokens.documents import DocumentBatch, DocumentKind, check_kind

__all__ = [
    "ArrayDataset",
    "ChunkDataset",
    "IterableDataset",
    "MapDataset",
    "TorchBatches",
    "TorchDocumentBatches",
]


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
        rows, length = batches._steps.largest
        to = Destination(device, dtype, batches.dtype, length, rows, prefetch)
        submit = partial(to.submit_step, batches._steps)
        super().__init__(batches, to, submit, to.take, prefetch, batches.step)

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
    """Batches of tensors with the documents of ``x``: each is a tuple of three with more attributes.

    ``batches.torch(device).with_documents(kind)`` makes them, and so does
    ``batches.with_documents(kind).torch(device)``. The third item is ``ids`` or ``cu_seqlens`` in int32;
    ``position_ids`` are int64 and like ``x``; ``loss_mask`` is False where ``y`` starts another document;
    ``max_seqlen`` is an int and ``borders`` are ``cu_seqlens`` as an array of NumPy. The thread computes all
    of them, and nothing is copied from the GPU.
    """

    def __init__(
        self, batches: Batches, destination: Destination, kind: DocumentKind, prefetch: int, start: int
    ) -> None:
        check_kind(kind)
        submit = partial(destination.submit_marked, batches._steps, kind)
        super().__init__(batches, destination, submit, destination.take_marked, prefetch, start)

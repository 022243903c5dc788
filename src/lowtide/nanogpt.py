"""nanoGPT: its ``get_batch``, with the same batches bit for bit, and flat memory.

In nanoGPT's ``train.py`` replace the function ``get_batch`` by one line::

    from lowtide.nanogpt import get_batch_for
    get_batch = get_batch_for(data_dir, block_size, batch_size, device)
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Literal

from lowtide._io.reader import Cache
from lowtide._io.store import exists
from lowtide._permutation import key_of
from lowtide._ranks import Rank, ranks
from lowtide._sizes import whole
from lowtide._tensors import Destination, Pair
from lowtide._tokens.corpus import Corpus, corpus
from lowtide.errors import ArgumentError
from lowtide.torch import torch

__all__ = ["GetBatch", "get_batch_for"]

GetBatch = Callable[[str], Pair]

_EVALUATION = 1  # salt of the seed for training data that is evaluated on


def get_batch_for(
    data_dir: str | os.PathLike[str],
    block_size: int,
    batch_size: int,
    device: str | torch.device = "cpu",
    *,
    order: Literal["random", "shuffle"] = "random",
    seed: int = 1337,
    rank: Rank = "auto",
    world_size: int | None = None,
    start: int = 0,
    cache: Cache = "keep",
) -> GetBatch:
    """A ``get_batch(split)`` for the folder that nanoGPT calls ``data_dir``.

    Errors in ``train.bin`` are raised immediately, and those in ``val.bin`` too if there is one.

    Parameters
    ----------
    data_dir
        The folder with ``train.bin`` and ``val.bin``; any other corpus if these are not there.
    block_size
        nanoGPT's name for the ``length`` of a window, in tokens.
    batch_size
        Windows in a batch.
    device
        The device of the tensors.
    order
        ``"random"`` draws offsets by the same calls of PyTorch's generator as nanoGPT, so that for the same
        ``torch.manual_seed`` the same ``x`` and ``y`` come. ``"shuffle"`` gives every token once per epoch
        instead, prefetched by a thread. What is read while gradients are disabled, as nanoGPT's
        ``estimate_loss`` does, comes from another permutation and leaves the training batches as they are.
    seed
        Selects the permutation of ``order="shuffle"``.
    rank, world_size
        Of ``order="shuffle"``: which rank reads its rows of a global batch of ``world_size`` times
        ``batch_size`` windows; ``"auto"`` takes both from ``torch.distributed`` or the environment of
        ``torchrun``. ``order="random"`` needs none: nanoGPT gives each rank its own ``torch.manual_seed``.
    start
        Of ``order="shuffle"``: training batches that were used before, when a run is resumed; for nanoGPT
        ``iter_num * gradient_accumulation_steps``.
    cache
        ``"keep"`` leaves the page cache to the kernel, ``"drop"`` leaves nothing of the files in it.

    Examples
    --------
    >>> get_batch = get_batch_for(tmp / "given", block_size=8, batch_size=4)
    >>> _ = torch.manual_seed(0)
    >>> x, y = get_batch("train")
    >>> x.shape, x.dtype, bool((x[:, 1:] == y[:, :-1]).all())
    (torch.Size([4, 8]), torch.int64, True)
    """
    if order not in ("random", "shuffle"):
        raise ArgumentError(f"order must be 'random' or 'shuffle', got {order!r}")
    block_size = whole("block_size", block_size, 1)
    batch_size = whole("batch_size", batch_size, 1)
    start, seed = whole("start", start, 0), whole("seed", seed)
    number, count = ranks(rank, world_size)

    def opened(split: str) -> Callable[[], Pair]:
        tokens = _open(data_dir, split, block_size, cache)
        if order == "random":
            return _drawn(tokens, block_size, batch_size, device)

        def stream(seed: int, start: int) -> Callable[[], Pair]:
            batches = tokens.batches(
                batch_size * count, block_size, seed=seed, rank=number, world_size=count, start=start
            )
            return batches.torch(device).__next__

        if split != "train":
            return stream(seed, 0)
        training, evaluation = stream(seed, start), stream(key_of(seed, _EVALUATION), 0)
        return lambda: training() if torch.is_grad_enabled() else evaluation()

    splits = {"train": opened("train")}
    if exists(_file(data_dir, "val")):
        splits["val"] = opened("val")

    def get_batch(split: str) -> Pair:
        if split not in splits:
            splits[split] = opened(split)
        return splits[split]()

    return get_batch


def _drawn(
    tokens: Corpus, block_size: int, batch_size: int, device: str | torch.device
) -> Callable[[], Pair]:
    to = Destination(device, None, tokens.dtype, block_size, batch_size)

    def draw() -> Pair:
        # Nothing else here may draw from PyTorch's generator, or the batches would no longer be nanoGPT's.
        starts = torch.randint(len(tokens) - block_size, (batch_size,)).cpu().numpy()
        return to.take(to.submit(batch_size, partial(tokens._segments.submit_windows, starts)).wait())

    return draw


def _open(data_dir: str | os.PathLike[str], split: str, block_size: int, cache: Cache) -> Corpus:
    # nanoGPT reads this very file, whatever else is in the folder. Without it, any corpus will do.
    path = _file(data_dir, split)
    tokens = corpus(path if exists(path) else data_dir, split=split, cache=cache)
    if len(tokens) <= block_size:
        raise ArgumentError(
            f"{tokens.name}: has {len(tokens)} tokens, too few for a block_size of {block_size} and its "
            f"target; use a block_size of at most {len(tokens) - 1}"
        )
    return tokens


def _file(data_dir: str | os.PathLike[str], split: str) -> str:
    return os.path.join(data_dir, f"{split}.bin")

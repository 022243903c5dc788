"""nanoGPT: its ``get_batch``, with the same batches bit for bit, and flat memory.

In nanoGPT's ``train.py`` replace the function ``get_batch`` by one line::

    from lowtide.adapters.nanogpt import get_batch_for
    get_batch = get_batch_for(data_dir, block_size, batch_size, device)
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch

from lowtide.adapters.torch import TorchBatches
from lowtide.corpora import Corpus, corpus
from lowtide.errors import ArgumentError
from lowtide.files import Cache

GetBatch = Callable[[str], tuple["torch.Tensor", "torch.Tensor"]]


def get_batch_for(
    data_dir: str | os.PathLike[str],
    block_size: int,
    batch_size: int,
    device: str = "cpu",
    *,
    order: Literal["random", "shuffle"] = "random",
    seed: int = 1337,
    cache: Cache = "keep",
) -> GetBatch:
    """A ``get_batch(split)`` for the folder that nanoGPT calls ``data_dir``.

    ``order="random"`` draws offsets by the same calls of PyTorch's generator as nanoGPT, so that for the same
    ``torch.manual_seed`` the same ``x`` and ``y`` come. ``order="shuffle"`` gives every token once an epoch
    instead, in the order of ``seed``.
    """
    if order == "shuffle":
        return _shuffled(data_dir, block_size, batch_size, device, seed, cache)
    if order != "random":
        raise ArgumentError(f"order must be 'random' or 'shuffle', got {order!r}")
    opened: dict[str, Corpus] = {}
    on_gpu = "cuda" in device

    def get_batch(split: str) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = opened.get(split)
        if tokens is None:
            tokens = opened[split] = _split(data_dir, split, block_size, cache)
        ix = torch.randint(len(tokens) - block_size, (batch_size,))
        read = np.empty((batch_size, block_size + 1), tokens.dtype)
        tokens.shards.read_windows(ix.numpy(), read)
        x = torch.empty((batch_size, block_size), dtype=torch.int64, pin_memory=on_gpu)
        y = torch.empty_like(x, pin_memory=on_gpu)
        np.copyto(x.numpy(), read[:, :-1], casting="unsafe")
        np.copyto(y.numpy(), read[:, 1:], casting="unsafe")
        return x.to(device, non_blocking=True), y.to(device, non_blocking=True)

    return get_batch


def _shuffled(
    data_dir: str | os.PathLike[str], block_size: int, batch_size: int, device: str, seed: int, cache: Cache
) -> GetBatch:
    streams: dict[str, TorchBatches] = {}

    def get_batch(split: str) -> tuple[torch.Tensor, torch.Tensor]:
        stream = streams.get(split)
        if stream is None:
            batches = _split(data_dir, split, block_size, cache).batches(batch_size, block_size, seed=seed)
            stream = streams[split] = batches.torch(device)
        return next(stream)

    return get_batch


def _split(data_dir: str | os.PathLike[str], split: str, block_size: int, cache: Cache) -> Corpus:
    tokens = corpus(data_dir, split=split, cache=cache)
    if len(tokens) <= block_size:
        raise ArgumentError(
            f"{tokens.name}: has {len(tokens)} tokens, too few for a block_size of {block_size} and a target"
        )
    return tokens

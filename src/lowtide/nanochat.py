"""nanochat: its data loader over tokens that are prepared once, resumed exactly and with few tokens lost.

In nanochat's ``scripts/base_train.py`` replace the import of the two loaders by::

    from lowtide.nanochat import data_loader_for
    tokenizing_distributed_data_loader_with_state_bos_bestfit = data_loader_for("corpus")
    tokenizing_distributed_data_loader_bos_bestfit = data_loader_for("corpus", with_state=False)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from lowtide._io.reader import Cache
from lowtide._printable import changes
from lowtide._ranks import launched
from lowtide._sizes import whole
from lowtide._tokens.corpus import Corpus, corpus
from lowtide.errors import ArgumentError, StateError
from lowtide.torch import torch

__all__ = ["DataLoader", "data_loader_for"]

DataLoader = Callable[..., Iterator[tuple[Any, ...]]]


def data_loader_for(
    data: str | os.PathLike[str],
    *,
    with_state: bool = True,
    order: Literal["packed", "shuffle", "blocks", "sequential"] = "packed",
    seed: int = 1337,
    cache: Cache = "keep",
) -> DataLoader:
    """A function with the parameters of nanochat's ``tokenizing_distributed_data_loader_…_bos_bestfit``.

    It is called as ``loader(tokenizer, B, T, split, device=..., resume_state_dict=...)`` and gives
    ``inputs, targets, state_dict`` without end. ``B`` rows are those of one rank; ranks are taken from
    ``torch.distributed`` or from the environment of ``torchrun``. Parameters about tokenizing and buffers are
    accepted and not used: the corpus holds tokens.

    A state is that of the batch that it comes with: passed as ``resume_state_dict`` it gives this batch
    again. nanochat fetches a batch ahead of the step that uses it, and saves the state of the fetched one, so
    that it resumes exactly. Other numbers of rows or ranks may resume it too.

    Parameters
    ----------
    data
        A corpus with the splits ``train`` and ``val``, such as ``lowtide prepare`` writes.
    with_state
        Give ``inputs, targets, state_dict``; else ``inputs, targets``.
    order
        ``"packed"`` fills rows with whole documents, as nanochat does, and continues documents that are
        longer than a row in further rows, where nanochat drops the rest. Other orders lose nothing.
    seed
        Selects the order of an epoch.
    cache
        ``"keep"`` leaves the page cache to the kernel, ``"drop"`` leaves nothing of the files in it.

    Examples
    --------
    >>> loader = data_loader_for(tmp / "given" / "train.bin", order="shuffle")
    >>> batches = loader(None, B=4, T=8, split="train", device="cpu")
    >>> _ = next(batches)
    >>> inputs, targets, state = next(batches)
    >>> again, _, _ = next(loader(None, 4, 8, "train", device="cpu", resume_state_dict=state))
    >>> inputs.shape, bool((again == inputs).all())
    (torch.Size([4, 8]), True)
    """

    def loader(
        tokenizer: Any,
        B: int,  # noqa: N803 - as nanochat calls it
        T: int,  # noqa: N803
        split: str,
        tokenizer_threads: int = 4,  # noqa: ARG001
        tokenizer_batch_size: int = 128,  # noqa: ARG001
        device: str | torch.device = "cuda",
        resume_state_dict: Mapping[str, Any] | None = None,
        buffer_size: int = 1000,  # noqa: ARG001
    ) -> Iterator[tuple[Any, ...]]:
        tokens = corpus(data, split=split, cache=cache)
        _check_tokenizer(tokens, tokenizer)
        rank, world_size = launched()
        rows = whole("B", B, 1) * world_size
        batches = tokens.batches(rows, T, order=order, seed=seed, rank=rank, world_size=world_size)
        settings = {name: value for name, value in batches._settings().items() if name != "batch_size"}
        if resume_state_dict is not None:
            start = _start(resume_state_dict, settings, rows)
            batches.load_state_dict({**batches.state_dict(), "step": start})
        return _walk(batches.torch(device), rows, settings, with_state)

    return loader


def _walk(
    tensors: Any, rows: int, settings: dict[str, Any], with_state: bool
) -> Iterator[tuple[torch.Tensor, torch.Tensor] | tuple[torch.Tensor, torch.Tensor, dict[str, Any]]]:
    with tensors:
        while True:
            state = {"windows": tensors.step * rows, "settings": settings}
            x, y = next(tensors)
            yield (x, y, state) if with_state else (x, y)


def _start(state: Mapping[str, Any], settings: Mapping[str, Any], rows: int) -> int:
    """The step of a state, whose windows are counted: another number of rows may continue after them."""
    windows, saved = state.get("windows"), state.get("settings")
    if not isinstance(windows, int) or windows < 0 or not isinstance(saved, Mapping):
        raise StateError(
            f"not a state of this loader (expected 'windows' and 'settings', got {sorted(map(str, state))}); "
            "start without resume_state_dict"
        )
    if wrong := changes(saved, settings):
        raise StateError(f"the state is of another corpus or other settings: {'; '.join(wrong)}")
    if windows % rows:
        raise StateError(
            f"the {windows} windows before this state are not a multiple of the {rows} in a batch of all "
            "ranks; resume with as many rows and ranks as before, or a divisor"
        )
    return windows // rows


def _check_tokenizer(tokens: Corpus, tokenizer: Any) -> None:
    """Refuse a tokenizer that knows fewer ids than the corpus has."""
    size = getattr(tokenizer, "get_vocab_size", None)
    if size is not None and tokens.largest() >= size():
        raise ArgumentError(
            f"{tokens.name}: holds a token that the tokenizer does not know ({tokens.largest()}, expected "
            f"below {size()}); prepare the corpus with this tokenizer"
        )

"""What a run reads: batches to train on, fixed batches to evaluate on, and the vocabulary of both.

A step's global batch is ``batch_size * gradient_accumulation_steps`` windows, whatever the ranks. Each rank
reads its rows of it and cuts them into micro-batches of at most ``batch_size``: where the ranks divide the
accumulation steps, that is nanoGPT's way of sharing them out.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy.typing as npt

import lowtide
from lowtide._gpt.model import torch
from lowtide._gpt.ranks import Ranks
from lowtide._gpt.settings import Settings
from lowtide._tokens.batches import Batches, samples_of
from lowtide.errors import ArgumentError, FormatError, LowtideError
from lowtide.torch import TorchBatches, TorchDocumentBatches

_VALIDATION_SEED = 0  # whatever the run's own: losses of different runs can be compared


class Micro(NamedTuple):
    """What goes through the model at once."""

    x: torch.Tensor
    y: torch.Tensor
    documents: torch.Tensor | None


class Data:
    """The batches of a run, for one rank."""

    def __init__(self, settings: Settings, ranks: Ranks) -> None:
        self._settings, self._ranks = settings, ranks
        self.corpus = lowtide.corpus(settings.data, eos=settings.eos)
        self._validation = _validation(settings, self.corpus) if settings.eval_interval else None
        self.vocab_size = _vocabulary(settings, self.corpus)
        for corpus in filter(None, (self.corpus, self._validation)):
            largest = corpus.largest()
            if largest >= self.vocab_size:
                raise beyond(corpus.name, largest, self.vocab_size)
        self._batches = self._made(
            self.corpus, settings.global_batch, settings.order, settings.seed, ranks.rank, ranks.world_size
        )
        tensors = TorchBatches(self._batches, ranks.device)
        self.stream: TorchBatches | TorchDocumentBatches = (
            tensors.with_documents() if settings.document_mask else tensors
        )
        self._fixed: TorchBatches | None = None
        self.evaluations = 0
        if self._validation is not None:
            fixed = self._made(self._validation, settings.batch_size, "shuffle", _VALIDATION_SEED, 0, 1)
            self.evaluations = max(1, min(settings.eval_iters, fixed.epoch_steps))
            self._fixed = TorchBatches(fixed, ranks.device)

    def _made(
        self, corpus: lowtide.Corpus, rows: int, order: Any, seed: int, rank: int, world_size: int
    ) -> Batches:
        length = self._settings.block_size
        check = partial(check_ids, corpus.name, self.vocab_size)
        samples = samples_of(corpus, length, order, seed)
        return Batches(samples, rows, length, rank=rank, world_size=world_size, check=check)

    def next(self) -> list[Micro]:
        """This rank's part of the next step, in micro-batches."""
        x, y, *documents = next(self.stream)
        ids = documents[0] if documents else None
        size = self._settings.batch_size
        return [
            Micro(x[at : at + size], y[at : at + size], None if ids is None else ids[at : at + size])
            for at in range(0, len(x), size)
        ]

    def validation(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """This rank's share of the validation batches, the same at every evaluation."""
        if self._fixed is not None:
            for number in range(self._ranks.rank, self.evaluations, self._ranks.world_size):
                yield self._fixed[number]

    def close(self) -> None:
        """End the thread that reads ahead and give descriptors back."""
        self.stream.close()
        self.corpus.close()
        if self._fixed is not None and self._validation is not None:
            self._fixed.close()
            self._validation.close()


def check_ids(name: str, vocab_size: int, tokens: npt.NDArray[Any]) -> None:
    """Raise for ids beyond the vocabulary: PyTorch would crash, or worse, on a GPU.

    It looks at tokens where they were just read, in the prefetch thread.
    """
    if tokens.max() >= vocab_size or (tokens.dtype.kind == "i" and tokens.min() < 0):
        raise beyond(name, int(tokens[(tokens >= vocab_size) | (tokens < 0)][0]), vocab_size)


def beyond(name: str, found: int, vocab_size: int) -> FormatError:
    """The error for an id that the model does not know."""
    return FormatError(
        f"{name}: holds token {found}, and the vocabulary of the model has {vocab_size} ids (0 to "
        f"{vocab_size - 1}); pass a larger --vocab-size, or the corpus that belongs to it"
    )


def _validation(settings: Settings, training: lowtide.Corpus) -> lowtide.Corpus:
    """The validation split, long enough for one window."""
    without = "--eval-interval 0 trains without evaluating"
    try:
        corpus = lowtide.corpus(settings.data, split=settings.val_split, eos=settings.eos)
    except LowtideError as error:
        raise ArgumentError(
            f"{settings.data}: the split {settings.val_split!r} to evaluate on cannot be opened: {error}; "
            f"name another with --val-split, or {without}"
        ) from error
    if len(corpus) <= settings.block_size:
        raise ArgumentError(
            f"{corpus.name}: the split {settings.val_split!r} has {len(corpus)} tokens, and one window takes "
            f"{settings.block_size} and its target; prepare more of it, use a smaller --block-size, "
            f"or {without}"
        )
    if corpus.paths == training.paths:
        raise ArgumentError(
            f"{settings.data}: has one split alone, so the split {settings.val_split!r} would be what is "
            f"trained on; {without}"
        )
    return corpus


def _vocabulary(settings: Settings, corpus: lowtide.Corpus) -> int:
    """How many ids the model has: as set, else as the corpus says."""
    told = corpus.vocab_size
    if settings.vocab_size is None:
        if told is None:
            raise ArgumentError(
                f"{corpus.name}: a {corpus.format} corpus does not say how many ids its tokenizer has; "
                f"the largest of a sample is {corpus.largest()}; pass --vocab-size, 50304 for GPT-2's "
                "tokenizer"
            )
        return told
    if told is not None and settings.vocab_size < told:
        raise ArgumentError(
            f"vocab_size is {settings.vocab_size}, and {corpus.name} says that its tokenizer has {told} ids; "
            "leave it out, or pass at least as many"
        )
    return settings.vocab_size

"""Data of a run: training batches, fixed validation batches, and the vocabulary of both.

The global batch of a step has ``batch_size * gradient_accumulation_steps`` windows, on any number of ranks.
Each rank reads its rows and splits them into micro-batches of at most ``batch_size``: if the number of ranks
divides the accumulation steps, this is what nanoGPT does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import lowtide
from lowtide._gpt import sources
from lowtide._gpt.config import Settings
from lowtide._gpt.model import torch
from lowtide._gpt.ranks import Ranks
from lowtide._tokens.batches import Batches, samples_of
from lowtide._tokens.mixture import MixedBatches, MixedSamples
from lowtide.errors import ArgumentError, FormatError
from lowtide.torch import TorchBatches, TorchDocumentBatches

_VALIDATION_SEED = 0  # for every run, so that losses of different runs can be compared


class Micro(NamedTuple):
    """A micro-batch: one forward pass."""

    x: torch.Tensor
    y: torch.Tensor
    documents: torch.Tensor | None


class Vocabulary:
    """Number of ids of the model: as set, else as the corpus records it; checks tokens against it."""

    def __init__(self, settings: Settings, corpora: Sequence[lowtide.Corpus]) -> None:
        corpus = max(corpora, key=lambda one: one.vocab_size or 0)
        recorded = corpus.vocab_size
        if settings.vocab_size is None and recorded is None:
            raise ArgumentError(
                f"{corpus.name}: a {corpus.format} corpus does not record the size of its vocabulary "
                f"(the largest id of a sample is {corpus.largest()}); pass --vocab-size, such as 50304 for "
                "GPT-2's tokenizer"
            )
        self.size = settings.vocab_size or recorded or 0
        if recorded is not None and self.size < recorded:
            raise ArgumentError(
                f"vocab_size is too small for {corpus.name} ({self.size}, expected at least {recorded}); "
                "leave it out"
            )

    def check(self, name: str, tokens: npt.NDArray[Any]) -> None:
        """Raise for a token that the model does not know: PyTorch would crash on it, or worse, on a GPU."""
        if tokens.max() >= self.size or (tokens.dtype.kind == "i" and tokens.min() < 0):
            wrong = tokens[(tokens >= self.size) | (tokens < 0)][0]
            raise FormatError(
                f"{name}: holds a token outside the vocabulary of the model ({int(wrong)}, expected 0 to "
                f"{self.size - 1}); pass a larger --vocab-size, or the corpus that the model belongs to"
            )


class Data:
    """The batches of a run, for one rank."""

    def __init__(self, settings: Settings, ranks: Ranks) -> None:
        self._settings, self._ranks = settings, ranks
        self._sources = sources.parse(settings.data)
        self._training = sources.open_all(self._sources, settings)
        self.corpus = next(iter(self._training.values()))
        self._validation = (
            sources.open_validation(self._sources, self._training, settings) if settings.eval_interval else {}
        )
        self.vocabulary = Vocabulary(settings, list(self._training.values()))
        for corpus in (*self._training.values(), *self._validation.values()):
            self.vocabulary.check(corpus.name, np.array([corpus.largest()]))
        self._batches = self._make(
            self._training, settings.global_batch, settings.order, settings.seed, ranks.rank, ranks.world_size
        )
        tensors = TorchBatches(self._batches, ranks.device)
        self.stream: TorchBatches | TorchDocumentBatches = (
            tensors.with_documents() if settings.document_mask else tensors
        )
        self._fixed: TorchBatches | None = None
        self.evaluations = 0
        if self._validation:
            fixed = self._make(self._validation, settings.batch_size, "shuffle", _VALIDATION_SEED, 0, 1)
            self.evaluations = max(1, min(settings.eval_iters, fixed.epoch_steps))
            self._fixed = TorchBatches(fixed, ranks.device)

    def _make(
        self,
        corpora: Mapping[str, lowtide.Corpus],
        rows: int,
        order: Any,
        seed: int,
        rank: int,
        world_size: int,
    ) -> Batches:
        length = self._settings.length
        first = next(iter(corpora.values()))
        check = partial(self.vocabulary.check, first.name)
        if len(corpora) > 1:
            weights = {source.name: source.weight for source in self._sources}
            mixture = lowtide.mix(corpora, {name: weights[name] for name in corpora})
            mixed = MixedSamples(mixture, rows, length, order, seed)
            return MixedBatches(mixed, rows, length, rank=rank, world_size=world_size, check=check)
        samples = samples_of(first, length, order, seed)
        return Batches(samples, rows, length, rank=rank, world_size=world_size, check=check)

    def next(self) -> list[Micro]:
        """This rank's micro-batches of the next step."""
        x, y, *documents = next(self.stream)
        ids = documents[0] if documents else None
        size = self._settings.batch_size
        return [
            Micro(x[row : row + size], y[row : row + size], None if ids is None else ids[row : row + size])
            for row in range(0, len(x), size)
        ]

    def validation(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """This rank's share of the validation batches, the same at every evaluation."""
        if self._fixed is not None:
            for number in range(self._ranks.rank, self.evaluations, self._ranks.world_size):
                yield self._fixed[number]

    def close(self) -> None:
        """Stop prefetching and close the files."""
        self.stream.close()
        if self._fixed is not None:
            self._fixed.close()
        for corpus in (*self._training.values(), *self._validation.values()):
            corpus.close()

    @property
    def tokens(self) -> int:
        """Tokens of all training corpora."""
        return sum(len(corpus) for corpus in self._training.values())

"""Data of a run: training batches, fixed validation batches, which of their targets count, the vocabulary.

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
from lowtide._gpt.attention import Documents, documents_of
from lowtide._gpt.config import Settings
from lowtide._gpt.model import IGNORED, torch
from lowtide._gpt.ranks import Ranks
from lowtide._tokens.batches import Batches, samples_of
from lowtide._tokens.mixture import MixedBatches, MixedSamples
from lowtide._tokens.sampling import Order
from lowtide.errors import ArgumentError, FormatError
from lowtide.torch import TorchBatches, TorchDocumentBatches

_VALIDATION_SEED = 0  # for every run, so that losses of different runs can be compared


class Micro(NamedTuple):
    """A micro-batch: one forward pass."""

    x: torch.Tensor
    y: torch.Tensor
    documents: Documents | None
    counted: int
    """Targets whose loss counts; the others are ``IGNORED``."""


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
            if settings.init is not None:
                raise ArgumentError(
                    f"{corpus.name}: has more ids than the weights of --init know ({recorded}, expected at "
                    f"most {self.size}); prepare it with the tokenizer of {settings.init}"
                )
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
        parts = sources.parse(settings.data)
        self._weights = {source.name: source.weight for source in parts}
        self._training = sources.open_all(parts, settings)
        self.corpus = next(iter(self._training.values()))
        self._validation = (
            sources.open_validation(parts, self._training, settings) if settings.eval_interval else {}
        )
        self.vocabulary = Vocabulary(settings, list(self._training.values()))
        for corpus in (*self._training.values(), *self._validation.values()):
            self.vocabulary.check(corpus.name, np.array([corpus.largest()]))
        batches = self._batches(
            self._training, settings.global_batch, settings.order, settings.seed, ranks.rank, ranks.world_size
        )
        self.stream = self._tensors(batches)
        self._mask = self._mask_of(batches, sources.open_mask(self._training, settings))
        self._fixed: TorchBatches | TorchDocumentBatches | None = None
        self._fixed_mask: TorchBatches | None = None
        self.evaluations = 0
        if self._validation:
            batches = self._batches(self._validation, settings.batch_size, "shuffle", _VALIDATION_SEED, 0, 1)
            self.evaluations = max(1, min(settings.eval_iters, batches.epoch_steps))
            self._fixed = self._tensors(batches)
            mask = sources.open_mask(self._validation, settings, settings.val_split)
            self._fixed_mask = self._mask_of(batches, mask)

    def _batches(
        self, corpora: Mapping[str, lowtide.Corpus], rows: int, order: str, seed: int, rank: int, ranks: int
    ) -> Batches:
        length, first = self._settings.length, next(iter(corpora.values()))
        check = partial(self.vocabulary.check, first.name)
        options: dict[str, Any] = {"rank": rank, "world_size": ranks, "check": check}
        if len(corpora) == 1:
            return Batches(samples_of(first, length, order, seed), rows, length, **options)
        samples = MixedSamples(lowtide.mix(corpora, self._weights), rows, length, order, seed)
        return MixedBatches(samples, rows, length, **options)

    def _tensors(self, batches: Batches) -> TorchBatches | TorchDocumentBatches:
        tensors = batches.torch(self._ranks.device)
        needed = self._settings.document_mask or not self._settings.border_loss
        return tensors.with_documents() if needed else tensors

    def _mask_of(self, batches: Batches, mask: lowtide.Corpus | None) -> TorchBatches | None:
        """The windows of a mask at the places of the windows of tokens."""
        if mask is None:
            return None
        samples = batches._samples
        assert isinstance(samples, Order)  # a mixture was refused
        ranks: dict[str, Any] = {"rank": batches.rank, "world_size": batches.world_size}
        windows = Batches(samples.over(mask), batches.batch_size, batches.length, **ranks)
        return windows.torch(self._ranks.device)

    def next(self) -> list[Micro]:
        """This rank's micro-batches of the next step."""
        return self._micros(next(self.stream), None if self._mask is None else next(self._mask))

    def _micros(self, batch: Any, mask: Any) -> list[Micro]:
        settings = self._settings
        x, y = batch[:2]
        counts = None if mask is None else mask[1] != 0
        if not settings.border_loss:
            counts = batch.loss_mask if counts is None else counts & batch.loss_mask
        if counts is not None:
            y = y.masked_fill(~counts, IGNORED)
        size = settings.batch_size
        return [
            Micro(
                x[row : row + size],
                y[row : row + size],
                self._documents(batch, row, size),
                x[row : row + size].numel() if counts is None else int(counts[row : row + size].sum()),
            )
            for row in range(0, len(x), size)
        ]

    def _documents(self, batch: Any, row: int, size: int) -> Documents | None:
        if not self._settings.document_mask:
            return None
        ids, length = batch[2][row : row + size], self._settings.length
        first, last = np.searchsorted(batch.borders, [row * length, (row + len(ids)) * length])
        borders = batch.borders[first : last + 1] - batch.borders[first]
        positions = batch.position_ids[row : row + size]
        return documents_of(ids, positions, borders, compiled=self._settings.compile)

    @property
    def masked(self) -> bool:
        """Whether some targets may not count."""
        return self._settings.loss_mask is not None or not self._settings.border_loss

    def state_dict(self) -> dict[str, Any]:
        """The place of the training batches."""
        return self.stream.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the place of a state."""
        self.stream.load_state_dict(state)
        if self._mask is not None:
            self._mask.load_state_dict({**self._mask.state_dict(), "step": self.stream.step})

    def validation(self) -> Iterator[Micro]:
        """This rank's share of the validation batches, the same at every evaluation."""
        if self._fixed is not None:
            for number in range(self._ranks.rank, self.evaluations, self._ranks.world_size):
                mask = None if self._fixed_mask is None else self._fixed_mask[number]
                yield from self._micros(self._fixed[number], mask)

    def close(self) -> None:
        """Stop prefetching and close the files."""
        for batches in (self.stream, self._mask, self._fixed, self._fixed_mask):
            if batches is not None:
                batches.close()
        for corpus in (*self._training.values(), *self._validation.values()):
            corpus.close()

    @property
    def tokens(self) -> int:
        """Tokens of all training corpora."""
        return sum(len(corpus) for corpus in self._training.values())

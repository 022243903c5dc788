"""Tokenizers: what turns text into ids and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

Ids = np.ndarray[tuple[int], np.dtype[np.unsignedinteger]]


class Tokenizer(Protocol):
    """One kind of tokenizer. It is made once, saved, and loaded again by each worker from its file."""

    @property
    def name(self) -> str:
        """As ``--tokenizer`` takes it."""

    @property
    def vocab_size(self) -> int:
        """Ids are below it; the end of text counts too."""

    @property
    def eos(self) -> int | None:
        """The id that ends a document, where the vocabulary has one."""

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text, with no end of text."""

    def decode(self, ids: npt.ArrayLike) -> str:
        """The text of the ids; bytes that are no UTF-8 come as U+FFFD."""

    def to_json(self) -> str:
        """The content of its file beside ``corpus.json``: JSON, never a pickle."""

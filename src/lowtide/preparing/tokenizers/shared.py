"""What the tokenizers share: the words that lowtide's own tokenizer files begin with, and ids to decode."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lowtide.errors import ArgumentError

if TYPE_CHECKING:
    import numpy.typing as npt

    from lowtide.preparing.tokenizers import Tokenizer

FORMAT = "lowtide tokenizer"
VERSION = 1

# What the end of a document is called, most common first.
ENDS = ("<|endoftext|>", "</s>", "<eos>", "<|end_of_text|>", "<|eos|>", "[EOS]")


def decodable(ids: npt.ArrayLike, tokenizer: Tokenizer) -> list[int]:
    """The ids that stand for text: all but the end of text; one beyond the vocabulary is refused."""
    values = np.asarray(ids).ravel()
    if len(values) and not 0 <= int(values.min()) <= int(values.max()) < tokenizer.vocab_size:
        wrong = next(value for value in values.tolist() if not 0 <= value < tokenizer.vocab_size)
        raise ArgumentError(
            f"the id {wrong} is not in the vocabulary of the tokenizer {tokenizer.name!r}, which ends at "
            f"{tokenizer.vocab_size - 1}; decode with the tokenizer of the corpus"
        )
    eos = tokenizer.eos
    return [value for value in values.tolist() if value != eos]

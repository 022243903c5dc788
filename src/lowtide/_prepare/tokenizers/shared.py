"""What the tokenizers share: the words of lowtide's own files, ids to decode, and errors of libraries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from lowtide._printable import brief
from lowtide.errors import ArgumentError, FormatError, LowtideError

if TYPE_CHECKING:
    import numpy.typing as npt

    from lowtide._prepare.tokenizers import Tokenizer

FORMAT = "lowtide tokenizer"
VERSION = 1

MAX_VOCABULARY = 2**24
"""Ids that a vocabulary may have, holes counted: libraries take memory for each."""

# What the end of a document is called, most common first.
ENDS = ("<|endoftext|>", "</s>", "<eos>", "<|end_of_text|>", "<|eos|>", "[EOS]")


def decodable(ids: npt.ArrayLike, tokenizer: Tokenizer) -> list[int]:
    """The ids that stand for text: all but the end of text; one beyond the vocabulary is refused."""
    values = np.asarray(ids).ravel()
    if len(values) and values.dtype.kind not in "iu":
        raise ArgumentError(f"ids must be integers, got {brief(values[:4].tolist())}")
    if len(values) and not 0 <= int(values.min()) <= int(values.max()) < tokenizer.vocab_size:
        wrong = next(value for value in values.tolist() if not 0 <= value < tokenizer.vocab_size)
        raise ArgumentError(
            f"the id {wrong} is not in the vocabulary of the tokenizer {tokenizer.name!r}, which ends at "
            f"{tokenizer.vocab_size - 1}; decode with the tokenizer of the corpus"
        )
    eos = tokenizer.eos
    return [value for value in values.tolist() if value != eos]


@contextmanager
def library(where: str) -> Iterator[None]:
    """Turn what a tokenizer's library raises into lowtide's errors.

    Panics of Rust are no ``Exception``: whoever catches errors would not catch them.
    """
    try:
        yield
    except UnicodeEncodeError as error:
        raise unencodable(error) from None
    except (LowtideError, MemoryError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        problem = brief(f"{type(error).__name__}: {error}")
        raise FormatError(
            f"{where}: its library fails ({problem}); get the tokenizer's file again"
        ) from error


def unencodable(error: UnicodeEncodeError) -> ArgumentError:
    """The error for a text that has no UTF-8."""
    return ArgumentError(
        f"a text to encode must be valid Unicode, found {error.object[error.start]!r} at character "
        f"{error.start}; replace it"
    )

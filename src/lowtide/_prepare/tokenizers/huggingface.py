"""Tokenizers of the Hugging Face library: from a ``tokenizer.json``, or trained here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lowtide._prepare.tokenizers.shared import ENDS, MAX_VOCABULARY, decodable, library
from lowtide._printable import brief
from lowtide.errors import ArgumentError, FormatError, MissingExtraError

if TYPE_CHECKING:
    import numpy.typing as npt

    from lowtide._prepare.tokenizers import Ids

try:
    import tokenizers
except ImportError as missing:
    raise MissingExtraError(
        f"this tokenizer needs the library tokenizers, which cannot be imported ({missing}): "
        "pip install 'lowtide[prepare]'"
    ) from missing

_LEAST = 257  # every byte, and the end of text


class HuggingFaceTokenizer:
    """A tokenizer as its file describes it, but for what belongs to one model's inputs.

    Nothing is truncated, padded or framed by special tokens. A text that holds the name of a special token is
    encoded as the text that it is: what ends a document is never in the hands of who wrote it.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, name: str, eos: str | int | None = None) -> None:
        with library(name):
            tokenizer.no_truncation()
            tokenizer.no_padding()
            tokenizer.encode_special_tokens = True
            vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self._tokenizer = tokenizer
        self.name = name
        # By the largest id and not by their number, which is smaller where a vocabulary has holes.
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        if not 0 < self.vocab_size <= MAX_VOCABULARY:
            raise FormatError(
                f"{name}: the tokenizer has {self.vocab_size} ids, expected 1 to {MAX_VOCABULARY}; get its "
                "file again"
            )
        self.eos = _eos(vocabulary, self.vocab_size, name, eos)

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        # The fast one keeps no offsets of tokens in the text, which nobody asks for here.
        with library(self.name):
            try:
                encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
            except TypeError:  # its word for half a surrogate pair
                for text in texts:
                    text.encode()
                raise
        return [np.array(encoding.ids, np.uint32) for encoding in encodings]

    def decode(self, ids: npt.ArrayLike) -> str:
        known = decodable(ids, self)
        with library(self.name):
            text: str = self._tokenizer.decode(known, skip_special_tokens=False)
        return text

    def to_json(self) -> str:
        with library(self.name):
            text: str = self._tokenizer.to_str()
        return text + "\n"


def from_text(text: str, name: str, where: str, eos: str | int | None = None) -> HuggingFaceTokenizer:
    """The tokenizer that the content of a ``tokenizer.json`` describes."""
    try:
        with library(where):
            made = tokenizers.Tokenizer.from_str(text)
    except FormatError as error:
        raise FormatError(
            f"{where}: is not a tokenizer that tokenizers {tokenizers.__version__} reads "
            f"({brief(str(error.__cause__))}); get it again, or update the library"
        ) from error
    return HuggingFaceTokenizer(made, name, eos)


def trained(vocab_size: int, texts: Iterable[str]) -> HuggingFaceTokenizer:
    """A byte-level BPE with the word splitting of GPT-2. Few texts may give fewer tokens than were asked for.

    >>> trained(300, ["low tide, high tide, low tide"]).eos
    0
    """
    if vocab_size < _LEAST:
        raise ArgumentError(f"bpe:{vocab_size} is too small: {_LEAST} hold every byte and the end of text")
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    made: Any = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = byte_level(add_prefix_space=False, use_regex=True)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[ENDS[0]],
        initial_alphabet=sorted(byte_level.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    return HuggingFaceTokenizer(made, f"bpe:{vocab_size}", ENDS[0])


def _eos(vocabulary: dict[str, int], vocab_size: int, name: str, eos: str | int | None) -> int | None:
    if isinstance(eos, int):
        if not 0 <= eos < vocab_size:
            raise ArgumentError(f"{name}: eos must be an id below {vocab_size}, got {eos}")
        return eos
    if eos is not None:
        if eos not in vocabulary:
            raise ArgumentError(
                f"{name}: has no token {eos!r}; name the one that ends a text, or leave out eos"
            )
        return vocabulary[eos]
    return next((vocabulary[end] for end in ENDS if end in vocabulary), None)

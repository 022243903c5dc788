"""Tokenizers of the Hugging Face library: from a ``tokenizer.json``, or trained here."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide._extras import library
from lowtide._io import store
from lowtide._prepare.tokenizers.kind import (
    ENDS,
    MAX_VOCABULARY,
    Ids,
    Texts,
    Tokenizer,
    decodable,
    library_errors,
)
from lowtide._printable import brief
from lowtide.errors import ArgumentError, FormatError

_LEAST = 257  # every byte, and the end of text


def _tokenizers() -> Any:
    return library("tokenizers", "this tokenizer")


class HuggingFaceTokenizer(Tokenizer):
    """A tokenizer as its file describes it, without the settings for the inputs of one model.

    Nothing is truncated, padded or framed by special tokens. A text that contains the name of a special token
    is encoded as text, so that a document cannot end itself.
    """

    unsafe = True

    @classmethod
    def usage(cls) -> str:
        return "the path of a tokenizer.json"

    @classmethod
    def owns(cls, name: str, /) -> bool:
        return name.endswith(".json") or store.exists(name)

    @classmethod
    def create(cls, name: str, _texts: Texts, /) -> Tokenizer:
        from lowtide._prepare import tokenizers

        path = os.path.join(name, "tokenizer.json") if store.is_folder(name) else name
        return tokenizers.load(path, name=name)

    @classmethod
    def reads(cls, content: Mapping[str, Any], /) -> bool:
        return "model" in content

    @classmethod
    def load(cls, content: Mapping[str, Any], path: str, name: str, eos: int | None, /) -> Tokenizer:
        module = _tokenizers()
        try:
            with library_errors(path):
                tokenizer = module.Tokenizer.from_str(json.dumps(content, ensure_ascii=False))
        except FormatError as error:
            raise FormatError(
                f"{path}: is not a tokenizer that tokenizers {module.__version__} reads "
                f"({brief(str(error.__cause__))}); download it again, or update the library"
            ) from error
        return HuggingFaceTokenizer(tokenizer, name, eos)

    def __init__(self, tokenizer: Any, name: str, eos: int | None = None) -> None:
        with library_errors(name):
            tokenizer.no_truncation()
            tokenizer.no_padding()
            tokenizer.encode_special_tokens = True
            vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self._tokenizer = tokenizer
        self.name = name
        # By the largest id and not by their number, which is smaller if a vocabulary has holes.
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        if not 0 < self.vocab_size <= MAX_VOCABULARY:
            raise FormatError(
                f"{name}: the tokenizer has {self.vocab_size} ids, expected 1 to {MAX_VOCABULARY}; download "
                "it again"
            )
        if eos is not None and not 0 <= eos < self.vocab_size:
            raise ArgumentError(f"{name}: eos must be an id below {self.vocab_size}, got {eos}")
        self.eos = next((vocabulary[end] for end in ENDS if end in vocabulary), None) if eos is None else eos

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        # The fast variant stores no offsets of tokens in the text, which nothing here needs.
        with library_errors(self.name):
            try:
                encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
            except TypeError:  # raised for half a surrogate pair
                for text in texts:
                    text.encode()
                raise
        return [np.array(encoding.ids, np.uint32) for encoding in encodings]

    def decode(self, ids: npt.ArrayLike) -> str:
        known = decodable(ids, self)
        with library_errors(self.name):
            text: str = self._tokenizer.decode(known, skip_special_tokens=False)
        return text

    def to_json(self) -> str:
        with library_errors(self.name):
            text: str = self._tokenizer.to_str()
        return text + "\n"


class BpeTokenizer(HuggingFaceTokenizer):
    """``bpe:VOCAB``: a byte-level BPE with the word splitting of GPT-2, trained on a sample of the inputs.

    A small sample may give a smaller vocabulary. Its file is a ``tokenizer.json``.

    >>> BpeTokenizer.create("bpe:300", Texts(["low tide, high tide, low tide"])).eos
    0
    """

    trained = True

    @classmethod
    def usage(cls) -> str:
        return "bpe:VOCAB"

    @classmethod
    def owns(cls, name: str, /) -> bool:
        return name.startswith("bpe:")

    @classmethod
    def create(cls, name: str, texts: Texts, /) -> HuggingFaceTokenizer:
        if not (size := name.removeprefix("bpe:")).isdecimal():
            raise ArgumentError(f"the tokenizer bpe:VOCAB needs a number such as bpe:8192, got {name!r}")
        if int(size) < _LEAST:
            raise ArgumentError(f"{name} is too small: {_LEAST} ids hold every byte and the end of text")
        module = _tokenizers()
        byte_level = module.pre_tokenizers.ByteLevel
        tokenizer = module.Tokenizer(module.models.BPE())
        tokenizer.pre_tokenizer = byte_level(add_prefix_space=False, use_regex=True)
        tokenizer.decoder = module.decoders.ByteLevel()
        trainer = module.trainers.BpeTrainer(
            vocab_size=int(size),
            special_tokens=[ENDS[0]],
            initial_alphabet=sorted(byte_level.alphabet()),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts.sample(), trainer)
        return cls(tokenizer, name)

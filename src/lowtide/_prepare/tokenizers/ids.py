"""``ids:VOCAB``, and functions: tokenizers whose ids lowtide stores without knowing their text."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide._io.jsonfiles import invalid
from lowtide._prepare.tokenizers.kind import MAX_VOCABULARY, Ids, Texts, Tokenizer, as_ids
from lowtide._printable import brief
from lowtide._sizes import whole
from lowtide.errors import ArgumentError, FormatError

Function = Callable[[str], Iterable[int] | Mapping[str, Iterable[int]]]
"""What encodes a text: to ids, or to a mapping with ``input_ids`` as tokenizers of transformers give."""


class IdsTokenizer(Tokenizer):
    """Ids below a number, for sources that already contain token ids.

    >>> IdsTokenizer.create("ids:50257", Texts([])).vocab_size
    50257
    """

    kind = "ids"

    @classmethod
    def usage(cls) -> str:
        return "ids:VOCAB (for sources of token ids)"

    @classmethod
    def owns(cls, name: str, /) -> bool:
        return name == "ids" or name.startswith("ids:")

    @classmethod
    def create(cls, name: str, _texts: Texts, /) -> IdsTokenizer:
        size = name.removeprefix("ids:")
        if not size.isdecimal() or not 1 <= int(size) <= MAX_VOCABULARY:
            raise ArgumentError(
                f"the tokenizer ids:VOCAB needs a number of ids such as ids:50257, got {name!r}"
            )
        return cls(name, int(size))

    @classmethod
    def load(cls, content: Mapping[str, Any], path: str, _name: str, eos: int | None, /) -> IdsTokenizer:
        name, size, own = content.get("name"), content.get("vocab_size"), content.get("eos")
        if not isinstance(name, str) or type(size) is not int or not 1 <= size <= MAX_VOCABULARY:
            raise invalid(
                f"{path}: name and vocab_size", [name, size], "a name and a number", "restore the file"
            )
        if own is not None and (type(own) is not int or not 0 <= own < size):
            raise invalid(f"{path}: eos", own, f"an id below {size}", "restore the file")
        return cls(name, size, own if eos is None else eos)

    def __init__(self, name: str, vocab_size: int, eos: int | None = None) -> None:
        self.name, self.vocab_size = name, vocab_size
        self.eos = eos if eos is None else whole("eos", eos, 0)
        if self.eos is not None and self.eos >= vocab_size:
            raise ArgumentError(f"eos must be an id below {vocab_size}, got {eos}")

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        if not texts:
            return []
        raise FormatError(
            f"the tokenizer {self.name!r} cannot encode text, found {brief(texts[0])}, expected token ids; "
            "pass a tokenizer for text"
        )

    def decode(self, ids: npt.ArrayLike) -> str:
        raise ArgumentError(f"the tokenizer {self.name!r} is not known here; decode with your own")

    def to_json(self) -> str:
        return self.own_file(name=self.name, vocab_size=self.vocab_size, eos=self.eos)


class FunctionTokenizer(IdsTokenizer):
    """A function of the caller's program. Its file contains the number of ids only: no code is saved."""

    def __init__(self, function: Function, name: str, vocab_size: int, eos: int | None = None) -> None:
        super().__init__(name, vocab_size, eos)
        self.function = function

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        return [self._encode(text) for text in texts]

    def _encode(self, text: str) -> Ids:
        result: Any = self.function(text)
        if hasattr(result, "keys"):
            result = result["input_ids"]
        if (ids := as_ids(result)) is None:
            raise FormatError(
                f"the tokenizer {self.name!r} must return a list of ids, got {brief(result)} for "
                f"{brief(text)}"
            )
        if len(ids) and int(ids.min()) < 0:
            raise FormatError(f"the tokenizer {self.name!r} returned the id {ids.min()}, expected 0 or more")
        unsigned: Ids = ids.astype(np.uint64)
        return unsigned


def adopt(tokenizer: object, vocab_size: int | None, eos: int | None) -> Tokenizer:
    """The tokenizer for an object: of lowtide, of Hugging Face or of tiktoken, or any function.

    >>> adopt(lambda text: text.encode(), vocab_size=256, eos=None).encode_batch(["low"])[0].tolist()
    [108, 111, 119]
    """
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    name = str(getattr(tokenizer, "name_or_path", "") or getattr(tokenizer, "name", "") or "")
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if hasattr(backend, "to_str") and hasattr(backend, "encode_batch"):
        import tokenizers as library

        from lowtide._prepare.tokenizers.huggingface import HuggingFaceTokenizer

        end = getattr(tokenizer, "eos_token_id", None) if eos is None else eos
        # A copy: truncation and padding of the caller's own are left as they are.
        return HuggingFaceTokenizer(
            library.Tokenizer.from_str(backend.to_str()), name or "tokenizer.json", end
        )
    if type(tokenizer).__module__.partition(".")[0] == "tiktoken" and name:
        from lowtide._prepare.tokenizers.tiktoken import TiktokenTokenizer

        encoding: Any = tokenizer
        parts = encoding._pat_str, encoding._mergeable_ranks, encoding._special_tokens
        return TiktokenTokenizer(name, *parts)
    if not callable(tokenizer):
        raise ArgumentError(f"tokenizer must be a name, a tokenizer or a function, got {tokenizer!r}")
    size = getattr(tokenizer, "vocab_size", None) if vocab_size is None else vocab_size
    if type(size) is not int:
        raise ArgumentError("a function as tokenizer needs vocab_size, the number of its ids; pass it")
    if not 1 <= size <= MAX_VOCABULARY:
        raise ArgumentError(f"vocab_size must be from 1 to {MAX_VOCABULARY}, got {size}")
    name = getattr(tokenizer, "__qualname__", "") or type(tokenizer).__qualname__
    return FunctionTokenizer(tokenizer, f"function {name}", size, eos)


def code_of(function: object) -> str:
    """A digest of a function's code, so that a run notices when the code has changed."""
    code = getattr(function, "__code__", None)
    constants = [repr(one) for one in getattr(code, "co_consts", ()) if not hasattr(one, "co_code")]
    parts = (getattr(code, "co_code", b""), constants, getattr(code, "co_names", ()))
    return hashlib.sha256(repr(parts).encode("utf8", "backslashreplace")).hexdigest()

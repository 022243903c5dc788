"""The encodings of tiktoken, by name."""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide._extras import library
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
from lowtide.errors import ArgumentError, FormatError, NotFoundError, missing


def _tiktoken() -> Any:
    return library("tiktoken", "this tokenizer")


class TiktokenTokenizer(Tokenizer):
    """An encoding, saved with its vocabulary so that loading it needs no network.

    A text that contains the name of a special token is encoded as text.
    """

    kind = "tiktoken"
    unsafe = True

    @classmethod
    def usage(cls) -> str:
        return f"tiktoken's {', '.join(sorted(_tiktoken().list_encoding_names()))}"

    @classmethod
    def owns(cls, name: str, /) -> bool:
        return name in _tiktoken().list_encoding_names()

    @classmethod
    def create(cls, name: str, _texts: Texts, /) -> TiktokenTokenizer:
        """The encoding from tiktoken's cache or from the network."""
        import requests  # tiktoken's own way to the network

        try:
            encoding: Any = _tiktoken().get_encoding(name)
        except requests.RequestException as error:
            raise _unreachable(name, error) from error
        return cls(name, encoding._pat_str, encoding._mergeable_ranks, encoding._special_tokens)

    @classmethod
    def load(
        cls, content: Mapping[str, Any], path: str, _name: str, _eos: int | None, /
    ) -> TiktokenTokenizer:
        try:
            parts = _parts(content)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(
                f"{path}: is not a tokenizer of tiktoken ({brief(repr(error))}); prepare the corpus again"
            ) from error
        return cls(*parts)

    def __init__(
        self,
        name: str,
        pattern: str,
        ranks: dict[bytes, int],
        special: dict[str, int],
        eos: str | None = None,
    ) -> None:
        self.name = name
        self._content = (pattern, ranks, special)
        with library_errors(name):
            self._encoding = _tiktoken().Encoding(
                name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special
            )
        self.vocab_size = max([*ranks.values(), *special.values()], default=-1) + 1
        self._end = eos or next((end for end in ENDS if end in special), None)
        self.eos = None if self._end is None else special[self._end]

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        encode = self._encoding.encode_to_numpy  # without a Python integer for each token
        with library_errors(self.name):
            return [np.asarray(encode(text, disallowed_special=()), np.uint32) for text in texts]

    def decode(self, ids: npt.ArrayLike) -> str:
        known = decodable(ids, self)
        try:
            text: str = self._encoding.decode(known, errors="replace")
        except KeyError:  # a hole in the vocabulary
            raise ArgumentError(
                f"the tokenizer {self.name!r} has no token for one of the ids {brief(known)}; decode with "
                "the tokenizer of the corpus"
            ) from None
        return text

    def to_json(self) -> str:
        pattern, ranks, special = self._content
        encoded = {base64.b64encode(token).decode(): rank for token, rank in ranks.items()}
        return self.own_file(name=self.name, eos=self._end, pattern=pattern, special=special, ranks=encoded)


def _parts(
    content: Mapping[str, Any],
) -> tuple[str, str, dict[bytes, int], dict[str, int], str | None]:
    """Name, pattern, ranks, special tokens and end of text in a file that ``to_json`` wrote."""
    name, pattern, eos = content["name"], content["pattern"], content["eos"]
    ranks = {base64.b64decode(token, validate=True): rank for token, rank in content["ranks"].items()}
    special = dict(content["special"])
    if not isinstance(name, str) or not isinstance(pattern, str) or not isinstance(eos, str | None):
        raise TypeError("name, pattern and eos must be strings")
    ids = [*ranks.values(), *special.values()]
    if not all(type(id) is int and 0 <= id < MAX_VOCABULARY for id in ids) or len(set(ids)) < len(ids):
        raise ValueError(f"ids must be different integers from 0 to {MAX_VOCABULARY - 1}")
    if len(ranks) != len(content["ranks"]) or not all(bytes([byte]) in ranks for byte in range(256)):
        raise ValueError("every byte must be a token, and every token must occur once")
    if eos is not None and eos not in special:
        raise ValueError("eos must be a special token")
    return name, pattern, ranks, special, eos


def _unreachable(name: str, error: Any) -> NotFoundError:
    request = getattr(error, "request", None)
    address = getattr(request, "url", None)
    folder = os.environ.get("TIKTOKEN_CACHE_DIR") or os.environ.get("DATA_GYM_CACHE_DIR")
    folder = folder or os.path.join(tempfile.gettempdir(), "data-gym-cache")
    if address is None:
        return missing(name, f"the encoding could not be downloaded ({error}); check the network")
    file = hashlib.sha1(address.encode(), usedforsecurity=False).hexdigest()
    return missing(
        name,
        f"the encoding is not in tiktoken's cache and could not be downloaded ({type(error).__name__}); "
        f"download {address} elsewhere, copy it to {os.path.join(folder, file)} (TIKTOKEN_CACHE_DIR sets the "
        "folder, tiktoken the file name) and run again; gpt2 has two such files",
    )

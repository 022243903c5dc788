"""Encodings of tiktoken, by name."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lowtide._prepare.tokenizers.shared import ENDS, FORMAT, MAX_VOCABULARY, VERSION, decodable, library
from lowtide._printable import brief
from lowtide.errors import ArgumentError, FormatError, MissingExtraError, NotFoundError

if TYPE_CHECKING:
    import numpy.typing as npt

    from lowtide._prepare.tokenizers import Ids

try:
    import tiktoken
except ImportError as missing:
    raise MissingExtraError(
        f"this tokenizer needs tiktoken, which cannot be imported ({missing}): pip install 'lowtide[prepare]'"
    ) from missing


class TiktokenTokenizer:
    """An encoding, kept with its vocabulary so that it is loaded again without a network.

    A text that holds the name of a special token is encoded as the text that it is.
    """

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
        with library(name):
            self._encoding = tiktoken.Encoding(
                name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special
            )
        self.vocab_size = max([*ranks.values(), *special.values()], default=-1) + 1
        if eos is not None and eos not in special:
            raise ArgumentError(
                f"{name}: has no special token {eos!r}, found {brief(sorted(special))}; leave out eos"
            )
        self._end = eos or next((end for end in ENDS if end in special), None)
        self.eos = None if self._end is None else special[self._end]

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        encode = self._encoding.encode_to_numpy  # no Python number for each token
        with library(self.name):
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
        content = {
            "format": FORMAT,
            "version": VERSION,
            "kind": "tiktoken",
            "name": self.name,
            "eos": self._end,
            "pattern": pattern,
            "special": special,
            "ranks": {base64.b64encode(token).decode(): rank for token, rank in ranks.items()},
        }
        return json.dumps(content) + "\n"


def from_content(content: Mapping[str, Any], where: str) -> TiktokenTokenizer:
    """The tokenizer of a file that ``to_json`` gave."""
    try:
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
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(
            f"{where}: is not a tokenizer of tiktoken ({brief(repr(error))}); prepare the corpus again"
        ) from error
    return TiktokenTokenizer(name, pattern, ranks, special, eos)


def by_name(name: str, eos: str | None = None) -> TiktokenTokenizer:
    """The encoding called ``name``, from tiktoken's cache or from the network."""
    import requests  # tiktoken's own way to the network

    try:
        encoding: Any = tiktoken.get_encoding(name)
    except requests.RequestException as error:
        raise _unreachable(name, error) from error
    return TiktokenTokenizer(
        name, encoding._pat_str, encoding._mergeable_ranks, encoding._special_tokens, eos
    )


def names() -> list[str]:
    """The encodings that tiktoken knows."""
    return sorted(tiktoken.list_encoding_names())


def _unreachable(name: str, error: Any) -> NotFoundError:
    request = getattr(error, "request", None)
    address = getattr(request, "url", None)
    folder = os.environ.get("TIKTOKEN_CACHE_DIR") or os.environ.get("DATA_GYM_CACHE_DIR")
    folder = folder or os.path.join(tempfile.gettempdir(), "data-gym-cache")
    if address is None:
        problem = f"the encoding could not be downloaded ({error}); check the network"
        return NotFoundError(errno.ENOENT, problem, name)
    file = hashlib.sha1(address.encode(), usedforsecurity=False).hexdigest()
    return NotFoundError(
        errno.ENOENT,
        "the encoding is not in tiktoken's cache and could not be downloaded "
        f"({type(error).__name__}). Without a network: get {address} elsewhere, put it here as "
        f"{os.path.join(folder, file)} (TIKTOKEN_CACHE_DIR names the folder, tiktoken the file), and "
        "run again; gpt2 has two such files",
        name,
    )
